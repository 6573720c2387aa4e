package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/perkey-go/perkey/core"
)

// WithPrincipal sets the function that says who sends a request. It does not authenticate: the principal decides on
// whose behalf a request is parked, to whom an Idempotency-Key belongs, and which requests [WithMaxWaitersPerPrincipal]
// counts together. principal returns an id, such as a user's, or an address where nobody signs in: at most 256
// printable bytes, and no secret, since it is stored with a parked request. It is called once for each request that
// needs the key, not for replays, and must be safe for concurrent use. It may read the body, as a [KeyFunc] may.
//
// Empty means anonymous, which a request with credentials (see [WithCredentialHeaders]) is not: it is not parked then,
// but answered as if the guard rejected it, and refused with 500 if it has an Idempotency-Key. For requests that have
// credentials but no user, such as a visitor's with cookies, return a common name, such as "visitor".
//
// An error of principal refuses a request that has an Idempotency-Key or would be parked, and with
// WithMaxWaitersPerPrincipal any request: the answer is 403 if the error wraps [ErrForbidden], and
// otherwise 500. Other requests run if the key is free.
//
// A guard whose policy may park requests, or that has [WithIdempotency], needs WithPrincipal or [WithAnonymous]:
// without one of them New returns an error. One that may park needs [WithReauthorize] too. A policy is known to
// park if it is a core.PreferencePolicy that honors Async, as delayqueue.Policy is. With another policy that
// parks, New returns no error: without WithPrincipal or WithAnonymous, requests with credentials are not parked.
func WithPrincipal(principal func(*http.Request) (string, error)) Option {
	return func(m *Middleware) error {
		if principal == nil {
			return invalid("WithPrincipal(nil)")
		}
		m.principal = principal
		return nil
	}
}

// WithReauthorize sets the function that decides whether the principal of a parked request may still have it run,
// perhaps long after it was parked. It is called before the handler of a replay runs, whether or not WithSkip lets it
// pass, and for anonymous requests too, with an empty principal. An error that wraps [ErrForbidden] is the replay's
// result: its status is 403, and the handler never runs. Any other error is tried again by the queue. [Replay] may need
// it too: see [WithReplayReauthorize]. r has the replay's ctx, and no credentials. reauthorize must be safe for
// concurrent use.
func WithReauthorize(reauthorize func(r *http.Request, principal string) error) Option {
	return func(m *Middleware) error {
		if reauthorize == nil {
			return invalid("WithReauthorize(nil)")
		}
		m.reauthorize = reauthorize
		return nil
	}
}

// WithAnonymous declares that it does not matter who sends a request, whatever its credentials: for routes that do not
// look at them. Requests are parked without them, and run on nobody's behalf; all clients share their Idempotency-Keys.
// See [WithPrincipal] for the others.
func WithAnonymous() Option {
	return func(m *Middleware) error {
		m.anonymous = true
		return nil
	}
}

// checkPrincipal is called once all options are known.
func (m *Middleware) checkPrincipal() error {
	parks, known := m.guard.Honors(core.Preference{Async: true}).Async, m.principal != nil
	switch {
	case known && m.anonymous:
		return invalid("WithPrincipal and WithAnonymous exclude one another")
	case m.reauthorize != nil && !known:
		return invalid("WithReauthorize needs WithPrincipal, which says who sends a request")
	case m.waiters != nil && !known:
		return invalid("WithMaxWaitersPerPrincipal needs WithPrincipal, which says who sends a request")
	case parks && !known && !m.anonymous:
		return invalid("the guard's policy may park requests, and nothing says on whose behalf: want WithPrincipal and WithReauthorize, " +
			"or WithAnonymous if the route does not look at who sends a request")
	case parks && known && m.reauthorize == nil:
		return invalid("the guard's policy may park requests, and nothing says whether their principals may still have them run " +
			"later: want WithReauthorize")
	case m.idempotency != nil && !known && !m.anonymous:
		return invalid("WithIdempotency keeps responses, and nothing says whose they are: want WithPrincipal, " +
			"or WithAnonymous if all clients may see them")
	}
	return nil
}

type frameworkKey struct{}

// FrameworkFrom returns the Framework of the [Exchange], given the ctx of the request that [WithPrincipal]'s function
// gets, and that of the [Match], given the ctx of a key function's request. It is for adapters. Nil: there is none.
func FrameworkFrom(ctx context.Context) any { return ctx.Value(frameworkKey{}) }

// onBehalfOf returns a request's principal, or why nothing may be stored on anybody's behalf.
func (p *requestState) onBehalfOf() (principal string, err error) {
	m, r := p.m, p.x.Request
	if m.principal != nil {
		err = p.lend(func() (err error) {
			principal, err = m.principalOf(p.x)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("httplock: the principal function failed: %w", err)
		}
	}
	if principal == "" && !m.anonymous && m.carriesCredentials(r) {
		return "", errCredentials
	}
	return principal, nil
}

func (m *Middleware) principalOf(x Exchange) (string, error) {
	if x.Framework == nil {
		return m.principal(x.Request)
	}
	seen := x.Request.WithContext(context.WithValue(x.Request.Context(), frameworkKey{}, x.Framework))
	defer putBack(x.Request, seen, *x.Request)
	return m.principal(seen)
}

// authorized asks whether a replay may still be run on its principal's behalf, and writes the response if it may not.
func (p *requestState) authorized() bool {
	m, x, replay := p.m, p.x, p.replay
	if m.reauthorize == nil {
		return true
	}
	err := p.lend(func() error { return m.reauthorize(x.Request, replay.principal) })
	if err == nil {
		replay.authorized()
		return true
	}
	err = fmt.Errorf("httplock: %w: %w", errNotAuthorized, err)
	if errors.Is(err, ErrForbidden) {
		m.logger().InfoContext(x.Request.Context(), "httplock: replay refused", "name", x.Name, "id", replay.id, "error", err)
		replay.forbidden()
	} else {
		replay.refused("", err)
	}
	p.refuse(err)
	return false
}

// requireAuthorized is an error if a replay has come back to the guard that parked
// it, or to one in its place, and no guard was able to ask about its principal.
func requireAuthorized(replay *replay, key string) error {
	if replay == nil || replay.principal == "" || key != replay.key || replay.isAuthorized() {
		return nil
	}
	return errors.New("httplock: the request was parked on a principal's behalf, and the route has no WithReauthorize now")
}
