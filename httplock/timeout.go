package httplock

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Timeout returns middleware that ends the ctx of a request after d and then answers it with 503, unless its handler
// has begun a response. Put it in front of [PerKey], around a ServeMux, a gin engine or an Echo: a handler that
// ignores its ctx then runs on with its key held, until it returns. Behind PerKey a time-out middleware returns
// before its handler does, and the next request for the key runs beside it: PerKey panics if it is right around one.
//
// As with [http.TimeoutHandler], the handler runs on a goroutine of its own. Unlike there, a response is not buffered:
// Flush and Hijack work, and a response that was begun in time may end later. Once the request was answered, writes
// fail with [http.ErrHandlerTimeout], and a panic of the handler is logged. http.Server's Shutdown does not wait for a
// handler whose request was answered: the Shutdown of the Locker does, if it has a key.
//
// A replay ([Replay]) is not answered with 503, since its worker holds the key until the handler
// returns. Its ctx ends after d; if its handler then writes nothing, or answers with 4xx or 5xx,
// the attempt has failed.
//
// Timeout panics if d is not positive, and what it returns without a handler, with an error that wraps core.ErrInvalidOption.
func Timeout(d time.Duration) func(http.Handler) http.Handler {
	if d <= 0 {
		panic(invalid("Timeout(%s): want more than 0", d))
	}
	return func(next http.Handler) http.Handler {
		if nilcheck.IsNil(next) {
			panic(invalid("Timeout: the handler is nil"))
		}
		return &timeLimited{d, next}
	}
}

// timeLimited is the handler of Timeout.
type timeLimited struct {
	d    time.Duration
	next http.Handler
}

func (h *timeLimited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), h.d)
	defer cancel()
	timed := r.WithContext(ctx)
	replay := replayFrom(ctx)
	if replay == nil {
		serveTimed(w, r, timed, h.next)
		return
	}
	defer func() {
		showInFront(r, timed)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			replay.timedOut()
		}
	}()
	h.next.ServeHTTP(w, timed)
}

func (h *timeLimited) locate(r *http.Request, pattern string) place {
	return locate(h.next, r, pattern)
}

// serveTimed serves timed, a copy of r with a ctx that ends in time.
func serveTimed(w http.ResponseWriter, r, timed *http.Request, next http.Handler) {
	tw := &timedWriter{inner: w, ctx: timed.Context(), header: w.Header().Clone()}
	if tw.header == nil {
		tw.header = http.Header{}
	}
	returned := make(chan any, 1) // what the handler panicked with
	go func() {
		panicked := true
		defer func() {
			var value any
			if panicked {
				if value = recover(); value == nil {
					value = http.ErrAbortHandler // runtime.Goexit
				}
			}
			if tw.leave() {
				endLate(timed, value)
			}
			returned <- value
		}()
		next.ServeHTTP(tw, timed)
		panicked = false
	}()

	var value any
	select {
	case value = <-returned:
	case <-timed.Context().Done():
		if tw.expire(r) {
			return
		}
		value = <-returned
	}
	showInFront(r, timed)
	if value != nil {
		panic(value)
	}
	tw.finish()
}

// endLate is called when the handler of a request returns that was answered long ago.
func endLate(r *http.Request, panicked any) {
	if r.MultipartForm != nil {
		_ = r.MultipartForm.RemoveAll()
	}
	if panicked != nil && panicked != http.ErrAbortHandler { //nolint:errorlint // net/http compares so too
		slog.ErrorContext(r.Context(), "httplock: a handler panicked after its request had timed out",
			slog.Any("panic", panicked), slog.String("stack", string(debug.Stack())))
	}
}

// timedWriter is the writer of a handler that may have to do without it. What the server's own writer is asked for is asked for under
// its lock, and only while the server still serves the request.
type timedWriter struct {
	inner  http.ResponseWriter
	ctx    context.Context
	header http.Header

	mu       sync.Mutex
	begun    bool // a response, by the handler
	left     bool // the handler has returned
	answered int  // with which status, in the handler's place; 0: it was not
}

