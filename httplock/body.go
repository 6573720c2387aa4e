package httplock

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// body is a request's body, of which the beginning may be in memory: one buffer for the key function, for
// idempotency, for parking and for the handler. It belongs to the request's goroutine.
type body struct {
	request *http.Request
	source  io.ReadCloser // what is behind head
	timed   timedBody     // the source, if its time is bounded
	memory  memoryShare

	head  []byte // what buffer read
	whole bool   // head is all there is
	err   error
}

// bodyOf is the body of a request: that of the guard that has it, if one has.
func bodyOf(r *http.Request) *body {
	switch source := r.Body.(type) {
	case *timedBody:
		return source.of
	case *bodyReader:
		if !source.begun && len(source.rest) == len(source.of.head) {
			return source.of
		}
	}
	b := &body{}
	b.use(r)
	return b
}

// use begins with the body that the request has now. One that a guard in front has in memory is not copied.
func (b *body) use(r *http.Request) {
	b.request, b.source = r, r.Body
	b.head, b.whole, b.err = nil, isEmpty(r), nil
	if front, ok := r.Body.(*bodyReader); ok && front.whole && !front.begun {
		b.source, b.head, b.whole = front.source, front.rest, true
	}
}

// isEmpty reports whether a request is known to have no body.
func isEmpty(r *http.Request) bool { return r.Body == nil || r.Body == http.NoBody }

// buffer reads the body into memory, as far as n bytes. A longer body is not an error,
// and neither is one that middleware in front caps: its reader will see that.
func (b *body) buffer(n int64) error {
	if err := b.memory.take(int64(cap(b.head))); err != nil { // a guard in front has read it
		return err
	}
	for !b.whole && b.err == nil && int64(len(b.head)) <= n {
		if err := b.grow(n + 1); err != nil {
			return err
		}
		room := b.head[len(b.head):min(int64(cap(b.head)), n+1)]
		read, err := b.source.Read(room)
		b.head = b.head[:len(b.head)+read]
		switch {
		case err == nil:
		case err == io.EOF:
			b.whole = true
		case isCapped(err):
			b.err = fmt.Errorf("%w: %w", errBodyTooLarge, err)
		default:
			b.err = fmt.Errorf("%w: %w", errBodyUnreadable, err)
		}
	}
	return b.unreadable()
}

// firstBuffer is the size of a body's first buffer. The next ones are 16 times as large, or 4 times if
// the body's length is not known: a client that announces much and sends little gets little.
const firstBuffer = 4 << 10

// grow makes room for at least a byte more, and for no more than most in all.
func (b *body) grow(most int64) error {
	size, length := int64(cap(b.head)), b.request.ContentLength
	if int64(len(b.head)) < size {
		return nil
	}
	next := max(4*size, firstBuffer)
	if length >= size { // middleware that decompresses leaves the header as it was
		next, most = max(16*size, firstBuffer), min(most, length+1)
	}
	next = min(next, most)
	if err := b.memory.take(next); err != nil {
		return err
	}
	b.head = append(make([]byte, 0, next), b.head...)
	return nil
}

func isCapped(err error) bool {
	_, capped := errors.AsType[*http.MaxBytesError](err)
	return capped
}

// unreadable is the error of buffer that no reader of the body could do without.
func (b *body) unreadable() error {
	if errors.Is(b.err, errBodyTooLarge) {
		return nil
	}
	return b.err
}

// all returns the whole body, of most bytes at the most.
func (b *body) all(most int64) ([]byte, error) {
	if b.request.ContentLength <= most { // else part of it in memory would help nobody
		if err := b.buffer(most); err != nil {
			return nil, err
		}
	}
	switch {
	case b.err != nil:
		return nil, b.err
	case !b.whole || int64(len(b.head)) > most:
		return nil, fmt.Errorf("%w: more than %d bytes", errBodyTooLarge, most)
	}
	return b.head, nil
}

// reader returns the body from its beginning, for the handler.
func (b *body) reader() io.ReadCloser {
	switch {
	case b.whole && len(b.head) == 0:
		return b.request.Body
	case len(b.head) == 0:
		return b.source
	}
	return &bodyReader{of: b, rest: b.head, whole: b.whole, source: b.source}
}

// bodyReader reads a body from its beginning.
type bodyReader struct {
	of     *body
	rest   []byte // of what is in memory
	whole  bool   // nothing is behind that
	source io.ReadCloser
	begun  bool
}

func (r *bodyReader) Read(p []byte) (n int, err error) {
	r.begun = true
	switch {
	case len(r.rest) > 0:
		n = copy(p, r.rest)
		r.rest = r.rest[n:]
		return n, nil
	case r.whole:
		return 0, io.EOF
	}
	return r.source.Read(p)
}

func (r *bodyReader) Close() error { return r.source.Close() }
