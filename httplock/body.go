package httplock

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
)

// body is a request's body, of which the beginning may be in memory: one buffer for the key function, for
// idempotency, for parking and for the handler. It belongs to the request's goroutine.
type body struct {
	request *http.Request
	source  io.ReadCloser // what is behind head
	timed   timedBody     // the source, if its time is bounded
	memory  memoryShare

	head  []byte // what was read
	whole bool   // head is all there is
	err   error

	lent      *bodyReader // what a function reads from now; nil: none does
	lentMost  int64       // how many bytes functions may read that put nothing back
	overdrawn bool        // one read more
	starved   bool        // one met errBodiesFull, which it may have kept to itself

	state bodyState // when the guard began
	front frontCheck
}

// bodyOf is the body of a request: that of the guard that has it, if one has.
func bodyOf(r *http.Request) *body {
	if reader, is := r.Body.(*bodyReader); is && (reader.keeps || !reader.begun && len(reader.rest) == len(reader.of.head)) {
		return reader.of
	}
	b := &body{}
	b.use(r)
	return b
}

// use begins with the body that the request has now. One that a guard in front has in memory is not copied.
func (b *body) use(r *http.Request) {
	b.request, b.source, b.state = r, r.Body, stateOf(r)
	b.head, b.whole, b.err, b.overdrawn, b.front = nil, isEmpty(r), nil, false, frontCheck{}
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
		if err := b.read(n + 1); err != nil {
			return err
		}
	}
	return b.unreadable()
}

// read reads once, into a head of most bytes at the most. Its error is errBodiesFull; that of the body is in b.err.
func (b *body) read(most int64) error {
	if err := b.grow(most); err != nil {
		return err
	}
	n, err := b.source.Read(b.head[len(b.head):min(int64(cap(b.head)), most)])
	b.head = b.head[:len(b.head)+n]
	switch {
	case err == nil:
	case err == io.EOF:
		b.whole = true
	case isCapped(err):
		b.err = fmt.Errorf("%w: %w", errBodyTooLarge, err)
	default:
		b.err = fmt.Errorf("%w: %w", errBodyUnreadable, err)
	}
	return nil
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

// isCapped reports whether err is that of middleware in front that caps a body: http.MaxBytesReader, or one of a framework,
// whose status is 413.
func isCapped(err error) bool {
	if _, capped := errors.AsType[*http.MaxBytesError](err); capped {
		return true
	}
	var coded interface{ StatusCode() int }
	if errors.As(err, &coded) {
		return coded.StatusCode() == http.StatusRequestEntityTooLarge
	}
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() != reflect.Struct {
		return false
	}
	code := v.FieldByName("Code") // of echo v4's errors
	return code.CanInt() && code.Int() == http.StatusRequestEntityTooLarge
}

// unreadable is the error of buffer that no reader of the body could do without.
func (b *body) unreadable() error {
	if errors.Is(b.err, errBodyTooLarge) {
		return nil
	}
	return b.err
}

// all returns the whole body as the client sent it, of most bytes at the most. The error matches errBodyGone if that is
// not known.
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
	return b.asSent()
}

// reader returns the body from its beginning, for the handler.
func (b *body) reader() io.ReadCloser {
	switch {
	case b.whole && len(b.head) == 0 && b.state != untouchedBody:
		return b.request.Body
	case len(b.head) == 0 && b.err == nil && !b.whole:
		return b.source
	}
	return &bodyReader{of: b, rest: b.head, whole: b.whole, source: b.source, err: b.unreadable()}
}

// bodyReader reads a body from its beginning.
type bodyReader struct {
	of     *body
	rest   []byte // of what is in memory
	whole  bool   // nothing is behind that
	err    error  // what is behind that
	source io.ReadCloser
	begun  bool // some of it was read
	keeps  bool // what is read of the source stays in memory
}

func (r *bodyReader) Read(p []byte) (n int, err error) {
	if len(r.rest) == 0 && r.keeps {
		if err := r.of.more(r); err != nil {
			return 0, err
		}
	}
	switch {
	case len(r.rest) > 0:
		n, r.begun = copy(p, r.rest), true
		r.rest = r.rest[n:]
		return n, nil
	case r.err != nil:
		return 0, r.err
	case r.whole:
		return 0, io.EOF
	}
	r.begun = true
	return r.source.Read(p)
}

func (r *bodyReader) Close() error { return r.source.Close() }

// lend calls f, which may read the body of r: what it reads stays in memory for whoever reads next. f may also put another
// body into r that reads the same. An error beside f's: that of cut.
func (b *body) lend(r *http.Request, f func() error) (err error) {
	sent := r.Body
	if isEmpty(r) {
		defer func() {
			if !isEmpty(r) {
				b.use(r)
			}
		}()
		return f()
	}
	b.lent = &bodyReader{}
	r.Body = b.again()
	defer func() {
		b.lent.keeps = false // it may be what reads the other body
		b.lent = nil
		_, bare := r.Body.(*bodyReader)
		if reader, _ := behind(r.Body); reader != nil && reader.of == b && (bare || reader.begun) { // f may have capped what it read
			r.Body = sent // which the server knows
		} else {
			b.use(r)
		}
		if cut := b.cut(); cut != nil {
			err = cut
		}
	}()
	return f()
}

// cut is why the request is refused whatever a function made of its body: it read more than lentMost bytes and put nothing
// back, so that the handler would see the rest alone; or it did not get all of the body, and there was no memory for it.
func (b *body) cut() error {
	switch {
	case b.starved:
		return errBodiesFull
	case b.overdrawn:
		return b.err
	}
	return nil
}

// again returns the body from its beginning: for the next reader in a function that it is lent to, or for the handler.
func (b *body) again() io.ReadCloser {
	if b.lent == nil {
		return b.reader()
	}
	*b.lent = bodyReader{of: b, rest: b.head, whole: b.whole, source: b.source, keeps: true}
	return b.lent
}

// more reads on for a function that the body is lent to. Beyond lentMost bytes it is the function's, which may put another
// body in its place.
func (b *body) more(r *bodyReader) error {
	had := int64(len(b.head))
	if had > b.lentMost && !b.whole && b.err == nil {
		b.overdrawn = true
		b.err = fmt.Errorf("%w: a function that the guard called has read more than %d bytes of it", errBodyTooLarge, b.lentMost)
	}
	for !b.whole && b.err == nil && int64(len(b.head)) == had {
		if err := b.read(b.lentMost + 1); err != nil {
			b.starved = true
			return err
		}
	}
	r.rest, r.whole, r.err = b.head[had:], b.whole, b.unreadable()
	return nil
}
