package httplock

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
)

// writer knows whether a response was begun. It is as able as the writer that it
// wraps: what that one cannot do is an error that wraps http.ErrNotSupported.
type writer struct {
	http.ResponseWriter
	ctx     context.Context
	written bool
}

// Written reports whether a response was begun, or the connection taken over.
func (w *writer) Written() bool { return w.written }

// tap is Exchange.Tap.
func (w *writer) tap(wrap func(http.ResponseWriter) http.ResponseWriter) {
	w.ResponseWriter = wrap(w.ResponseWriter)
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.written = true
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	w.written = true
	return w.ResponseWriter.Write(p)
}

// ReadFrom lets the server send a file without copying it.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	w.written = true
	return io.Copy(w.ResponseWriter, r)
}

func (w *writer) Flush() { _ = w.FlushError() }

func (w *writer) FlushError() error {
	w.written = true
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buf, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.written = w.written || err == nil
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
