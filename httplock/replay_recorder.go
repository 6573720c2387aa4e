package httplock

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
)

// recorder is the http.ResponseWriter of a replay: it keeps the response, and as
// much of its body as it may.
type recorder struct {
	ctx    context.Context
	header http.Header
	most   int  // bytes of body that are kept
	noBody bool // the request's method has none

	status    int         // 0: nothing was written
	sent      http.Header // header as it was when the response was begun
	body      []byte
	truncated bool
}

func newRecorder(r *http.Request, most int) *recorder {
	return &recorder{ctx: r.Context(), header: http.Header{}, most: most, noBody: r.Method == http.MethodHead}
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 { // as net/http has it
		panic(fmt.Sprintf("httplock: invalid WriteHeader code %d", status))
	}
	if w.status == 0 && status >= http.StatusOK {
		w.status, w.sent = status, w.header.Clone()
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.begin()
	if !w.noBody && hasBody(w.status) {
		kept := p[:min(len(p), w.most-len(w.body))]
		w.body = append(w.body, kept...)
		w.truncated = w.truncated || len(kept) < len(p)
	}
	return len(p), nil
}

// begin gives the response the status that net/http gives one without.
func (w *recorder) begin() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
}

// Flush has nobody to send to. Handlers that stream insist on it.
func (w *recorder) Flush() { w.begin() }

// Hijack says that there is no connection. gin takes it that the method exists.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// CloseNotify is the http.CloseNotifier that gin takes to exist.
func (w *recorder) CloseNotify() <-chan bool { return closeNotify(w.ctx) }

// result returns what was recorded, with the headers that may be kept.
func (w *recorder) result(target *url.URL, kept map[string]bool) *result {
	r := &result{Status: w.status, Header: w.keptHeaders(kept), Truncated: w.truncated, body: w.body}
	if at := r.Header.Get("Location"); at != "" {
		r.Header.Set("Location", absolute(at, target))
	}
	return r
}

// keptHeaders returns the headers that were sent and may be kept.
func (w *recorder) keptHeaders(kept map[string]bool) http.Header {
	h := http.Header{}
	for name := range kept {
		// A value that no server would send is not kept either.
		values := slices.DeleteFunc(slices.Clone(w.sent[name]), func(v string) bool { return !isFieldValue(v) })
		if len(values) > 0 && !namedBy(w.sent["Connection"], name) {
			h[name] = values
		}
	}
	if _, said := w.sent["Content-Type"]; !said && len(w.body) > 0 && len(w.sent["Content-Encoding"]) == 0 {
		h.Set("Content-Type", http.DetectContentType(w.body)) // as net/http does
	}
	return h
}
