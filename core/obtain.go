package core

// How a call obtains its key, for every entry point: reenter, or ask once, or ask → policy → wait, until
// granted; and how a grant that no lease uses is released.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/core/internal/waitqueue"
	"github.com/perkey-go/perkey/internal/ctxerr"
	"github.com/perkey-go/perkey/internal/trust"
)

// obtain takes the call's key, or returns why it cannot, and reports the outcome. A nil policy
// rejects. If invalid is not nil, the call fails with it.
func (l *Locker) obtain(ctx context.Context, call Call, policy ConflictPolicy, o acquireOptions, invalid error) (*Lease, error) {
	o.name, o.id = call.Name, call.ID
	a := attempt{locker: l, ctx: ctx, call: call, policy: policy, opts: o, start: time.Now()}
	err := errUnwound
	defer func() { a.report(err) }()
	err = a.obtain(invalid)
	return a.lease, err
}

// attempt is the state of one call that takes its key.
type attempt struct {
	locker   *Locker
	ctx      context.Context
	call     Call
	policy   ConflictPolicy
	opts     acquireOptions
	start    time.Time
	record   string        // the key's name in Redis; "" until the call asks
	resumed  bool          // the key is held already, by a token
	reserved bool          // the key was reserved when it was granted
	multi    *multiAttempt // the call for several keys that this one is a part of, or nil

	conflict Conflict
	latest   int64 // the latest fence, when Redis refused the key last

	// The result: a lease, or for a part of a call for several keys a grant without one.
	lease *Lease
	grant *grant

	waits  bool        // the call will wait, so its requests join Redis's queue
	waited bool        // OnWaiting was called
	kind   OutcomeKind // if the error alone does not say it; see outcomeOf
}

func (a *attempt) obtain(invalid error) error {
	l, ctx, key := a.locker, a.ctx, a.call.Key
	if err := cmp.Or(invalid, ValidateKey(key)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return store.CallerGone(ctx, "acquire", key)
	}
	lease, err := l.reenter(ctx, a.call, &a.opts)
	if lease != nil || err != nil {
		a.lease = lease
		return err
	}
	if !l.life.Open() {
		return store.Closed("acquire", key)
	}
	a.opts.what = store.Describe(a.call.Name, a.call.ID, a.opts.ttl)
	return a.run()
}

func (a *attempt) run() error {
	if a.policy == nil {
		return a.tryOnce(a.start)
	}
	err := a.await()
	if _, held := errors.AsType[*ConflictError](err); held && a.opts.notify != nil && a.kind == "" {
		a.policy = nil
		return a.tryOnce(time.Now()) // Redis notifies a call that was refused, not one that waited and left
	}
	return err
}

// tryOnce asks Redis for the key once: granted, or ask the policy, which refuses or defers. It does
// not wait.
func (a *attempt) tryOnce(now time.Time) error {
	l, key := a.locker, a.call.Key
	watch, known := "", uint64(0)
	if a.opts.notify != nil {
		watch, known = l.id, l.notifications.releases(key)
	}
	req := waitqueue.Request{Token: store.NewToken(a.opts.limit, l.id), Fresh: true, Sent: now, Timeout: a.opts.replyTimeout()}
	reply, _, err := a.send(&req, store.NotQueued, watch, nil)
	if err != nil {
		return err
	}
	if reply.Granted {
		now = time.Now()
		g := l.newGrant(a.record, req.Token, a.opts.limit, reply.Fence, req.Sent, now, a.validity(&req), &a.opts)
		if !l.leases.add(g) {
			l.releaseLate(key, []string{req.Token})
			return a.closed()
		}
		g.waiting.Store(reply.Waiting)
		if taken, err := a.take(g, now); taken || err != nil {
			return err
		}
		return store.Unavailable("acquire", key, errors.New("the grant had ended when its reply arrived"))
	}
	a.conflict.Attempt, a.conflict.Remaining, a.conflict.Waiting = a.conflict.Attempt+1, reply.Remaining, reply.Queued
	a.latest = reply.Latest
	decision, err := a.decide(time.Now())
	if err == nil {
		err = a.refusal(decision)
	}
	if a.opts.notify != nil {
		l.store.Start()
		l.notifications.register(key, a.opts.notify, known, reply.Remaining)
	}
	return err
}