func (w *timedWriter) flushing() http.ResponseWriter {
	if flushing(w.inner) == nil {
		return nil
	}
	return w
}

// answeredFor returns the status with which a Timeout in front has answered a request in its handler's place, or 0.
func answeredFor(w http.ResponseWriter) int {
	if of := within[*timedWriter](w); of != nil {
		return of.answer()
	}
	return 0
}

// expire takes the writer away, and answers r, unless the handler has begun a response or returned.
func (w *timedWriter) expire(r *http.Request) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun || w.left {
		return false
	}
	if r.Context().Err() != nil {
		w.answered = statusClientClosedRequest
		w.inner.WriteHeader(w.answered)
		return true
	}
	doc := problemHandlerTimeout.document(0)
	w.answered = doc.Status
	h := w.inner.Header()
	prepareHeader(h, 0)
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	content, err := json.Marshal(doc)
	if err != nil { // no document of ours can fail
		content = nil
	}
	h.Set("Content-Length", strconv.Itoa(len(content)))
	w.inner.WriteHeader(doc.Status)
	if r.Method != http.MethodHead {
		_, _ = w.inner.Write(content)
	}
	return true
}

// leave is called when the handler has returned. It reports whether the request was answered before.
func (w *timedWriter) leave() (late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = true
	return w.answered != 0
}

// do calls f unless the request was answered.
func (w *timedWriter) do(begins bool, f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answered != 0 {
		return http.ErrHandlerTimeout
	}
	if begins && !w.begun {
		w.begun = true
		w.copyHeader()
	}
	return f()
}

// answer is the status with which the request was answered in the handler's place, or 0.
func (w *timedWriter) answer() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answered
}

func (w *timedWriter) copyHeader() {
	h := w.inner.Header()
	clear(h)
	maps.Copy(h, w.header)
}

// finish is called when the handler has returned in time: it may have set headers alone, or trailers.
func (w *timedWriter) finish() { _ = w.do(false, func() error { w.copyHeader(); return nil }) }

func (w *timedWriter) Header() http.Header { return w.header }

func (w *timedWriter) WriteHeader(status int) {
	final := status >= http.StatusOK || status == http.StatusSwitchingProtocols
	_ = w.do(final, func() error {
		if h := w.inner.Header(); !final { // the headers are this response's, and not that of expire
			before := maps.Clone(h)
			defer func() { clear(h); maps.Copy(h, before) }()
			w.copyHeader()
		}
		w.inner.WriteHeader(status)
		return nil
	})
}

func (w *timedWriter) Write(p []byte) (n int, err error) {
	err = w.do(true, func() error {
		n, err = w.inner.Write(p)
		return err
	})
	return n, err
}

func (w *timedWriter) Flush() { _ = w.FlushError() }

func (w *timedWriter) FlushError() error {
	return w.do(true, http.NewResponseController(w.inner).Flush)
}

func (w *timedWriter) Hijack() (conn net.Conn, buf *bufio.ReadWriter, err error) {
	err = w.do(false, func() error {
		conn, buf, err = http.NewResponseController(w.inner).Hijack()
		w.begun = w.begun || err == nil
		return err
	})
	return conn, buf, err
}

// The methods that http.ResponseController looks for.

func (w *timedWriter) SetReadDeadline(at time.Time) error {
	return w.do(false, func() error { return http.NewResponseController(w.inner).SetReadDeadline(at) })
}

func (w *timedWriter) SetWriteDeadline(at time.Time) error {
	return w.do(false, func() error { return http.NewResponseController(w.inner).SetWriteDeadline(at) })
}

func (w *timedWriter) EnableFullDuplex() error {
	return w.do(false, http.NewResponseController(w.inner).EnableFullDuplex)
}

// CloseNotify is the http.CloseNotifier that gin takes to exist.
func (w *timedWriter) CloseNotify() <-chan bool { return closeNotify(w.ctx) }
