package httplock

import (
	"bufio"
	"context"
	"net"
	"net/http"
)

// recorder is the http.ResponseWriter of a replay: it keeps the status, and
// counts the body instead of keeping it.
type recorder struct {
	ctx    context.Context
	header http.Header
	status int // 0: nothing was written
	size   int64
}

func newRecorder(ctx context.Context) *recorder {
	return &recorder{ctx: ctx, header: http.Header{}}
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.size += int64(len(p))
	return len(p), nil
}

// Flush has nobody to send to. Handlers that stream insist on it.
func (w *recorder) Flush() { w.WriteHeader(http.StatusOK) }

// Hijack says that there is no connection. gin takes it that the method exists.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

// CloseNotify is the http.CloseNotifier that gin takes to exist.
func (w *recorder) CloseNotify() <-chan bool { return closeNotify(w.ctx) }

func (w *recorder) statusCode() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// closeNotify is http.CloseNotifier in terms of a ctx.
func closeNotify(ctx context.Context) <-chan bool {
	ch := make(chan bool, 1)
	context.AfterFunc(ctx, func() { ch <- true })
	return ch
}
