package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/perkey-go/perkey/delayqueue"
)

// resultVersion is the version of a result's stored form. A change that an older
// process would misread needs the next one.
const resultVersion = 1

// truncatedHeader says that part of a response was not kept.
const truncatedHeader = "Perkey-Truncated"

// result is a replay's response in the form that a queue stores: a line of JSON,
// and the body as it is.
type result struct {
	Version int `json:"v"`
	Status  int `json:"status"`
	// Header's values are strings of bytes, as a capture's are.
	Header    http.Header `json:"header,omitempty"`
	Truncated bool        `json:"truncated,omitempty"`

	body []byte
}

// isResult reports whether a response can have that status.
func isResult(status int) bool {
	return status >= http.StatusOK && status <= 999
}

func (r *result) encode() ([]byte, error) {
	return envelope(result{
		Version: resultVersion, Status: r.Status, Header: escapeAll(r.Header), Truncated: r.Truncated,
	}, r.body)
}

// decodeResult reads a stored form. What it returns makes a valid response.
func decodeResult(stored []byte) (*result, error) {
	fail := func(format string, args ...any) (*result, error) {
		return nil, fmt.Errorf("httplock: decode a result: "+format, args...)
	}
	r := &result{}
	var err error
	if r.body, err = openEnvelope(stored, r, resultVersion); err != nil {
		return fail("%w", err)
	}
	if r.Version != resultVersion {
		return fail("version %d, want %d", r.Version, resultVersion)
	}
	if !isResult(r.Status) {
		return fail("status %d", r.Status)
	}
	if !hasBody(r.Status) && len(r.body) > 0 {
		return fail("status %d with a body", r.Status)
	}
	if err := unescapeAll(r.Header, neverKept); err != nil {
		return fail("%w", err)
	}
	return r, nil
}

// maxRetried bounds what is kept of the body of a response after which a request is tried again.
const maxRetried = 1 << 10

// shorten makes the result of a response after which a request is tried again: if it is too old
// for that it is the last one.
func (r *result) shorten() {
	kind := r.Header["Content-Type"]
	r.Truncated = r.Truncated || len(r.body) > maxRetried
	r.Header, r.body = http.Header{}, r.body[:min(len(r.body), maxRetried)]
	if len(kind) > 0 {
		r.Header["Content-Type"] = kind
	}
}

// keep gives a result to the queue. What is too large for it is cut: the replay
// has happened, and must not happen again for its answer's sake.
func (r *result) keep(ctx context.Context) error {
	for {
		stored, err := r.encode()
		if err == nil {
			err = delayqueue.SetResult(ctx, stored)
		}
		switch {
		case !errors.Is(err, delayqueue.ErrResultTooLarge):
			return err
		case len(r.body) > 0:
			r.body = r.body[:len(r.body)/2]
		case len(r.Header) > 0:
			r.Header = nil
		default:
			return err
		}
		r.Truncated = true
	}
}

// write writes the response that was stored.
func (r *result) write(w http.ResponseWriter, to *http.Request) {
	h := w.Header()
	h["Content-Type"] = nil // net/http guesses none where the handler gave none
	for name, values := range r.Header {
		h[name] = slices.Clone(values)
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.Truncated {
		h.Set(truncatedHeader, "true")
	}
	if hasBody(r.Status) {
		h.Set("Content-Length", strconv.Itoa(len(r.body)))
	}
	w.WriteHeader(r.Status)
	if to.Method != http.MethodHead && len(r.body) > 0 {
		_, _ = w.Write(r.body)
	}
}

// absolute returns a response's Location so that it means the same wherever the
// response is read: a relative one is relative to the request's target.
func absolute(location string, target *url.URL) string {
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "" || u.Host != "" || strings.HasPrefix(location, "/") {
		return location
	}
	at := target.ResolveReference(u).String()
	if strings.HasPrefix(at, "//") { // it would read as a host
		return location
	}
	return at
}
