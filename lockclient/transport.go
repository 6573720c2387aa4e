package lockclient

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"time"
)

const (
	// DefaultMaxAttempts is how often a request is sent at most, without [WithMaxAttempts].
	DefaultMaxAttempts = 5
	// DefaultMaxWait is how long a request waits for its response at most, without [WithMaxWait].
	DefaultMaxWait = time.Minute

	minDelay = 100 * time.Millisecond // before a request is sent again
	maxDrain = 64 << 10               // read of a body that nobody wants, so that its connection can be used again
)

const idempotencyKey = "Idempotency-Key"

// Transport is an [http.RoundTripper] that sends refused requests again and follows parked ones to their response. The
// package's documentation says which. [New] makes one. It is safe for concurrent use if its base is.
type Transport struct {
	base        http.RoundTripper
	maxAttempts int
	maxWait     time.Duration
	makeKeys    bool
}

// Option configures a [Transport].
type Option func(*Transport) error

// WithMaxAttempts sets how often a request is sent at most: 1 never sends it again. It also bounds how often in a row asking for
// the ticket may fail. Default [DefaultMaxAttempts].
func WithMaxAttempts(n int) Option {
	return func(t *Transport) error {
		if n < 1 {
			return fmt.Errorf("lockclient: WithMaxAttempts(%d): want 1 or more", n)
		}
		t.maxAttempts = n
		return nil
	}
}

// WithMaxWait sets for how long after its first attempt a request is sent again, its ticket is followed, and a refusal or a
// receipt is read, if it came in time: the last one is read for a second. An attempt whose response has not begun by then goes on. The request's context may end all of it earlier. Default [DefaultMaxWait].
func WithMaxWait(d time.Duration) Option {
	return func(t *Transport) error {
		if d <= 0 {
			return fmt.Errorf("lockclient: WithMaxWait(%s): want more than 0", d)
		}
		t.maxWait = d
		return nil
	}
}

// WithIdempotencyKeys gives each POST and PATCH that has no Idempotency-Key a random one, so that it may be sent again.
// It is for services that honor the header on all their routes (httplock.WithIdempotency): others ignore it, and could
// then run twice a request whose connection was lost.
func WithIdempotencyKeys() Option {
	return func(t *Transport) error {
		t.makeKeys = true
		return nil
	}
}

// New returns a Transport that sends its requests by base. Nil is [http.DefaultTransport].
func New(base http.RoundTripper, opts ...Option) (*Transport, error) {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &Transport{base: base, maxAttempts: DefaultMaxAttempts, maxWait: DefaultMaxWait}
	for _, opt := range opts {
		if opt == nil {
			return nil, errors.New("lockclient: an option is nil")
		}
		if err := opt(t); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// CloseIdleConnections closes those of the base, if it can. [http.Client.CloseIdleConnections] calls it.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// RoundTrip sends r, as often as need be, and returns the response: of a parked request the one that its replay was
// answered with, or a [TicketError]. When r may not be sent again, or the time is over, it returns the last response or error.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.makeKeys && (r.Method == http.MethodPost || r.Method == http.MethodPatch) && r.Header.Get(idempotencyKey) == "" {
		key := keyBefore(r)
		r = r.Clone(r.Context())
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header.Set(idempotencyKey, cmp.Or(key, rand.Text()))
	}
	until := time.Now().Add(t.maxWait)
	resp, err := t.send(r, until, refusals)
	if err != nil || resp.StatusCode != http.StatusAccepted {
		return resp, err
	}
	return t.follow(r, resp, until)
}

// keyBefore returns the key that was made for a request whose redirect r follows: it is the same request.
func keyBefore(r *http.Request) string {
	if r.Response == nil || r.Response.Request == nil || r.Response.Request.Method != r.Method {
		return ""
	}
	return r.Response.Request.Header.Get(idempotencyKey)
}

// send sends r, and waits and sends it again for as long as its connection is lost or a response of one of the statuses says when
// to try again.
func (t *Transport) send(r *http.Request, until time.Time, statuses []int) (*http.Response, error) {
	ctx := r.Context()
	for attempt := 1; ; attempt++ {
		resp, err := t.attempt(r)
		if attempt == t.maxAttempts || !repeatable(r) {
			return resp, err
		}
		after, ok := backoff(attempt), true
		if err == nil {
			if !slices.Contains(documents, resp.StatusCode) {
				return resp, nil
			}
			read := cancelAt(resp, until)
			if !cut(resp) {
				after, ok = refusedFor(resp, statuses)
			}
			read()
		}
		if !ok {
			return resp, err
		}
		if after = max(after, minDelay); after >= room(ctx, until) {
			return resp, err
		}
		if resp != nil {
			closed := cancelAt(resp, until)
			discard(resp.Body)
			closed()
		}
		if err := sleep(ctx, after+jitter(attempt, after, room(ctx, until)-after)); err != nil {
			return nil, err
		}
		if r, err = again(r); err != nil {
			return nil, err
		}
	}
}

// attempt sends r once. What is read of the response can be given up.
func (t *Transport) attempt(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Upgrade") != "" { // such a body is written to as well
		return t.base.RoundTrip(r)
	}
	ctx, cancel := context.WithCancel(r.Context())
	resp, err := t.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, err
	}
	resp.Request = r
	resp.Body = &body{resp.Body, resp.Body, cancel}
	return resp, nil
}

// body is that of a response.
type body struct {
	io.Reader
	io.Closer
	cancel context.CancelFunc // ends what is read of it
}

func (b *body) Close() error {
	defer b.cancel() // afterwards: what was read to its end leaves a connection that can be used again
	return b.Closer.Close()
}

// documents are the statuses of refusals and receipts.
var documents = append(slices.Clone(refusals), http.StatusAccepted)

// readTime is how long a response that has begun is read at least.
const readTime = time.Second

// cancelAt has what is read of a response fail from a time on, unless done is called before.
func cancelAt(resp *http.Response, until time.Time) (done func()) {
	b, ok := resp.Body.(*body)
	if !ok {
		return func() {}
	}
	timer := time.AfterFunc(max(time.Until(until), readTime), b.cancel)
	return func() { timer.Stop() }
}

// repeatable reports whether r does no harm twice, and can be sent twice.
func repeatable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete,
		"QUERY", "PROPFIND", "REPORT", "SEARCH":
		return true
	}
	return r.Header.Get(idempotencyKey) != ""
}

// again returns r with its body from the beginning.
func again(r *http.Request) (*http.Request, error) {
	if r.Body == nil || r.GetBody == nil {
		return r, nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, fmt.Errorf("lockclient: the body cannot be sent again: %w", err)
	}
	r = r.WithContext(r.Context()) // a copy
	r.Body = body
	return r, nil
}

// room is how long there is to wait.
func room(ctx context.Context, until time.Time) time.Duration {
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	return time.Until(until)
}

// jitter keeps requests that were refused together from coming back together: it grows with the attempts, from half of
// what they were told to wait to twice as much.
func jitter(attempt int, after, most time.Duration) time.Duration {
	return mathrand.N(max(1, min(after/2*time.Duration(min(attempt, 4)), most)))
}

// backoff is how long to wait after as many failures that say nothing of it.
func backoff(failures int) time.Duration { return minDelay << min(failures-1, 6) }

// sleep waits for d. It returns the cause if ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// discard closes a body so that its connection can be used again.
func discard(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, maxDrain)
	_ = body.Close()
}
