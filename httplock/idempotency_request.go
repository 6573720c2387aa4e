package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/ident"
)

// once is a request with an Idempotency-Key, on its way through its guard. A nil one is
// a request without. It belongs to the request's goroutine, but for discard.
type once struct {
	m     *Middleware
	x     Exchange
	key   string // as the client sent it
	work  idempotency.Work
	lease *core.Lease // under which it runs
	tap   *tap        // what its handler answers

	discarded atomic.Bool

	// The answer, after errAnswered.
	stored *result
	parked core.Ticket
}

type onceKey struct{}

// onceFrom returns the request with an Idempotency-Key that a handler is at work for.
func onceFrom(ctx context.Context) *once {
	o, _ := ctx.Value(onceKey{}).(*once)
	return o
}

// discard records that a guard behind this one answered in the handler's place: such an
// answer describes the moment, not the outcome, so it is not stored: neither for this request nor
// for one whose handler made it.
func (o *once) discard() {
	if o != nil {
		o.discarded.Store(true)
		onceFrom(o.x.Request.Context()).discard()
	}
}

// newOnce returns the request's once, or nil if it has no key, or if a guard in front of
// this one looks after it.
func (m *Middleware) newOnce(p *requestState) (*once, error) {
	x := p.x
	if m.once == nil || isSafe(x.Request) {
		return nil, nil
	}
	outer := onceFrom(x.Request.Context())
	key, there, err := parseIdempotencyKey(x.Request.Header["Idempotency-Key"])
	switch {
	case outer != nil && (!there || key == outer.key): // another is of a request that the handler makes
		return nil, nil
	case err != nil:
		return nil, err
	case !there && m.once.required:
		return nil, errNoIdempotencyKey
	case !there:
		return nil, nil
	case x.Tap == nil:
		return nil, errDeafAdapter
	}
	principal, err := m.onceFor(p)
	if err != nil {
		return nil, err
	}
	if namedBy(x.Request.Header["Connection"], "Idempotency-Key") { // its replay would not have the key
		p.nobody = cmp.Or(p.nobody, errNotReplayable)
	}
	route := x.Name
	if route == "" {
		route = x.Request.Method + " " + x.Request.URL.Path
	}
	return &once{m: m, x: x, key: key, work: idempotency.Work{Name: idempotency.NameOf(route, principal, key)}}, nil
}

// onceFor is whose a request's Idempotency-Key is.
func (m *Middleware) onceFor(p *requestState) (principal string, err error) {
	principal, err = p.principal, p.whose
	if p.replay != nil {
		if onceFrom(p.x.Request.Context()) == nil && p.replay.isFor(p.x.Request) {
			return p.replay.principal, nil
		}
		// A request that the handler makes is whose it was when the handler was not replayed, and had the client's credentials.
		if principal, err = m.onBehalfOf(p.x); m.principal != nil && (principal == "" || err != nil) {
			return p.replay.principal, nil //nolint:nilerr // without them the function cannot know
		}
	}
	if errors.Is(err, errCredentials) {
		return "", errWhose
	}
	return principal, err
}

// lockKey is the key of requests that exclude only their like.
func (o *once) lockKey() string { return "idempotency:" + o.work.Name }

// identify makes the request's fingerprint. The lock's key is part of it: requests of
// one fingerprint exclude one another, which all the rest relies on.
func (o *once) identify(key string, body *body) error {
	content, err := body.all(o.m.body.max)
	if err != nil {
		return err
	}
	at, ok := target(o.x.Request)
	if !ok {
		at = o.x.Request.RequestURI
	}
	compared, err := o.compared(content)
	o.work.Fingerprint = ident.Hash([]byte(o.x.Request.Method), []byte(at), []byte(key), compared)
	return err
}

