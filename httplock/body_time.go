package httplock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// timedBody is a body whose reads wait for the client for a bounded time in all. What the
// reader itself takes does not count. A read that blocks is ended by the read deadline of
// the connection, or of the HTTP/2 stream, if the writer can set one; if not, a read fails
// that begins after the time is used up.
//
// When the end of a body was read, net/http reads on in order to see that the client leaves,
// and takes an expired deadline for that. Middleware in front may have read it all into
// memory: then the deadline is set for the time of a read only.
type timedBody struct {
	io.ReadCloser
	of     *body
	writer http.ResponseWriter
	direct bool         // it is net/http's own, capped perhaps, over HTTP/1
	server bool         // the server has a ReadTimeout
	left   atomic.Int64 // nanoseconds
	ended  atomic.Bool  // the end was read
	over   atomic.Bool  // the guard is done: the connection may be another request's
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
	b.deadline(start.Add(left))
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		b.left.Store(0)
		return n, fmt.Errorf("%w: %w", errBodySlow, err)
	}
	b.left.Add(-int64(time.Since(start)))
	b.ended.Store(err == io.EOF)
	b.pause()
	return n, err
}

// pause is called between two reads: net/http itself may read the rest then, before it writes
// a response.
func (b *timedBody) pause() {
	if b.direct && !b.ended.Load() {
		b.deadline(time.Now().Add(time.Duration(b.left.Load())))
	} else {
		b.deadline(time.Time{})
	}
}

// limit sets how long reads may wait from now on.
func (b *timedBody) limit(d time.Duration) { b.left.Store(int64(d)) }

// end is called when nobody behind the guard reads any more. net/http may, before it uses
// the connection again.
func (b *timedBody) end() {
	if b.ReadCloser == nil {
		return
	}
	b.over.Store(true)
	if left := b.left.Load(); (b.direct || b.server) && left > 0 && !b.ended.Load() {
		b.deadline(time.Now().Add(time.Duration(left)))
	}
}

// isDirect reports whether a body is the one that net/http gave the request, or that one
// under a cap: middleware caps a body before it reads it into memory, not after.
func isDirect(r *http.Request) bool {
	switch fmt.Sprintf("%T", r.Body) {
	case "*http.body", "*http.expectContinueReader", "*http.maxBytesReader":
		return r.ProtoMajor == 1
	}
	return false
}

// deadline does nothing where the writer is not a connection's.
func (b *timedBody) deadline(at time.Time) {
	_ = http.NewResponseController(b.writer).SetReadDeadline(at)
}

// timedBodyKey marks the ctx of a handler whose body a guard bounds: guards further in
// leave it alone.
type timedBodyKey struct{}

// bodyTime is how long reads of the body may wait for the client: once before the key, and
// once more under it.
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

// key calls the key function, which may read the body, and replace it by one that reads the
// same.
func (p *requestState) key() (string, error) {
	r, b := p.x.Request, &p.body
	b.use(r)
	if b.whole || p.replay != nil || r.Context().Value(timedBodyKey{}) != nil {
		defer func() { b.use(r) }()
		return p.x.Key()
	}
	sent := r.Body
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	b.timed.ReadCloser, b.timed.of, b.timed.writer = sent, b, p.x.Writer
	b.timed.direct, b.timed.server = isDirect(r), server != nil && server.ReadTimeout > 0
	b.timed.limit(p.bodyTime())
	b.source, r.Body = &b.timed, &b.timed
	defer func() {
		if r.Body == b.source || bodyOf(r) == b {
			r.Body = sent // which the server knows
		} else {
			b.use(r)
		}
		switch { // what is left of a body that streams is the handler's, for as long as it likes
		case !p.streams() || b.whole:
		case len(b.head) == 0 && b.source == &b.timed:
			b.timed.ReadCloser, b.source = nil, sent
		case !b.timed.server:
			b.timed.limit(math.MaxInt64)
			b.timed.pause()
		}
	}()
	return p.x.Key()
}

// readAhead reads the body before the call joins a queue or takes its key: the whole of it
// if the call may wait or be parked, and the beginning if it is too long for that, or if
// the guard only rejects. A replay has its body in memory.
func (p *requestState) readAhead() error {
	if p.replay != nil || p.streams() {
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
	if p.replay != nil || p.idempotent != nil || p.m.guard.Policy() != nil || p.body.source != &p.body.timed || len(p.body.head) > 0 {
		return false
	}
	r := p.x.Request
	return namedBy(r.Header["Expect"], "100-continue") || r.ProtoMajor > 1 && r.ContentLength > p.m.body.readAhead
}

// boundRest bounds the time in which the handler reads what readAhead left. It returns the
// handler's ctx.
func (p *requestState) boundRest(ctx context.Context) context.Context {
	b := &p.body.timed
	if b.ReadCloser == nil {
		return ctx
	}
	if !p.body.whole && !p.streams() {
		b.limit(p.bodyTime())
		b.pause()
	}
	return context.WithValue(ctx, timedBodyKey{}, true)
}