// await takes the key: ask → policy → wait, until granted. It is the only loop for requests to
// Redis, decisions of the policy, wake-ups and cancellation.
func (a *attempt) await() error {
	w, waiting, held := a.locker.waiters.join(a.call.Key, &a.opts, a.start)
	if w == nil {
		a.conflict.Waiting = waiting
		return a.shed(held)
	}
	defer w.leave()
	p, ok := a.policy.(WaitingPolicy)
	a.waits = ok && p.Waits()
	var decideAt time.Time // when the policy is asked
	for now := a.start; ; now = time.Now() {
		g, step := w.next(now)
		switch {
		case g != nil:
			if taken, err := a.take(g, now); taken || err != nil {
				return err
			}
			w.rejoin(g)
			continue
		case step.Err != nil:
			return step.Err
		case step.Ask:
			if err := a.request(w, &step.Request); err != nil && (!step.Informed || !store.Outage(err)) {
				return err
			}
			continue
		case step.Informed && !now.Before(decideAt):
			delay, err := a.delay(w, now, decideAt.IsZero())
			if err != nil {
				return err
			}
			decideAt = now.Add(delay)
		}
		if err := a.wait(w, &step, decideAt.Sub(now)); err != nil {
			return err
		}
	}
}

// delay asks the policy, and returns how long the call waits before the policy decides again. An
// error ends the call.
func (a *attempt) delay(w *waiter, now time.Time, first bool) (time.Duration, error) {
	a.conflict.Attempt++
	var failure error
	a.conflict.Remaining, a.conflict.Waiting, a.latest, failure = w.hint(now)
	decision, err := a.decide(now)
	if err != nil {
		return 0, err
	}
	delay, retry := decision.Delay()
	if !retry {
		if failure == nil && decision.kind == decideReject {
			failure = a.heard()
		}
		if failure != nil && decision.kind == decideReject {
			return 0, failure
		}
		return 0, a.refusal(decision)
	}
	if first && a.call.BeforeWait != nil {
		if err := a.call.BeforeWait(); err != nil {
			a.kind = OutcomeError
			return 0, notDeferred(err)
		}
	}
	if first {
		a.reportWaiting()
	}
	a.locker.store.Start()
	a.conflict.LastDelay = delay
	if !a.waits {
		a.waits = true
		w.askNow()
	}
	return delay, nil
}

// wait waits until the call is woken, may ask, or the policy has to decide again. An error ends the
// call.
func (a *attempt) wait(w *waiter, step *waitqueue.Step, decideIn time.Duration) error {
	pause := a.opts.replyTimeout()
	if step.Informed {
		pause = decideIn
	}
	if step.AskIn >= 0 {
		pause = min(pause, step.AskIn)
	}
	switch err := w.wait(a.ctx, pause, a.locker.life.Closing()); {
	case errors.Is(err, ErrClosed):
		return a.closed()
	case err != nil:
		return a.gone()
	}
	return nil
}

// shed refuses a call because too many wait already.
func (a *attempt) shed(held bool) error {
	if !held {
		a.kind = OutcomeShed
		return store.Unavailable("acquire", a.call.Key, errors.New("too many calls wait already (WithMaxWaiters)"))
	}
	if err := a.heard(); err != nil {
		return err
	}
	a.kind = OutcomeShed
	a.conflict.Attempt++
	a.conflict.Waited = time.Since(a.start)
	return a.refusal(Reject())
}

// heard returns why a call must not be refused with what is known of its key: Redis was not heard lately.
func (a *attempt) heard() error {
	return a.locker.store.Heard(a.ctx, store.RecordName(a.locker.prefix, a.call.Key))
}

// gone returns the error of a call whose ctx ended while it waited.
func (a *attempt) gone() error {
	return fmt.Errorf("core: acquire %q: the key is held, waited %s: %w",
		a.call.Key, time.Since(a.start).Round(time.Millisecond), ctxerr.Of(a.ctx))
}

func (a *attempt) closed() error {
	return store.Closed("acquire", a.call.Key)
}

