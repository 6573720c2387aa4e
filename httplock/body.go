package httplock

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// body is a request's body, of which the beginning may have been read into
// memory. It belongs to the request's goroutine.
type body struct {
	request *http.Request
	max     int64         // of what may be parked or compared
	source  io.ReadCloser // what is behind head
	timed   timedBody     // the source, if its time is bounded

	head  []byte // what buffer read
	whole bool   // head is all there is
	err   error
}

func newBody(r *http.Request, most int64) *body {
	return &body{request: r, max: most, source: r.Body, whole: isEmpty(r)}
}

// isEmpty reports whether a request is known to have no body.
func isEmpty(r *http.Request) bool { return r.Body == nil || r.Body == http.NoBody }

// buffer reads the body into memory, as far as n bytes. A longer body is not an error,
// and neither is one that middleware in front caps: its reader will see that.
func (b *body) buffer(n int64) error {
	missing := n + 1 - int64(len(b.head))
	if b.whole || b.err != nil || missing <= 0 {
		return b.unreadable()
	}
	buf := bytes.NewBuffer(b.head)
	if length := b.request.ContentLength; length > 0 {
		buf.Grow(int(min(length, missing, DefaultReadAhead)) + bytes.MinRead)
	}
	_, err := io.Copy(buf, io.LimitReader(b.source, missing))
	b.head = buf.Bytes()
	switch {
	case err == nil:
		b.whole = int64(len(b.head)) <= n
	case isCapped(err):
		b.err = fmt.Errorf("%w: %w", errBodyTooLarge, err)
	default:
		b.err = fmt.Errorf("%w: %w", errBodyUnreadable, err)
	}
	return b.unreadable()
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

// all returns the whole body.
func (b *body) all() ([]byte, error) {
	if b.request.ContentLength <= b.max { // else part of it in memory would help nobody
		_ = b.buffer(b.max)
	}
	switch {
	case b.err != nil:
		return nil, b.err
	case !b.whole || int64(len(b.head)) > b.max:
		return nil, fmt.Errorf("%w: more than %d bytes", errBodyTooLarge, b.max)
	}
	return b.head, nil
}

// reader returns the body from its beginning, for the handler.
func (b *body) reader() io.ReadCloser {
	switch {
	case b.whole && len(b.head) == 0:
		return b.request.Body
	case b.whole:
		return readCloser{bytes.NewReader(b.head), b.source}
	case len(b.head) == 0:
		return b.source
	default:
		return readCloser{io.MultiReader(bytes.NewReader(b.head), b.source), b.source}
	}
}

type readCloser struct {
	io.Reader
	io.Closer
}
