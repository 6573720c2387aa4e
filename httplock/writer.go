package httplock

import (
	"bufio"
	"cmp"
	"context"
	"net"
	"net/http"
)

// writer knows whether a response was begun, and with which status. It is as able as the writer that it
// wraps: what that one cannot do is an error that wraps http.ErrNotSupported.
type writer struct {
	http.ResponseWriter
	ctx    context.Context
	status int // 0: none was begun
	tail
}

// within returns the writer of a type that w is, or wraps; the zero value if there is none.
func within[W http.ResponseWriter](w http.ResponseWriter) (found W) {
	for {
		switch of := w.(type) {
		case W:
			return of
		case interface{ Unwrap() http.ResponseWriter }:
			w = of.Unwrap()
		default:
			return found
		}
	}
}

// Written reports whether a response was begun, or the connection taken over.
func (w *writer) Written() bool { return w.status != 0 }

// Status is that of the response. Of one that is never begun net/http makes 200.
func (w *writer) Status() int { return cmp.Or(w.status, http.StatusOK) }

func (w *writer) begin(status int) {
	if w.status != 0 {
		return
	}
	if w.status = status; w.kept && hasBody(status) {
		w.announced(w.Header().Get("Content-Length"))
	}
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Flush() { _ = w.FlushError() }

func (w *writer) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begin(http.StatusOK)
	w.drop()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sendTail() // net/http forgets what it has buffered
	w.drop()
	conn, buf, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.begin(http.StatusSwitchingProtocols)
	}
	return conn, buf, err
}

// CloseNotify is the http.CloseNotifier that gin takes to exist.
func (w *writer) CloseNotify() <-chan bool { return closeNotify(w.ctx) }

// Push is http.Pusher. Clients ask for nothing else of HTTP/2's.
func (w *writer) Push(path string, opts *http.PushOptions) error {
	if pusher, ok := w.ResponseWriter.(http.Pusher); ok {
		return pusher.Push(path, opts)
	}
	return http.ErrNotSupported
}

// closeNotify is http.CloseNotifier in terms of a ctx.
func closeNotify(ctx context.Context) <-chan bool {
	ch := make(chan bool, 1)
	context.AfterFunc(ctx, func() { ch <- true })
	return ch
}

// hasBody reports whether a response of that status can have a body.
func hasBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}
