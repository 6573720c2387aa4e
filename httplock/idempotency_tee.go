package httplock

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// tee passes a response on to the client, and keeps a copy.
type tee struct {
	http.ResponseWriter
	recorder *recorder
	partial  bool // the copy is not the whole response
	streamed bool // it was flushed
	encoded  bool // middleware in front encodes it, and has said so already
	hijacked bool
}

func newTee(w http.ResponseWriter, r *http.Request, most int) *tee {
	t := &tee{ResponseWriter: w, recorder: newRecorder(r, most), encoded: len(w.Header()["Content-Encoding"]) > 0}
	t.recorder.header = w.Header()
	return t
}

// Unwrap is for http.ResponseController.
func (t *tee) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t *tee) flushing() http.ResponseWriter { return flushing(t.ResponseWriter) }

func (t *tee) WriteHeader(status int) {
	t.hijacked = t.hijacked || status == http.StatusSwitchingProtocols
	t.recorder.WriteHeader(status)
	t.ResponseWriter.WriteHeader(status)
}

// Write does not tell a handler that its client has left, as long as the response is
// kept: the client may come back for it, and wants the whole of it.
func (t *tee) Write(p []byte) (int, error) {
	if t.recorder.begin(); !t.partial {
		_, _ = t.recorder.Write(p)
		t.drop(t.recorder.truncated)
	}
	n, err := t.ResponseWriter.Write(p)
	if err == nil || t.partial {
		return n, err
	}
	for _, mistake := range []error{http.ErrBodyNotAllowed, http.ErrContentLength, http.ErrHijacked} {
		if errors.Is(err, mistake) {
			return n, err
		}
	}
	return len(p), nil
}

// drop frees what was kept, if it will not do.
func (t *tee) drop(is bool) {
	if is {
		t.partial, t.recorder.body = true, nil
	}
}

// Flush is http.Flusher's.
func (t *tee) Flush() { _ = t.FlushError() }

// FlushError is what http.ResponseController looks for. What is flushed streams, and is
// not kept: nobody knows whether the client has seen the end of it.
func (t *tee) FlushError() error {
	t.recorder.begin()
	t.streamed = true
	t.drop(true)
	return http.NewResponseController(t.ResponseWriter).Flush()
}

// Hijack is http.Hijacker's. Nobody sees what is said then.
func (t *tee) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buf, err := http.NewResponseController(t.ResponseWriter).Hijack()
	t.hijacked = t.hijacked || err == nil
	return conn, buf, err
}

// final reports whether the response is what came of the request, once and for all.
// Ended says that the handler's ctx had ended when it returned.
func (t *tee) final(ended bool) bool {
	wroteNothing := t.recorder.status == 0
	t.recorder.begin()
	switch status := t.recorder.status; {
	case t.hijacked, status >= http.StatusInternalServerError:
		return false
	case status == http.StatusUnauthorized, status == http.StatusProxyAuthRequired, status == http.StatusRequestTimeout,
		status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return false // they ask for the same request again
	case status >= http.StatusBadRequest && len(t.recorder.sent["Retry-After"]) > 0:
		return false // so does this one, such as the 409 of a lock further in that is not ours
	case ended && (wroteNothing || t.streamed || status >= http.StatusBadRequest):
		return false // the handler gave up because it was told to
	}
	return true
}

// result is the response as it is kept: whole, or only its status.
func (t *tee) result(kept map[string]bool) *result {
	rec := t.recorder
	if said := rec.sent.Get("Content-Length"); said != "" && hasBody(rec.status) && said != strconv.Itoa(len(rec.body)) {
		t.drop(true) // the handler broke off
	}
	t.drop(hasTrailers(rec))
	if t.partial {
		return &result{Status: rec.status, Truncated: true}
	}
	header := rec.keptHeaders(kept)
	if t.encoded { // what was kept is not; it will be again, if the next client takes it
		header.Del("Content-Encoding")
	}
	return &result{Status: rec.status, Header: header, body: rec.body}
}

// hasTrailers reports whether a response has something behind its body.
func hasTrailers(rec *recorder) bool {
	if len(rec.sent["Trailer"]) > 0 {
		return true
	}
	for name := range rec.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}
