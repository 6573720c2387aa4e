package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/along"
)

// requestState is a request on its way through its guard. It belongs to the request's
// goroutine.
type requestState struct {
	m          *Middleware
	x          Exchange
	replay     *replay // nil: the request came from outside
	body       body
	opened     bool               // the body is begun with
	idempotent *idempotentRequest // nil: the request has no Idempotency-Key that counts

	principal string
	whose     error // why nothing may be stored on its behalf
	waits     bool  // it is one of its principal's waiters

	call      core.Call
	nobody    error     // why the request is not to be parked
	asked     time.Time // when it asked for its key
	met       bool      // it met a conflict
	encoded   bool      // the queue may have it
	ran       bool      // the rest of the chain was called
	lost      bool      // and lost its lease
	fromStore bool      // the response is the stored one of the first request, whole
	tail      *writer   // that keeps the end of the response until the key was released; may be nil
}

var requestStates = sync.Pool{New: func() any { return &requestState{} }}

// recycle lets other requests use the state, if nobody else can have kept it: a body that is read, or a policy.
func (p *requestState) recycle() {
	unseen := p.body.whole && p.body.head == nil && p.body.timed.ReadCloser == nil && p.body.state != untouchedBody
	if !p.opened || unseen && p.m.guard.Policy() == nil {
		*p = requestState{}
		requestStates.Put(p)
	}
}

// guarded finds the key and reads the body, and then asks for the key, and runs the rest of the chain or refuses.
func (p *requestState) guarded() {
	if p.replay == nil { // a replay has its key
		p.body.memory.bound = p.m.body.maxWaiting
	}
	defer p.end()
	if p.replay != nil && !p.authorized() {
		return
	}
	switch passes, err := p.passes(); {
	case err != nil:
		p.replay.refused("", err)
		p.refuseKey(err)
	case passes:
		p.withoutKey()
	case p.prepare():
		p.run()
	}
}

// passes reports whether a request needs no key.
func (p *requestState) passes() (pass bool, err error) {
	m, x := p.m, p.x
	switch {
	case m.safe == safePass && isSafe(x.Request), x.Request.Method == http.MethodOptions:
		return true, nil
	case x.Skip != nil, m.skip != nil:
		err = p.lend(func() error {
			pass = x.Skip != nil && x.Skip() || m.skip != nil && m.skip(x.Request)
			return nil
		})
	}
	return pass, err
}

// prepare makes the call, or refuses the request, or runs it if it needs no key. The order is that of what it costs: the principal's waiters,
// the key, an answer that is stored, a key that is held though the client asks first, and then the body.
func (p *requestState) prepare() bool {
	m, x := p.m, p.x
	prefers := core.Preference{}
	if p.replay == nil {
		prefers = m.preferred(x)
	}
	if m.waiters != nil && p.replay == nil {
		if err := p.enter(); err != nil {
			p.refuse(err)
			return false
		}
	}
	key, err := p.key()
	if errors.Is(err, NoKey) {
		p.withoutKey()
		return false
	}
	byIdempotencyKey, _ := errors.AsType[*idempotencyKeyError](err)
	if err != nil && byIdempotencyKey == nil {
		p.replay.refused("", fmt.Errorf("the key function failed: %w", err))
		p.refuseKey(err)
		return false
	}

	p.call = core.Call{Key: key, Name: x.callName(), Prefer: prefers, Trace: x.Request.Header.Get("Traceparent")}
	p.call.Shared = m.safe == safeShared && isSafe(x.Request)
	if p.replay == nil && !p.waits {
		p.principal, p.whose = p.onBehalfOf()
	}
	p.call.Principal, p.nobody = p.principal, p.whose
	err = p.identify(byIdempotencyKey)
	if cut := p.body.cut(); cut != nil { // by the principal function, whose own error matters only where a principal does
		err = cut
	}
	if err == nil {
		err = requireAuthorized(p.replay, p.call.Key)
	}
	if err == nil {
		err = p.selfCall()
	}
	if err == nil && p.asksFirst() {
		err = p.conflict()
	}
	if err == nil {
		err = p.readAhead()
	}
	if x.outcome != nil {
		x.outcome.Key = p.call.Key
	}
	if err != nil {
		p.replay.refused(p.call.Key, err)
		p.refuse(err)
		return false
	}
	p.prepareToWait()
	return true
}

