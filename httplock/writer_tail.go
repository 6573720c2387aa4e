package httplock

import (
	"io"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"
)

const (
	// tailSize is how much net/http buffers, over HTTP/1.1, until the handler returns.
	tailSize = 2 << 10
	// tailWait bounds for how long a tail is kept.
	tailWait = 100 * time.Millisecond
)

// tail is the end of a response, which its client gets after the key was released: one that sends its next request at once
// would otherwise meet its own key. Most ends need nothing: net/http sends them when the handler has returned, after the
// release. But over HTTP/1.1 a response with a Content-Length ends with its last byte, and long writes are sent at once. So
// its last tailSize bytes are written separately, into net/http's buffer.
//
// Only the goroutine of the request changes it.
type tail struct {
	kept bool                // the request has a key
	size int64               // of the response, as announced
	left int64               // bytes of it that are to come; 0: none, or it has no tail
	to   http.ResponseWriter // is flushed to send a tail
	mu   sync.Mutex          // of the writer, while the timer runs
	late *time.Timer         // sends what was written of a tail; nil: net/http would keep all of that anyway
}

// announced is called when a response begins, with its length as it was announced.
func (w *writer) announced(length string) {
	if n, err := strconv.ParseInt(length, 10, 64); err == nil && n > tailSize {
		if w.to = flushing(w.ResponseWriter); w.to != nil {
			w.size, w.left = n, n
		}
	}
}

// flushing returns what a flush of w begins at, past the guards' own writers, which take one for the handler's. It is nil if that
// would not reach net/http's, or a guard in front keeps the tail.
func flushing(w http.ResponseWriter) (to http.ResponseWriter) {
	switch of := w.(type) {
	case interface{ flushing() http.ResponseWriter }: // ours
		return of.flushing()
	case interface{ Unwrap() http.ResponseWriter }:
		next := of.Unwrap()
		if to = flushing(next); to == nil {
			return nil
		}
		if _, flushes := w.(http.Flusher); !flushes {
			return to
		}
		switch next.(type) {
		case interface{ flushing() http.ResponseWriter }:
			return nil
		case http.Flusher: // gin's takes it for granted
			return w
		}
		return nil
	}
	if reflect.TypeOf(w).String() != "*http.response" {
		return nil
	}
	return w
}

func (w *writer) flushing() http.ResponseWriter {
	if w.kept {
		return nil
	}
	return flushing(w.ResponseWriter)
}

// drop has the response go on without a tail: it is flushed, or nobody knows what comes. Called with mu held.
func (t *tail) drop() {
	if t.left = 0; t.late != nil {
		t.late.Stop()
		t.late = nil
	}
}

func (w *writer) Write(p []byte) (n int, err error) {
	w.begin(http.StatusOK)
	if w.left == 0 && w.late == nil {
		return w.ResponseWriter.Write(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if head := w.left - tailSize; 0 < head && head < int64(len(p)) && int64(len(p)) <= w.left {
		n, err = w.ResponseWriter.Write(p[:head])
	}
	rest := 0
	if err == nil {
		rest, err = w.ResponseWriter.Write(p[n:])
	}
	n += rest
	w.left -= min(int64(n), w.left)
	switch {
	case w.late != nil || w.left >= tailSize || w.size-w.left <= tailSize:
	case w.Header().Get("Content-Length") == "": // middleware in front encodes the response
		w.drop()
	default:
		w.late = time.AfterFunc(tailWait, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			defer func() { _ = recover() }() // of a writer in front; the release sends the tail
			w.sendTail()
		})
	}
	return n, err
}

// sendTail sends what was written of the tail. Called with mu held.
func (w *writer) sendTail() {
	if w.late != nil {
		_ = http.NewResponseController(w.to).Flush()
	}
}

// released is called when the key was released: net/http sends the tail now, unless the handler panicked.
func (w *writer) released(panicked bool) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if panicked {
		w.sendTail()
	}
	w.drop()
	w.kept = false
}

// ReadFrom lets the server send a file without copying it, but for its tail.
func (w *writer) ReadFrom(r io.Reader) (n int64, err error) {
	w.begin(http.StatusOK)
	if w.left == 0 && w.late == nil {
		return io.Copy(w.ResponseWriter, r)
	}
	if head := w.left - tailSize; head > 0 {
		part := &io.LimitedReader{R: r, N: head}
		whole, limited := r.(*io.LimitedReader)
		if limited { // sendfile sees through one only
			part.R, part.N = whole.R, min(whole.N, head)
		}
		n, err = io.Copy(w.ResponseWriter, part)
		w.left -= n
		if limited {
			whole.N -= n
		}
		if err != nil || n < head {
			return n, err
		}
	}
	rest, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, tailSize))
	return n + rest, err
}