// lookup is called when the key is held. It is errAnswered if there is an answer
// nevertheless. If Redis does not say, begin will ask again.
func (o *once) lookup(ctx context.Context) error {
	if o == nil {
		return nil
	}
	record, err := o.m.once.store.Lookup(ctx, o.work)
	switch {
	case errors.Is(err, idempotency.ErrDiffers), errors.Is(err, idempotency.ErrSealed):
		return err
	case record.Outcome != nil:
		return o.recall(record.Outcome)
	case record.Ticket.ID != "" && time.Now().Before(record.Ticket.ExpiresAt):
		o.parked = record.Ticket
		return errAnswered
	}
	return nil
}

// begin is called under the key. Nil says that the handler is to run.
func (o *once) begin(ctx context.Context) error {
	if o == nil {
		return nil
	}
	lease, ok := core.LeaseFrom(ctx)
	if !ok { // no Guard runs a call without one
		return errors.New("httplock: there is no lease in the ctx of a call")
	}
	o.lease = lease
	outcome, err := o.m.once.store.Begin(ctx, o.work, lease.Fence())
	switch {
	case err != nil && errors.Is(context.Cause(ctx), core.ErrLeaseLost):
		return fmt.Errorf("httplock: %w: %w: %w", core.ErrUnavailable, core.ErrLeaseLost, err)
	case err != nil:
		return err
	case outcome != nil:
		return o.recall(outcome)
	}
	return nil
}

// recall reads what came of the request when it was made first.
func (o *once) recall(outcome []byte) error {
	stored, err := decodeResult(outcome)
	if err != nil {
		return err
	}
	o.stored = stored
	return errAnswered
}

// watch has the response recorded that the rest of the chain makes.
func (o *once) watch(ctx context.Context) context.Context {
	if o == nil {
		return ctx
	}
	begun := written(o.x)
	o.x.Tap(func(w http.ResponseWriter) http.ResponseWriter {
		o.tap = newTap(w, o.x.Request, o.m.once.maxResponse)
		o.tap.partial = begun
		return o.tap
	})
	return context.WithValue(ctx, onceKey{}, o)
}

// finish keeps the response of a handler that has returned, if it is one to keep. The
// caller still has the key. The client gets its response whatever comes of this.
func (o *once) finish(ctx context.Context) {
	if o == nil || o.tap == nil || o.discarded.Load() {
		return
	}
	ended := ctx.Err() != nil
	if errors.Is(context.Cause(ctx), core.ErrLeaseLost) || !o.tap.final(ended) {
		return
	}
	keep, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if ended { // and cannot tell any more that the lease was lost
		if err := o.lease.Extend(keep, core.MinTTL); errors.Is(err, core.ErrLeaseLost) {
			return
		}
	}
	outcome, err := o.tap.result(o.m.once.kept).encode()
	if err == nil {
		err = o.m.once.store.Finish(keep, o.work, o.lease.Fence(), outcome)
	}
	if err != nil {
		o.m.logger().WarnContext(ctx, "httplock: a response was not kept: if the client sends the request again, it will run again",
			"name", o.x.Name, "error", err)
	}
}

// keepTimeout bounds how long a response is held up by a Redis that does not answer.
const keepTimeout = 3 * time.Second

// deferred remembers where the request is parked.
func (o *once) deferred(ctx context.Context, t core.Ticket) {
	if o == nil {
		return
	}
	keep, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	if err := o.m.once.store.Parked(keep, o.work, t); err != nil {
		o.m.logger().WarnContext(ctx, "httplock: if the client sends this parked request again, it may be parked again", "name", o.x.Name, "error", err)
	}
}

// answer writes the answer that errAnswered announced. It reports whether that is what the
// handler answered.
func (o *once) answer() (recalled bool) {
	o.x.ends(OutcomeDuplicate, 0)
	switch {
	case written(o.x):
	case o.stored == nil:
		o.m.accepted(o.x, o.parked)
		o.x.ends(OutcomeDuplicate, http.StatusAccepted)
	case o.stored.Truncated:
		respond(o.x.because(o.m, errAnswered), problemNotKept.document(0))
	default:
		o.x.Writer.Header().Set("Idempotent-Replayed", "true")
		o.stored.write(o.x.Writer, o.x.Request)
		return true
	}
	return false
}