// prepareToWait makes the call one that may wait and be deferred, if its guard has a policy for that.
func (p *requestState) prepareToWait() {
	if p.m.guard.Policy() == nil {
		p.call.Prefer.Async = false
		return
	}
	p.call.BeforeWait = p.beforeWait
	if p.replay == nil && replayable(p.x.Request) && (p.body.whole || !p.streams()) {
		p.call.Encode = p.encode
		if o := p.idempotent; o != nil {
			p.call.DeduplicationID = o.work.Name + o.work.Fingerprint
		}
		p.nobody = cmp.Or(p.nobody, p.body.notStorable())
	}
	p.call.Prefer.Async = p.call.Prefer.Async && p.call.Encode != nil && p.nobody == nil
}

// enter makes the request one of its principal's waiters.
func (p *requestState) enter() error {
	p.principal, p.whose = p.onBehalfOf()
	if p.whose != nil && !errors.Is(p.whose, errCredentials) {
		return p.whose
	}
	err := p.m.waiters.enter(p.principal)
	p.waits = err == nil
	return err
}

// conflict is an error if the key is held now.
func (p *requestState) conflict() error {
	err := p.m.guard.Peek(p.x.Request.Context(), p.call)
	if p.met = errors.Is(err, core.ErrConflict); p.met {
		return err
	}
	return nil // what is wrong with Redis, Do will see
}

// waited is called when the request has its key, or will not get it.
func (p *requestState) waited() {
	p.body.memory.free()
	if p.waits {
		p.waits = false
		p.m.waiters.leave(p.principal)
	}
}

// end is called when the guard is done with the request.
func (p *requestState) end() {
	p.waited()
	p.body.timed.end()
}

// identify finds out whether the request was made before.
func (p *requestState) identify(by *idempotencyKeyError) (err error) {
	if p.idempotent, err = p.m.newIdempotentRequest(p); err != nil {
		return err
	}
	if by != nil {
		outer := cmp.Or(p.idempotent, idempotentRequestFrom(p.x.Request.Context()))
		switch {
		case outer != nil:
			p.call.Key, err = by.key(outer.lockKey())
		case p.m.idempotency == nil || isSafe(p.x.Request):
			err = by
		default:
			err = errNoIdempotencyKey
		}
		if err != nil {
			return err
		}
	}
	if p.idempotent == nil {
		return nil
	}
	err = p.idempotent.identify(p.call.Key, &p.body)
	if errors.Is(err, errBodyTooLarge) {
		return errors.Join(errTooLargeToCompare, err)
	}
	along.With(&p.call, p.idempotent.ride)
	return err
}

func (p *requestState) run() {
	ctx := p.x.Request.Context()
	if p.call.Prefer.Bounded {
		p.asked = time.Now()
	}
	panicked := true
	defer func() { p.tail.released(panicked) }()
	err := p.m.guard.Do(ctx, p.call, p.underKey)
	panicked = false
	p.idempotent.finished()
	switch {
	case err == nil:
		p.x.ends(OutcomeRan, 0)
		return
	case p.ran:
		p.lost = true
		p.m.lost(p.x, err)
		return
	}
	if p.replay == nil && errors.Is(err, core.ErrConflict) && !errors.Is(err, errAnswered) {
		if answered := p.lookup(); answered != nil {
			err = answered
		}
	}
	if deferred, ok := errors.AsType[*core.DeferredError](err); ok {
		p.idempotent.deferred(ctx, deferred.Ticket)
	}
	if p.replay != nil && (errors.Is(err, errAnswered) || errors.Is(err, idempotency.ErrMismatch)) {
		p.replay.passed(p.m, true) // that is what comes of it
	} else {
		p.replay.refused(p.call.Key, err)
	}
	p.refuse(err)
}

func (p *requestState) refuse(err error) {
	defer p.showBody()()
	announce(p.x.Writer, p.applied(err))
	if errors.Is(err, errAnswered) {
		p.fromStore = p.idempotent.answer()
		return
	}
	p.m.refuse(p.x, err, p.encoded)
}

// refuseKey is refuse for a request that has no key.
func (p *requestState) refuseKey(err error) {
	defer p.showBody()()
	p.m.refuseKey(p.x, err)
}

