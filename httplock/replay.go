package httplock

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// Replay returns the worker's handler that runs parked requests through handler,
// in this process. Give it the handler that the server serves.
//
// What the handler answers is the result, 4xx and 5xx alike: the message is done, whether or not the request succeeded.
// Only after 429, 503 and what the route's [WithRetryStatuses] names is the request tried again
// (delayqueue.RetryLater): until it would be too old, after what Retry-After says, or else with delays that double up
// to 30 s. No attempt is spent, and the message becomes a dead letter when it would be too old by then: its result is
// the last response, with at most 1 KiB of the body (see docs/guarantees.md, What is tried again). It is tried again in
// the same way while a guard, or the function that authorizes its principal, is unavailable.
//
// A panic is a failed attempt, even if middleware in front of the guard recovers it. So is a response of 4xx or 5xx, or
// none at all, from a handler whose ctx had ended. A payload that does not hold a request is never tried again. When a
// guard on the way finds its key held, the error matches core.ErrConflict.
//
// What this process cannot run is handed back (delayqueue.HandBack) and logged, once per route:
// other processes may be able to. That is
//
//   - a stored form of a later release,
//   - a route that the handler does not have,
//   - a route that has lost its guard: nothing there decides whether the request may run,
//   - a request that was parked on a principal's behalf, without [WithReplayReauthorize] and without a
//     guard that is known to ask whether that one may still have it run,
//   - one that the guard itself refuses, such as for a key function that fails without a header
//     that was not stored, or a guard that is misconfigured,
//   - one that middleware in front of the guard refuses with 401, 403 or 429, or redirects
//     with 301, 307 or 308, as to https: let replays pass there, see [Replayed].
//
// Routes and guards are read before anything is called where that is possible: of an http.ServeMux with PerKey around
// its handlers, of FromConfig, and of any router with [WithRoutes]. Where it is not, a response of 404 or 405 that no
// guard has seen is that of a router without the route. Any other may be that of middleware, or of a handler without a
// guard, which ran once. It is logged: below 400 it is the result, after 503 the request is tried again, and others
// make it a dead letter. Where the guard is known, an answer in front of it is no run: but for 503 it makes the request
// a dead letter, to be redriven.
//
// The Worker holds the message's key, whether or not the route has a guard, until handler returns: a time-out in front
// of the guards is [Timeout], and not [http.TimeoutHandler], whose handler would run on after that. The Worker's Locker
// should be the one of the guards, or have the same client and prefix. Otherwise a replay conflicts with the worker's
// own lease, and the guards' Locker warns (core.WarnOtherLocker).
//
// The request has the RemoteAddr 192.0.2.1:1, which is nobody's (RFC 5737), and no TLS state. Its Host is that of the pattern of
// http.ServeMux under which it was parked, or [WithReplayHost]'s, and otherwise empty: it is
// never the client's. Its Traceparent is the message's Trace, if that has one. Its ctx is the worker's: it ends with the lease, and when the worker stops.
//
// The response of a message that is done is stored as its result, which TicketHandler serves: the status, headers by an
// allow-list (Allow, Content-Disposition, Content-Encoding, Content-Language, Content-Type, ETag, Last-Modified, Link,
// Location, Retry-After) and the beginning of the body. What exceeds the queue's WithMaxResult is cut.
//
// With a mistake in the arguments, which is logged once, every message is handed back. The error
// wraps core.ErrInvalidOption.
func Replay(handler http.Handler, opts ...ReplayOption) delayqueue.Handler {
	p := &replayer{handler: handler, maxBody: DefaultMaxResponseBody, kept: defaultResponseHeaders()}
	if err := p.configure(opts); err != nil {
		slog.Error("httplock: misconfigured: every replay fails", "error", err)
		return func(context.Context, delayqueue.Message) error { return delayqueue.HandBack(err) }
	}
	return p.replay
}

const (
	// DefaultMaxResponseBody is how many bytes of a replay's response body are stored, unless
	// WithMaxResponseBody says otherwise. It fits into the default size of a queue's results.
	DefaultMaxResponseBody = 64 << 10
	// maxMaxResponseBody bounds WithMaxResponseBody.
	maxMaxResponseBody = 64 << 20
)

// ReplayOption configures Replay.
type ReplayOption func(*replayer) error

// WithMaxResponseBody sets how many bytes of a response's body are stored. The rest is dropped, and
// the result is marked as truncated. Default 64 KiB; 0 to 64 MiB. The queue has its own cap,
// delayqueue.WithMaxResult, which should be 4 KiB higher.
func WithMaxResponseBody(n int) ReplayOption {
	return func(p *replayer) error {
		if n < 0 || n > maxMaxResponseBody {
			return invalid("WithMaxResponseBody(%d): want 0 to %d bytes", n, maxMaxResponseBody)
		}
		p.maxBody = n
		return nil
	}
}

// WithAllowedResponseHeaders adds response headers to those that are stored. Headers that carry credentials or ask for
// them, such as Set-Cookie, that belong to one connection, and Cache-Control, which is a result's own, are refused.
func WithAllowedResponseHeaders(names ...string) ReplayOption {
	return func(p *replayer) error { return addHeaders(p.kept, neverKept, "WithAllowedResponseHeaders", names) }
}