// validity is until when a grant in reply to req can be trusted.
func (a *attempt) validity(req *waitqueue.Request) time.Time {
	return trust.Until(req.Sent, a.opts.firstLease())
}

// request sends a request for the queue, and gives the queue the reply: the call sees the result
// in its next round of await. An error ends the call, unless Redis is away and the call can wait
// for it to return.
func (a *attempt) request(w *waiter, req *waitqueue.Request) error {
	mark := store.NotQueued
	if a.waits {
		mark = a.locker.store.Mark()
	}
	a.record = w.queue.record
	reply, stopped, err := a.send(req, mark, "", w.granted)
	if err != nil || stopped {
		var f waitqueue.Failure
		if !reply.Granted && errors.Is(err, ErrUnavailable) {
			f = waitqueue.Failure{Err: err, Unsent: store.Unsent(err), Local: store.PoolTimeout(err)}
		}
		w.unanswered(req, f)
		return err
	}
	late := w.answered(req, mark, &reply, a.validity(req))
	switch full := mark != store.NotQueued && reply.Place == 0 && !reply.UnknownFormat; {
	case reply.Granted && len(late) > 0:
		a.locker.releaseLate(a.call.Key, late)
		return a.closed()
	case !reply.Granted && full:
		a.conflict.Remaining, a.conflict.Waiting, a.latest, _ = w.hint(time.Now())
		return a.shed(true)
	}
	return nil
}

// send sends a request. After an error, or if the call was given another grant meanwhile (stopped),
// a grant in reply to the request is released.
func (a *attempt) send(req *waitqueue.Request, mark store.Mark, watch string, stop <-chan struct{}) (reply store.AcquireReply, stopped bool, err error) {
	l, key := a.locker, a.call.Key
	if a.record == "" {
		a.record = store.RecordName(l.prefix, key)
	}
	rider := a.call.along
	if a.opts.replicas > 0 { // the grant may come to nothing yet
		rider = nil
	}
	reply, stopped, err = l.store.Acquire(a.ctx, store.AcquireRequest{
		Record: a.record, Token: req.Token, Fresh: req.Fresh, Lease: a.opts.firstLease(), What: a.opts.what,
		Mark: mark, Watch: watch, Reserve: a.opts.reserve, Sent: req.Sent, Timeout: req.Timeout, Along: rider,
	}, stop)
	a.reserved = reply.Reserved
	if reply.Reserved || !reply.Granted && err == nil && !stopped && a.opts.reserve > 0 {
		l.waiters.reservedBy(key)
	}
	return reply, stopped, err
}

// take makes the grant a lease of the call: wait for replicas → newLease → adopt. It reports false
// when the grant has ended. After an error the grant is released.
func (a *attempt) take(g *grant, now time.Time) (taken bool, err error) {
	l := a.locker
	if a.multi != nil {
		a.grant = g
		return l.leases.adopt(g, nil, now), nil
	}
	if a.opts.replicas > int(g.acks) {
		if err := l.replicate(a.ctx, []*grant{g}, a.opts.replicas, a.opts.replicaWait); err != nil {
			if a.resumed { // the token stays good
				l.leases.drop(g)
			} else {
				l.discard(a.ctx, g)
			}
			return false, err
		}
		now = time.Now()
	}
	g.along = a.call.along
	lease := newLease(a.ctx, a.call, g, &a.opts, now)
	lease.reserved = a.reserved
	if !l.leases.adopt(g, lease, now) {
		lease.finish()
		return false, nil
	}
	a.lease = lease
	return true, nil
}

func (a *attempt) decide(now time.Time) (decision Decision, err error) {
	a.conflict.Call = a.call
	a.conflict.Call.along = nil
	a.conflict.Waited = now.Sub(a.start)
	if a.policy != nil {
		if decision, err = a.policy.OnConflict(a.ctx, a.conflict); err != nil {
			a.kind = OutcomeError
			return decision, fmt.Errorf("core: acquire %q: conflict policy: %w", a.call.Key, notDeferred(err))
		}
	}
	return decision, nil
}

