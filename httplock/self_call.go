package httplock

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/perkey-go/perkey/core"
)

// trailHeader is where a request says which leases its sender works under.
const trailHeader = "Perkey-Trail"

// errSelfCall: the request would wait for its own sender.
var errSelfCall = errors.New("httplock: the request was sent by one that holds its key, and would wait for itself: " +
	"call the function that does the work, with the ctx of the request, rather than the route")

// Transport is an [http.RoundTripper] for requests of guarded handlers to services of yours that
// have guards too. A request whose ctx is under a lease names the lease in the header Perkey-Trail
// (core.Trail). If its sender holds the key that it needs, it is answered at once with 508, and
// logged once for each Middleware. A request that shares the key with its sender
// ([WithSharedSafeMethods]) is served. Guards with core.Shared or core.Counted do not check.
//
// Without it such a request waits for as long as the policy of the guard says, and is then answered as any other whose
// key is held: with 409, or with 202, to run when its sender has ended.
//
// It is safe for concurrent use.
type Transport struct {
	// Base sends the requests. Nil: [http.DefaultTransport].
	Base http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := http.DefaultTransport
	if t != nil && t.Base != nil {
		base = t.Base
	}
	if trail := core.Trail(r.Context()); trail != "" {
		r = r.Clone(r.Context())
		r.Header.Set(trailHeader, trail)
	}
	return base.RoundTrip(r)
}

// selfCall is an error if the request would wait for its own sender. If its Idempotency-Key has an answer, it would not.
func (p *requestState) selfCall() error {
	trail, ctx, guard := p.x.Request.Header.Get(trailHeader), p.x.Request.Context(), p.m.guard
	if trail == "" || p.replay != nil || !p.call.Shared && !guard.Exclusive() {
		return nil
	}
	is, _ := guard.Locker().TrailHolds(ctx, p.call.Key, trail) // what is wrong with Redis, Do will see
	if !is || p.call.Shared && !errors.Is(guard.Peek(ctx, p.call), core.ErrConflict) {
		return nil
	}
	return cmp.Or(p.idempotent.lookup(ctx), errSelfCall)
}
