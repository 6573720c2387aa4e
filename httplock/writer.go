package httplock

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
)

// writer knows whether a response was begun, and with which status. It is as able as the writer that it
// wraps: what that one cannot do is an error that wraps http.ErrNotSupported.
type writer struct {
	http.ResponseWriter
	ctx    context.Context
	status int // 0: none was begun
}

// Written reports whether a response was begun, or the connection taken over.
func (w *writer) Written() bool { return w.status != 0 }

// Status is that of the response. Of one that is never begun net/http makes 200.
func (w *writer) Status() int { return cmp.Or(w.status, http.StatusOK) }

func (w *writer) begin(status int) { w.status = cmp.Or(w.status, status) }

// tee is Exchange.Tee.
func (w *writer) tee(wrap func(http.ResponseWriter) http.ResponseWriter) {
	w.ResponseWriter = wrap(w.ResponseWriter)
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// ReadFrom lets the server send a file without copying it.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	w.begin(http.StatusOK)
	return io.Copy(w.ResponseWriter, r)
}

func (w *writer) Flush() { _ = w.FlushError() }

func (w *writer) FlushError() error {
	w.begin(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
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