// WithReplayReauthorize sets f to decide, before any replay, whether principal may still have it run. It may be
// [WithReauthorize]'s function, which a guard that the replay reaches calls as well. An error that wraps [ErrForbidden]
// is the replay's result, 403; any other is tried again by the queue. r has the replay's ctx, and no credentials; an
// empty principal is anonymous. f must be safe for concurrent use.
//
// A request that was parked on a principal's behalf needs it, unless its route can be read
// beforehand and has a guard, which asks. Otherwise the request is handed back: if its route had
// lost the guard, it would run without being authorized.
func WithReplayReauthorize(f func(r *http.Request, principal string) error) ReplayOption {
	return func(p *replayer) error {
		if f == nil {
			return invalid("WithReplayReauthorize(nil)")
		}
		p.reauthorize = f
		return nil
	}
}

// WithRoutes names the routes of a router that Replay cannot read by itself, such as gin's, echo's and chi's.
// registered returns them, as "POST /orders/:id" or "/orders/{id}" for any method; it is called for each replay. A
// replay of another route is handed back before the router is called, and a 404 from one of these is its handler's
// answer. guards is what FromConfig of an adapter was given: a replay of a route without a guard is handed back too.
// Nil: guards are not known. The router must see paths as clients send them. Both must be safe for concurrent use.
func WithRoutes(registered func() []string, guards Routes) ReplayOption {
	return func(p *replayer) error {
		if registered == nil {
			return invalid("WithRoutes: registered is nil")
		}
		p.registered, p.guards = registered, guards
		return nil
	}
}

// WithTargetRewrite sets f to return the target of a replay: for routes that were renamed while requests were parked,
// or dead. f gets the method and the stored target, path and query as the client sent them, and returns the target to
// use, which begins with a slash. It is called for each replay, also of redriven requests, with the target as it was
// stored: leave it in place until nothing of the old route is left. It must be safe for concurrent use.
func WithTargetRewrite(f func(method, target string) string) ReplayOption {
	return func(p *replayer) error {
		if f == nil {
			return invalid("WithTargetRewrite(nil)")
		}
		p.rewrite = f
		return nil
	}
}

// replayer runs parked requests.
type replayer struct {
	handler http.Handler
	maxBody int
	kept    map[string]bool // response headers

	reauthorize func(r *http.Request, principal string) error
	rewrite     func(method, target string) string
	registered  func() []string
	guards      Routes

	warned warned
}