func (a *attempt) refusal(d Decision) error {
	if ticket, ok := d.Ticket(); ok {
		a.reserve(d)
		return &DeferredError{Key: a.call.Key, Ticket: ticket}
	}
	c := a.conflict
	return &ConflictError{Key: a.call.Key, Remaining: c.Remaining, Waited: c.Waited, Attempts: c.Attempt, Waiting: c.Waiting}
}

// reenter returns a handle on the lease that ctx works under, if it holds the
// call's key and has not ended.
func (l *Locker) reenter(ctx context.Context, call Call, o *acquireOptions) (*Lease, error) {
	held := l.holding(ctx, call.Key)
	switch {
	case held == nil:
		return nil, nil
	case o.limit == exclusive && held.grant.mode() != exclusive:
		return nil, fmt.Errorf("core: acquire %q: %w", call.Key, ErrUpgrade)
	}
	return held.again(ctx, call), nil
}

// holding returns the lease on key that ctx works under, if it has not ended.
func (l *Locker) holding(ctx context.Context, key string) *Lease {
	inner, fromFramework := leaseFrom(ctx)
	if fromFramework {
		l.warnContext()
	}
	for held := inner; held != nil; held = held.outer {
		if held.Key() != key {
			continue
		}
		if !held.grant.locker.sameAs(l) {
			l.warnOtherLocker()
			continue
		}
		held = held.outermost()
		if !held.grant.locker.leases.valid(held) {
			return nil
		}
		return held
	}
	return nil
}

// cancel releases, in the background, what Redis may still have of a grant that has ended, with the
// rest of a MinHold as in releaseGrant. A closed Locker has no background: then cancel blocks.
func (l *Locker) cancel(g *grant, keptUntil time.Time) {
	req := g.releaseRequest()
	req.KeptUntil = keptUntil
	if !l.store.Cancel(req, g.ttl, func(owned bool) { l.notifications.released(g.key(), owned) }) {
		_, _ = l.store.Release(context.Background(), req)
	}
}

// releaseLate releases grants that arrived when the Locker was closed.
func (l *Locker) releaseLate(key string, tokens []string) {
	for _, token := range tokens {
		_, _ = l.store.Release(context.Background(), store.ReleaseRequest{Record: store.RecordName(l.prefix, key), Token: token})
	}
}

// releaseGrant ends a grant: hand it over to the next call that waits here → else release it in
// Redis, along with the queue's token, and give the queue the reply. The key stays held until keptUntil, the end of a
// MinHold.
func (l *Locker) releaseGrant(ctx context.Context, g *grant, keptUntil, now time.Time) (owned bool, err error) {
	requeue, wanted, handedOver := l.waiters.released(g, keptUntil, now)
	if handedOver {
		return true, nil
	}
	if l.life.Enlist() { // Shutdown waits for the release, not only for the end of the lease
		defer l.life.Leave()
	}
	// No renewal is sent from here on. One that is in flight does not find the holder
	// and does nothing, since renewals never create.
	l.leases.drop(g)
	if g.transferred.Load() && !keptUntil.After(now) {
		l.released(g)
	}
	req := g.releaseRequest()
	req.KeptUntil, req.Requeue, req.Wanted = keptUntil, requeue, wanted
	reply, err := l.store.Release(ctx, req)
	g.reservedStill = g.unreserves && (reply.Reserved || err != nil)
	l.waiters.releaseAnswered(g, requeue, now, reply, err)
	return reply.Owned, err
}

// discard releases grants that did not become leases, in the background if the caller's ctx has
// ended.
func (l *Locker) discard(ctx context.Context, grants ...*grant) {
	if len(grants) == 0 {
		return
	}
	release := func() {
		each(grants, func(g *grant) error {
			if _, err := l.releaseGrant(context.Background(), g, time.Time{}, time.Now()); err != nil {
				l.cancel(g, time.Time{})
			}
			return nil
		})
	}
	if ctx.Err() != nil {
		l.life.Later(release)
		return
	}
	release()
}

// waitForever is the policy of Acquire: it always waits.
type waitForever struct{}

func (waitForever) OnConflict(context.Context, Conflict) (Decision, error) {
	return RetryAfter(time.Hour), nil
}

func (waitForever) Waits() bool { return true }
