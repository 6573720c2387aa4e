package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// timedBody is a body whose reads wait for the client for a bounded time in all. What the reader itself takes does not
// count. A read that blocks is ended by the read deadline of the connection, or of the HTTP/2 stream, if the writer can
// set one; if not, a read fails that begins after the time is used up.
//
// Nobody can ask for the deadline that the server's ReadTimeout, or middleware in front, has set.
// So none is set before the time is used up: then one that is past. But net/http itself reads
// the rest of an HTTP/1 body before it writes a response, when no read of ours is under way: without
// a ReadTimeout, which bounds that, a deadline is set once the handler runs, or the guard is done.
type timedBody struct {
	io.ReadCloser
	writer http.ResponseWriter
	direct bool         // it is net/http's own, or passes that on, over HTTP/1, and the server has no ReadTimeout
	rest   bool         // and the handler's: deadlines are set
	left   atomic.Int64 // nanoseconds
	ended  atomic.Bool  // the end was read
	over   atomic.Bool  // the guard is done: the connection may be another request's
	mu     sync.Mutex   // the connection's deadline is set under it, but by who reads
}

func (b *timedBody) Read(p []byte) (int, error) {
	if b.over.Load() {
		return b.ReadCloser.Read(p)
	}
	start, left := time.Now(), time.Duration(b.left.Load())
	if left <= 0 {
		b.deadline(start) // so that the server does not wait for the rest either
		return 0, errBodySlow
	}
	n, late, err := b.read(p, start, left)
	if late || errors.Is(err, os.ErrDeadlineExceeded) {
		b.left.Store(0)
		return n, fmt.Errorf("%w: %w", errBodySlow, cmp.Or(err, os.ErrDeadlineExceeded))
	}
	b.left.Add(-int64(time.Since(start)))
	b.ended.Store(errors.Is(err, io.EOF))
	b.pause()
	return n, err
}

// read has a read end when the time is used up.
func (b *timedBody) read(p []byte, start time.Time, left time.Duration) (n int, late bool, err error) {
	if b.rest {
		b.deadline(start.Add(left))
		n, err = b.ReadCloser.Read(p)
		return n, false, err
	}
	done := false
	timer := time.AfterFunc(left, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !done && !b.over.Load() {
			late = b.deadline(time.Now())
		}
	})
	n, err = b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	done = true
	timer.Stop()
	return n, late, err
}

// pause is called between two reads.
func (b *timedBody) pause() {
	if b.rest && b.ended.Load() {
		b.deadline(time.Time{})
	} else if b.rest {
		b.deadline(time.Now().Add(time.Duration(b.left.Load())))
	}
}

// end is called when nobody behind the guard reads any more. net/http may, before it uses the connection again.
func (b *timedBody) end() {
	if b.ReadCloser == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over.Store(true)
	if left := b.left.Load(); b.direct && left > 0 && !b.ended.Load() {
		b.deadline(time.Now().Add(time.Duration(left)))
	}
}

// deadline reports false, and does nothing, where the writer is not a connection's.
func (b *timedBody) deadline(at time.Time) bool {
	return http.NewResponseController(b.writer).SetReadDeadline(at) == nil
}

// timedBodyKey marks the ctx of a handler whose body a guard bounds: guards further in leave it alone.
type timedBodyKey struct{}

// bodyTime is how long reads of the body may wait for the client: once before the key, and once more under it.
func (p *requestState) bodyTime() time.Duration {
	d, ctx := p.m.body.timeout, p.x.Request.Context()
	if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok && server.ReadTimeout > 0 {
		d = min(d, server.ReadTimeout)
	}
	if deadline, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(deadline))
	}
	return d
}

// streams reports whether the request's body is for the handler alone.
func (p *requestState) streams() bool {
	return p.m.body.stream || p.x.Request.Method == http.MethodConnect
}

// open begins with the body, of which reads wait for a bounded time from now on.
func (p *requestState) open() {
	if p.opened {
		return
	}
	p.opened = true
	r, b := p.x.Request, &p.body
	b.use(r)
	b.lentMost = max(p.m.body.max, p.m.body.readAhead)
	if b.whole || p.replay != nil || r.Context().Value(timedBodyKey{}) != nil {
		return
	}
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	b.timed.ReadCloser, b.timed.writer = r.Body, p.x.Writer
	b.timed.direct = r.ProtoMajor == 1 && b.state != unknownBody && (server == nil || server.ReadTimeout <= 0)
	b.timed.left.Store(int64(p.bodyTime()))
	b.source = &b.timed
}

// lend calls one of the service's functions, which may read the request's body.
func (p *requestState) lend(f func() error) error {
	p.open()
	return p.body.lend(p.x.Request, f)
}

// key calls the key function.
func (p *requestState) key() (key string, err error) {
	err = p.lend(func() (err error) {
		key, err = p.x.Key()
		return err
	})
	return key, err
}

// leave leaves what nobody has read of a body that streams to the handler, for as long as it likes.
func (p *requestState) leave() {
	b := &p.body
	switch {
	case !p.streams() || b.whole || b.timed.ReadCloser == nil:
	case len(b.head) == 0 && b.source == &b.timed:
		b.source, b.timed.ReadCloser = b.timed.ReadCloser, nil
	default:
		b.timed.direct = false
		b.timed.left.Store(math.MaxInt64)
	}
}

// readAhead reads the body before the call joins a queue or takes its key: the whole of it if the call may wait or be
// parked, and the beginning if it is too long for that, or if the guard only rejects. A replay has its body in memory.
func (p *requestState) readAhead() error {
	if p.replay != nil || p.streams() {
		p.leave()
		return nil
	}
	n := p.m.body.readAhead
	if p.m.guard.Policy() != nil && p.x.Request.ContentLength <= p.m.body.max {
		n = p.m.body.max
	}
	return p.body.buffer(n)
}

// asksFirst reports whether the client would rather hear of a held key before it sends its body: by Expect:
// 100-continue. Over HTTP/2 net/http does not show that header, and bodies that are not read ahead as a whole are
// taken to have it. Where a request may wait, or its Idempotency-Key may have an answer, its body is needed anyway.
func (p *requestState) asksFirst() bool {
	if p.replay != nil || p.idempotent != nil || p.m.guard.Policy() != nil || p.streams() || p.body.source != &p.body.timed || len(p.body.head) > 0 {
		return false
	}
	r := p.x.Request
	return namedBy(r.Header["Expect"], "100-continue") || r.ProtoMajor > 1 && r.ContentLength > p.m.body.readAhead
}

// boundRest bounds the time in which the handler reads what readAhead left. It returns the handler's ctx.
func (p *requestState) boundRest(ctx context.Context) context.Context {
	b := &p.body.timed
	if b.ReadCloser == nil {
		return ctx
	}
	if !p.body.whole && !p.streams() {
		b.left.Store(int64(p.bodyTime()))
		b.rest = b.direct
		b.pause()
	}
	return context.WithValue(ctx, timedBodyKey{}, true)
}
