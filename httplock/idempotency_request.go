package httplock

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/along"
	"github.com/perkey-go/perkey/internal/ident"
)

// idempotentRequest is a request with an Idempotency-Key, on its way through its guard; nil
// for a request without one. Except for discard it belongs to the request's goroutine.
type idempotentRequest struct {
	m     *Middleware
	x     Exchange
	key   string // as the client sent it
	work  idempotency.Work
	ride  along.Work      // the work, which goes along with its lock
	lease *core.Lease     // under which it runs
	tee   *tee            // what its handler answers
	ctx   context.Context // in which it is finished; nil: it is not

	discarded atomic.Bool

	// The answer, after errAnswered.
	stored *result
	parked core.Ticket
}

type idempotentRequestKey struct{}

// idempotentRequestFrom returns the request with an Idempotency-Key for which a handler runs.
func idempotentRequestFrom(ctx context.Context) *idempotentRequest {
	o, _ := ctx.Value(idempotentRequestKey{}).(*idempotentRequest)
	return o
}

// discard records that a guard behind this one answered in the handler's place: such an answer describes the moment,
// not the outcome, so it is not stored: neither for this request nor for one whose handler made it.
func (o *idempotentRequest) discard() {
	if o != nil {
		o.discarded.Store(true)
		idempotentRequestFrom(o.x.Request.Context()).discard()
	}
}

// newIdempotentRequest returns nil if the request has no Idempotency-Key, or if a guard in
// front of this one handles it.
func (m *Middleware) newIdempotentRequest(p *requestState) (*idempotentRequest, error) {
	x := p.x
	if m.idempotency == nil || isSafe(x.Request) {
		return nil, nil
	}
	outer := idempotentRequestFrom(x.Request.Context())
	key, there, err := parseIdempotencyKey(x.Request.Header["Idempotency-Key"])
	switch {
	case outer != nil && (!there || key == outer.key): // another is of a request that the handler makes
		return nil, nil
	case err != nil:
		return nil, err
	case !there && m.idempotency.required:
		return nil, errNoIdempotencyKey
	case !there:
		return nil, nil
	case x.Tee == nil:
		return nil, errNoTee
	}
	principal, err := m.idempotencyPrincipal(p)
	if err != nil {
		return nil, err
	}
	route := x.Name
	if route == "" {
		route = x.Request.Method + " " + x.Request.URL.Path
	}
	return &idempotentRequest{m: m, x: x, key: key, work: idempotency.Work{Name: idempotency.NameOf(route, principal, key)}}, nil
}

// idempotencyPrincipal returns the principal to whom a request's Idempotency-Key belongs.
func (m *Middleware) idempotencyPrincipal(p *requestState) (principal string, err error) {
	principal, err = p.principal, p.whose
	if p.replay != nil {
		if idempotentRequestFrom(p.x.Request.Context()) == nil && p.replay.isFor(p.x.Request) {
			return p.replay.principal, nil
		}
		// A request that the handler makes is whose it was when the handler was not replayed, and had the client's credentials.
		if principal, err = p.onBehalfOf(); m.principal != nil && (principal == "" || err != nil) {
			return p.replay.principal, nil //nolint:nilerr // without them the function cannot know
		}
	}
	if errors.Is(err, errCredentials) {
		return "", errNoPrincipal
	}
	return principal, err
}

// lockKey is the lock's key for a route whose key function is IdempotencyKey.
func (o *idempotentRequest) lockKey() string { return "idempotency:" + o.work.Name }

// identify computes the request's fingerprint. The lock's key is part of it, so that requests with
// one fingerprint exclude one another: everything else relies on that.
func (o *idempotentRequest) identify(key string, body *body) error {
	at, ok := target(o.x.Request)
	if !ok {
		at = o.x.Request.RequestURI
	}
	compared, err := o.compared(body)
	o.work.Fingerprint = ident.Hash([]byte(o.x.Request.Method), []byte(at), []byte(key), compared)
	o.ride = along.Of(o.m.idempotency.store, o.work.Name, o.work.Fingerprint)
	return err
}

