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
	max     int64

	read  bool   // buffer was called
	head  []byte // what it read
	whole bool   // head is all there is
	err   error
}

func newBody(r *http.Request, most int64) *body { return &body{request: r, max: most} }

// buffer reads the body into memory, once, up to the cap. A longer body is not
// an error.
func (b *body) buffer() error {
	if b.read {
		return b.err
	}
	b.read = true
	r := b.request
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		b.whole = true
		return nil
	case r.ContentLength > b.max:
		return nil // part of it in memory would help nobody
	}
	var err error
	b.head, err = io.ReadAll(io.LimitReader(r.Body, b.max+1))
	var capped *http.MaxBytesError
	switch {
	case errors.As(err, &capped):
		b.err = fmt.Errorf("%w: %w", errBodyTooLarge, err)
	case err != nil:
		b.err = fmt.Errorf("%w: %w", errBodyUnreadable, err)
	default:
		b.whole = int64(len(b.head)) <= b.max
	}
	return b.err
}

// all returns the whole body.
func (b *body) all() ([]byte, error) {
	if err := b.buffer(); err != nil {
		return nil, err
	}
	if !b.whole {
		return nil, fmt.Errorf("%w: more than %d bytes", errBodyTooLarge, b.max)
	}
	return b.head, nil
}

// reader returns the body from its beginning, for the handler.
func (b *body) reader() io.ReadCloser {
	rest := b.request.Body
	switch {
	case len(b.head) == 0:
		return rest
	case b.whole:
		return readCloser{bytes.NewReader(b.head), rest}
	default:
		return readCloser{io.MultiReader(bytes.NewReader(b.head), rest), rest}
	}
}

type readCloser struct {
	io.Reader
	io.Closer
}