func (p *replayer) configure(opts []ReplayOption) error {
	if p.handler == nil {
		return invalid("Replay: the handler is nil")
	}
	for _, opt := range opts {
		if opt == nil {
			return invalid("Replay: an option is nil")
		}
		if err := opt(p); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the request that a message holds.
func (p *replayer) prepare(ctx context.Context, m delayqueue.Message) (*replay, *http.Request, error) {
	c, err := decode(m.Payload)
	switch {
	case errors.Is(err, errUnknownForm):
		return nil, nil, &unhandledError{err}
	case err != nil:
		return nil, nil, delayqueue.SkipRetry(err)
	}
	if p.rewrite != nil {
		c.Target = p.rewrite(c.Method, c.Target)
		if _, err := c.url(); err != nil {
			return nil, nil, &unhandledError{fmt.Errorf("WithTargetRewrite: %w", err)}
		}
	}
	replay := &replay{id: m.ID, key: m.Key, principal: m.Principal, idempotencyKey: slices.Clone(c.Header["Idempotency-Key"])}
	r, err := c.request(context.WithValue(ctx, replayKey{}, replay))
	if err != nil {
		return nil, nil, delayqueue.SkipRetry(err)
	}
	if m.Trace != "" {
		r.Header.Set("Traceparent", m.Trace)
	}
	return replay, r, nil
}

// unhandledError is why this process does not know how to run a message.
type unhandledError struct{ error }

func (e *unhandledError) Unwrap() error { return e.error }

func (p *replayer) replay(ctx context.Context, m delayqueue.Message) error {
	replay, r, err := p.prepare(ctx, m)
	if unhandled, _ := errors.AsType[*unhandledError](err); unhandled != nil {
		return p.handBack(ctx, m, unhandled.error)
	} else if err != nil {
		return err
	}
	target := *r.URL // handlers on the way may change theirs
	defer func() {
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll()
		}
	}()
	w := newRecorder(r, p.maxBody)
	at := p.locate(r)
	if err := at.unserved(); err != nil {
		return p.handBack(ctx, m, err)
	}
	switch err := p.authorize(replay, r, at); {
	case err == nil:
		p.handler.ServeHTTP(w, r)
	case errors.Is(err, ErrForbidden):
		replay.forbidden()
		problemForbidden.document(0).write(w, r)
	case errors.Is(err, errNoReauthorize):
		return p.handBack(ctx, m, err)
	default:
		return delayqueue.RetryLater(fmt.Errorf("httplock: replay of %s: %w: %w", m.ID, errNotAuthorized, err), 0)
	}
	w.begin()
	err = p.outcome(ctx, m, replay, at, w)
	result := w.result(&target, p.kept)
	if answered, _ := errors.AsType[*noResultError](err); answered != nil {
		result.shorten()
	} else if err != nil {
		return err
	}
	if err := result.keep(ctx); err != nil {
		slog.WarnContext(ctx, "httplock: the result of a replay was not kept", "id", m.ID, "error", err)
	}
	return err
}

// Parked says under which id and for whom a replayed request was parked.
type Parked struct {
	// ID is the ticket's. It stays the same if the request is replayed again.
	ID string
	// Principal is what WithPrincipal's function returned. Empty: anonymous.
	Principal string
}

// Replayed reports whether ctx is that of a replayed request, and returns its ticket's id and its principal.
// Credentials are not stored, so middleware that asks for them must let a replay pass and load the user from Principal
// instead: a replay that it refuses never runs, and expires. WithReauthorize decides whether the principal may still
// have the request run. A handler can recognize a second run by the ID.
//
// Headers do not matter here: only Replay can mark a ctx.
func Replayed(ctx context.Context) (Parked, bool) {
	if replay := replayFrom(ctx); replay != nil {
		return Parked{ID: replay.id, Principal: replay.principal}, true
	}
	return Parked{}, false
}

// replay is what a replayed request's ctx carries.
type replay struct {
	id, key, principal string
	idempotencyKey     []string // the request's Idempotency-Key

	mu           sync.Mutex // handlers may call guarded ones on other goroutines
	reached      bool       // a guard ran its handler under the key, or gave the request its result
	skipped      bool       // a guard let the request pass without a key
	statuses     []int      // the guards' WithRetryStatuses
	wroteNothing bool       // the outermost of these handlers returned without a response
	allowed      bool       // a guard made sure that the principal may have the request run
	conflict     error      // the first one that a guard met
	failure      error      // the first other reason why a guard did not run its handler
	panicked     error      // how the guard that returned last ended, which is the outermost one
	late         bool       // the time limit of Timeout ran out
}

type replayKey struct{}

func replayFrom(ctx context.Context) *replay {
	r, _ := ctx.Value(replayKey{}).(*replay)
	return r
}

// isFor reports whether req, which has an Idempotency-Key, is the replayed request: its
// handler may make others with its ctx.
func (r *replay) isFor(req *http.Request) bool {
	return slices.Equal(req.Header["Idempotency-Key"], r.idempotencyKey)
}

// passed records that a guard lets the replay pass, with or without its key. A
// nil replay is a request that came from outside.
func (r *replay) passed(m *Middleware, underKey bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statuses = append(r.statuses, m.retryStatuses...)
	if underKey {
		r.reached = true
	} else {
		r.skipped = true
	}
}

// returned records that the handler behind a guard has. Frameworks may begin a response
// for one that has not said anything, so that it cannot be told from the outside.
func (r *replay) returned(x Exchange) {
	if r == nil || x.Written == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wroteNothing = !x.Written()
}

// left records how a guard was left: by a panic with this value, which middleware in front may turn into a
// response, or with nil by none.
func (r *replay) left(panicked any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.panicked = nil; panicked != nil {
		r.panicked = fmt.Errorf("httplock: replay of %s: panic: %v\n\n%s", r.id, panicked, debug.Stack())
	}
}

// timedOut records that the handler returned after the time that Timeout gives.
func (r *replay) timedOut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late = true
}

// authorized records that the principal may have the request run.
func (r *replay) authorized() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.allowed = true
}

func (r *replay) isAuthorized() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.allowed
}

// forbidden records that the principal may not, which is a result.
func (r *replay) forbidden() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reached = true
}

// refused records that a guard did not let the replay pass. The key is empty if
// the guard got none. A nil replay is a request that came from outside.
func (r *replay) refused(key string, err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, core.ErrDeferred):
		r.reached = true // a policy has stored it elsewhere: that is a result
	case errors.Is(err, core.ErrConflict), errors.Is(err, errReplayWaits):
		hint := ""
		if key == r.key {
			hint = " (the message's own key: the worker's locker and the guard's must share client and prefix)"
		}
		r.conflict = cmp.Or(r.conflict, fmt.Errorf("httplock: replay of %s: %w%s: %w", r.id, core.ErrConflict, hint, err))
	default:
		r.failure = cmp.Or(r.failure, fmt.Errorf("httplock: replay of %s: %w", r.id, err))
	}
}

// request makes the request that a handler sees.
func (c *capture) request(ctx context.Context) (*http.Request, error) {
	u, err := c.url()
	if err != nil {
		return nil, fmt.Errorf("httplock: replay: %w", err)
	}
	r := &http.Request{
		Method: c.Method, URL: u, RequestURI: c.Target,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Host: c.Host, Header: c.Header, Body: http.NoBody, RemoteAddr: "192.0.2.1:1",
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if len(c.body) > 0 {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(c.body)), int64(len(c.body))
	}
	return r.WithContext(ctx), nil
}