// showBody has the functions that answer see the body from its beginning, until the one that it returns is called.
func (p *requestState) showBody() (hide func()) {
	if len(p.body.head) == 0 {
		return func() {}
	}
	r, sent := p.x.Request, p.x.Request.Body
	r.Body = p.body.reader()
	return func() { r.Body = sent }
}

// lookup is called when the request met a conflict. It is an error if there is an answer
// nevertheless.
func (p *requestState) lookup() error {
	p.met = true
	return p.idempotent.lookup(p.x.Request.Context())
}

func (p *requestState) beforeWait() error {
	if p.replay != nil {
		return errReplayWaits
	}
	if err := p.lookup(); err != nil {
		return err
	}
	return p.body.err // a body that is capped does not wait
}

// encode is the request in the form that a queue stores.
func (p *requestState) encode() (payload []byte, err error) {
	if err := p.lookup(); err != nil {
		return nil, err
	}
	if p.nobody != nil {
		return nil, p.nobody
	}
	content, err := p.body.all(p.m.body.max)
	if err != nil {
		return nil, err
	}
	header := storedHeaders(p.x.Request, p.m.keptHeaders)
	if coding, _ := p.body.coding(); coding == "" {
		delete(header, "Content-Encoding")
	}
	payload, err = encode(p.x.Request, content, header, cmp.Or(p.m.replayHost, p.x.host))
	p.encoded = err == nil
	return payload, err
}

// underKey runs the rest of the chain with the lease's ctx, and the whole body.
func (p *requestState) underKey(ctx context.Context) error {
	if err := p.idempotent.begin(ctx); err != nil {
		return err
	}
	defer p.m.holds.began(time.Now())
	p.ran = true
	p.waited()
	p.replay.passed(p.m, true)
	p.next(p.watch(ctx))
	p.replay.returned(p.x)
	p.idempotent.finish(ctx)
	return nil
}

// withoutKey runs the rest of the chain without a key. What the key function did not read of the body is the handler's,
// for as long as it likes.
func (p *requestState) withoutKey() {
	defer func() { p.x.ends(OutcomePassed, 0) }()
	p.ran = true
	p.waited()
	p.replay.passed(p.m, false)
	if p.opened {
		p.leave()
	}
	if len(p.body.head) > 0 {
		p.next(p.x.Request.Context())
		return
	}
	if p.body.source == &p.body.timed {
		p.body.timed.ReadCloser = nil
	}
	p.x.Next(p.x.Request)
}

// watch has the end of the response kept, and an idempotent request's response recorded.
func (p *requestState) watch(ctx context.Context) context.Context {
	o, r := p.idempotent, p.x.Request
	keeps := p.replay == nil && r.ProtoMajor == 1 && r.Method != http.MethodHead && p.m.guard.MinHold() == 0
	ours := within[*writer](p.x.Writer)
	if keeps && ours != nil && !ours.kept { // by a guard in front
		ours.kept, p.tail = true, ours
	}
	if o == nil && (!keeps || ours != nil || p.x.Tee == nil) {
		return ctx
	}
	begun := written(p.x)
	p.x.Tee(func(w http.ResponseWriter) http.ResponseWriter {
		if keeps && ours == nil {
			p.tail = &writer{ResponseWriter: w, ctx: r.Context(), tail: tail{kept: true}}
			w = p.tail
		}
		if o != nil {
			o.tee = newTee(w, r, o.m.idempotency.maxResponse)
			o.tee.partial = begun
			w = o.tee
		}
		return w
	}, o != nil)
	if o == nil {
		return ctx
	}
	return context.WithValue(ctx, idempotentRequestKey{}, o)
}

func (p *requestState) next(ctx context.Context) {
	x := p.x
	r := x.Request.WithContext(p.boundRest(ctx))
	r.Body = p.body.reader()
	defer showInFront(x.Request, r)
	x.Next(r)
}

// showInFront has r show middleware in front what the handler's copy of it shows: the route that a router behind the guard
// found, and the files of a multipart form, which net/http removes.
func showInFront(r, copied *http.Request) {
	if r.MultipartForm == nil {
		r.MultipartForm = copied.MultipartForm
	}
	if r.Pattern != copied.Pattern {
		r.Pattern = copied.Pattern
		for _, name := range PatternParams(r.Pattern) {
			r.SetPathValue(name, copied.PathValue(name))
		}
	}
}