// lookup is called while another request holds the key. It returns errAnswered if the answer is
// stored already, and nil if Redis cannot say: begin asks again.
func (o *idempotentRequest) lookup(ctx context.Context) error {
	if o == nil {
		return nil
	}
	record, err := o.m.idempotency.store.Lookup(ctx, o.work)
	switch {
	case errors.Is(err, idempotency.ErrMismatch), errors.Is(err, idempotency.ErrSealed):
		return err
	case record.Outcome != nil:
		return o.loadStored(record.Outcome)
	case record.Ticket.ID != "" && time.Now().Before(record.Ticket.ExpiresAt):
		o.parked = record.Ticket
		return errAnswered
	}
	return nil
}

// begin is called under the key. Nil: the handler is to run.
func (o *idempotentRequest) begin(ctx context.Context) error {
	if o == nil {
		return nil
	}
	lease, ok := core.LeaseFrom(ctx)
	if !ok { // no Guard runs a call without one
		return errors.New("httplock: there is no lease in the ctx of a call")
	}
	o.lease = lease
	outcome, err := o.ride.Begin(ctx, lease.Fence())
	switch {
	case outcome == nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), core.ErrLeaseLost): // this process may have stood still
		return fmt.Errorf("httplock: %w: %w", core.ErrUnavailable, core.ErrLeaseLost)
	case err != nil:
		return err
	case outcome != nil:
		return o.loadStored(outcome)
	}
	return nil
}

// loadStored decodes the response of the first request under this key, and returns errAnswered.
func (o *idempotentRequest) loadStored(outcome []byte) error {
	stored, err := decodeResult(outcome)
	if err != nil {
		return err
	}
	o.stored = stored
	return errAnswered
}

// finish stores the response of a handler that has returned, unless the handler is to run again
// for the same request. The caller still holds the key. An error changes nothing for the client.
func (o *idempotentRequest) finish(ctx context.Context) {
	if o == nil || o.tee == nil || o.discarded.Load() {
		return
	}
	ended := ctx.Err() != nil
	if errors.Is(context.Cause(ctx), core.ErrLeaseLost) || !o.tee.final(ended) {
		return
	}
	if ended { // so its cause may not say that the lease was lost since
		keep, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
		defer cancel()
		if err := o.lease.Extend(keep, core.MinTTL); errors.Is(err, core.ErrLeaseLost) {
			return
		}
	}
	o.ctx = ctx
	outcome, err := o.tee.result(o.m.idempotency.kept).encode()
	if err == nil {
		err = o.ride.Finish(o.ctx, o.lease.Fence(), outcome)
	}
	o.notKept(err)
}

// finished is called when the key was released, after finish.
func (o *idempotentRequest) finished() {
	if o != nil && o.ctx != nil {
		o.notKept(o.ride.Finished(o.ctx))
	}
}

func (o *idempotentRequest) notKept(err error) {
	if err != nil {
		o.m.logger().WarnContext(o.ctx, "httplock: a response was not kept: if the client sends the request again, it will run again",
			"name", o.x.Name, "error", err)
	}
}

// keepTimeout bounds how long an unresponsive Redis delays a response.
const keepTimeout = 3 * time.Second

// deferred remembers where the request is parked.
func (o *idempotentRequest) deferred(ctx context.Context, t core.Ticket) {
	if o == nil {
		return
	}
	keep, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if err := o.m.idempotency.store.Parked(keep, o.work, t); err != nil {
		o.m.logger().WarnContext(ctx, "httplock: a ticket was not kept with its Idempotency-Key: if the client sends the request again, it may be parked again", "name", o.x.Name, "error", err)
	}
}

// answer writes the stored response, or the ticket of a parked request, after errAnswered. It
// reports whether that was the handler's whole response.
func (o *idempotentRequest) answer() (whole bool) {
	o.x.ends(OutcomeDuplicate, 0)
	switch {
	case written(o.x):
	case o.stored == nil:
		o.m.accepted(o.x, o.parked)
		o.x.ends(OutcomeDuplicate, http.StatusAccepted)
	case o.stored.Truncated:
		respond(o.x.because(o.m, errNotKept), problemNotKept.document(0))
	default:
		o.x.Writer.Header().Set("Idempotent-Replayed", "true")
		o.stored.write(o.x.Writer, o.x.Request)
		return true
	}
	return false
}
