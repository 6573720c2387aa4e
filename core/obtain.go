package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

// firstLease bounds the lease of a grant that its caller has not confirmed by a
// renewal: whatever is lost on the way, the key is free again after it.
const firstLease = 3 * time.Second

// obtain takes the call's key, or says why it cannot. A nil policy rejects.
func (l *Locker) obtain(ctx context.Context, call Call, policy ConflictPolicy, o acquireOptions) (*Lease, error) {
	if err := ValidateKey(call.Key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, callerGone(ctx, "acquire", call.Key)
	}
	if lease, err := l.reenter(ctx, call, o); lease != nil || err != nil {
		return lease, err
	}
	if l.state.Load() != lockerOpen {
		return nil, fmt.Errorf("core: acquire %q: %w", call.Key, ErrClosed)
	}
	o.what = describe(call.Name, call.ID)
	a := attempt{locker: l, ctx: ctx, call: call, policy: policy, opts: &o, start: time.Now()}
	if policy == nil {
		return a.once()
	}
	return a.await()
}

// attempt is one call's way to its key.
type attempt struct {
	locker  *Locker
	ctx     context.Context
	call    Call
	policy  ConflictPolicy
	opts    *acquireOptions
	start   time.Time
	record  string // the key's name in Redis; "" until it is asked for
	resumed bool   // it is held already, by a token

	conflict Conflict
}

// once asks Redis for the key, and takes no for an answer.
func (a *attempt) once() (*Lease, error) {
	l, key := a.locker, a.call.Key
	watch, announced := "", uint64(0)
	if a.opts.notify != nil {
		watch, announced = l.id, l.waiters.announcements(key)
	}
	t := turn{entry: newEntry(a.opts.limit, l.id), mark: notQueued, sent: time.Now()}
	reply, _, err := a.ask(t, watch, nil)
	if err != nil {
		return nil, err
	}
	a.conflict.Attempt = 1
	if reply.granted {
		h := l.newHold(a.record, t.entry, a.opts.limit, reply.fence, trust.Until(t.sent, a.first()), a.opts)
		if !l.renewals.add(h) {
			l.waiters.orphaned(key, t.entry)
			return nil, fmt.Errorf("core: acquire %q: %w", key, ErrClosed)
		}
		h.waiting.Store(reply.waiting)
		if lease := a.lease(h, time.Now()); lease != nil {
			return lease, nil
		}
		return nil, unavailable("acquire", key, errors.New("the grant ended as it came"))
	}
	a.conflict.Remaining, a.conflict.Waiting = reply.remaining, reply.queued
	decision, err := a.decide(time.Now())
	if err == nil {
		err = a.refusal(decision)
	}
	if a.opts.notify != nil {
		l.wakeups.Start()
		l.waiters.notifyRelease(key, a.opts.notify, announced, reply.remaining)
	}
	return nil, err
}

// await stands in line for the key: the one loop for questions to Redis, decisions
// of the policy, wake-ups and cancellation.
func (a *attempt) await() (*Lease, error) {
	l, ctx := a.locker, a.ctx
	w := l.waiters.join(a.call.Key, a.opts)
	if w == nil {
		a.conflict.Attempt = 1
		return nil, a.refusal(Reject())
	}
	defer w.leave()

	// Whether the call wants a place in Redis's queue: only when it will wait.
	waits := false
	if p, ok := a.policy.(interface{ Waits() bool }); ok {
		waits = p.Waits()
	}
	var decideAt time.Time // when the policy is asked
	for now := a.start; ; now = time.Now() {
		if h := w.taken(); h != nil {
			if lease := a.lease(h, now); lease != nil {
				return lease, nil
			}
			w.rejoin()
		}
		t, askIn, ok := w.turn(now, waits)
		if ok {
			switch full, err := a.question(w, t); {
			case err != nil:
				return nil, err
			case full:
				return nil, a.refusal(Reject())
			}
			if w.hasGrant() {
				continue
			}
			now = time.Now()
		}
		if !now.Before(decideAt) {
			a.conflict.Attempt++
			a.conflict.Remaining, a.conflict.Waiting = w.hint()
			decision, err := a.decide(now)
			if err != nil {
				return nil, err
			}
			delay, retry := decision.Delay()
			if !retry {
				return nil, a.refusal(decision)
			}
			if decideAt.IsZero() && a.call.BeforeWait != nil {
				if err := a.call.BeforeWait(); err != nil {
					return nil, err
				}
			}
			l.wakeups.Start()
			a.conflict.LastDelay = delay
			decideAt = now.Add(delay)
			if !waits {
				waits, ok = true, true
				w.askNow()
			}
		}
		if ok {
			continue // to see when to ask again
		}
		pause := decideAt.Sub(now)
		if askIn >= 0 {
			pause = min(pause, askIn)
		}
		switch err := w.wait(ctx, pause, l.closing); {
		case errors.Is(err, ErrClosed):
			return nil, fmt.Errorf("core: acquire %q: %w", a.call.Key, ErrClosed)
		case err != nil:
			return nil, callerGone(ctx, "acquire", a.call.Key)
		}
	}
}

// question asks Redis in the line's name. It reports whether the queue is full.
func (a *attempt) question(w *waiter, t turn) (full bool, err error) {
	l, key := a.locker, a.call.Key
	reply, stopped, err := a.ask(t, "", w)
	switch {
	case err != nil || stopped:
		w.dropped(t)
	case !reply.granted:
		w.refused(t, reply)
		return t.mark != notQueued && reply.place == 0, nil
	default:
		if !w.granted(a.record, t, reply, trust.Until(t.sent, a.first())) {
			err = fmt.Errorf("core: acquire %q: %w", key, ErrClosed)
			l.waiters.orphaned(key, t.entry)
		}
	}
	return false, err
}

// ask sends the question. After an error, or when a hold was passed to w meanwhile,
// what comes of it is given back.
func (a *attempt) ask(t turn, watch string, w *waiter) (reply acquireReply, stopped bool, err error) {
	l, key := a.locker, a.call.Key
	if a.record == "" {
		a.record = recordName(l.prefix, key)
	}
	if l.quorum != nil {
		return l.quorum.ask(a, t, watch, w)
	}
	cmd := l.command(a.ctx, acquireScript, false, a.record, t.entry, a.first().Milliseconds(), a.opts.what, t.mark, watch)
	cmd.key, cmd.entry = key, t.entry
	r, stopped, err := l.ask(a.ctx, "acquire", cmd, a.first(), w)
	if err != nil || stopped {
		return reply, stopped, err
	}
	defer l.recycle(cmd)
	if reply, err = parseAcquire(r); err != nil {
		l.takeBack(cmd)
		return reply, false, unavailable("acquire", key, err)
	}
	if reply.granted {
		if a.ctx.Err() != nil {
			err = callerGone(a.ctx, "acquire", key) // nobody is left to use the grant
		} else if trust.Passed(trust.Until(t.sent, a.first()), time.Now()) {
			err = unavailable("acquire", key, fmt.Errorf("the reply took %s, longer than the first lease", time.Since(t.sent)))
		}
		if err != nil {
			l.takeBack(cmd)
		}
	}
	return reply, false, err
}

func (a *attempt) first() time.Duration { return min(a.opts.ttl, firstLease) }

// lease makes the call the holder of h, and tells the observer, whose panic must
// not leave the key held. It returns nil when h has ended.
func (a *attempt) lease(h *hold, now time.Time) *Lease {
	l := a.locker
	lease := l.newLease(a.ctx, a.call, h, a.opts, now)
	if !l.renewals.adopt(h, lease, now) {
		lease.cancel(context.Canceled)
		return nil
	}
	told := false
	defer func() {
		if !told {
			_ = lease.Release(lease.ctx)
		}
	}()
	l.observer.OnAcquired(lease.ctx, Acquired{
		Key: a.call.Key, Name: a.call.Name, Fence: lease.fence,
		Waited: lease.granted.Sub(a.start), Attempts: a.conflict.Attempt + 1, Resumed: a.resumed,
	})
	told = true
	return lease
}

func (a *attempt) decide(now time.Time) (decision Decision, err error) {
	a.conflict.Call = a.call
	a.conflict.Waited = now.Sub(a.start)
	if a.policy != nil {
		if decision, err = a.policy.OnConflict(a.ctx, a.conflict); err != nil {
			return decision, fmt.Errorf("core: acquire %q: conflict policy: %w", a.call.Key, err)
		}
	}
	a.locker.observer.OnConflict(a.ctx, Conflicted{
		Key: a.call.Key, Name: a.call.Name, Decision: decision, Waited: a.conflict.Waited, Attempts: a.conflict.Attempt,
	})
	return decision, nil
}

func (a *attempt) refusal(d Decision) error {
	if ticket, ok := d.Ticket(); ok {
		return &DeferredError{Key: a.call.Key, Ticket: ticket}
	}
	c := a.conflict
	return &ConflictError{Key: a.call.Key, Remaining: c.Remaining, Waited: c.Waited, Attempts: c.Attempt, Waiting: c.Waiting}
}

// reenter returns a handle on the lease that ctx works under, if it holds the
// call's key and has not ended.
func (l *Locker) reenter(ctx context.Context, call Call, o acquireOptions) (*Lease, error) {
	inner, _ := LeaseFrom(ctx)
	for held := inner; held != nil; held = held.outer {
		if held.Key() != call.Key || !held.hold.locker.sameAs(l) {
			continue
		}
		if held.reentered != nil {
			held = held.reentered
		}
		owner := held.hold.locker
		if owner.renewals.check(held) != nil {
			return nil, nil
		}
		if o.limit == 1 && held.hold.limit != 1 {
			return nil, fmt.Errorf("core: acquire %q: %w", call.Key, ErrUpgrade)
		}
		lease := &Lease{hold: held.hold, name: call.Name, fence: held.fence, granted: held.granted, reentered: held}
		lease.bindAgain(ctx)
		return lease, nil
	}
	return nil, nil
}

// cancel gives up what an entry may have without our knowing, if there is a slot.
// After ttl there is nothing left to give up.
func (l *Locker) cancel(slots chan struct{}, req releaseRequest, ttl time.Duration) {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return
	}
	pause := 50 * time.Millisecond
	for end := time.Now().Add(ttl); time.Now().Before(end); pause = min(2*pause, time.Second) {
		if _, err := l.release(context.Background(), req); err == nil {
			l.waiters.freed(keyOf(l.prefix, req.record))
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.closing:
			timer.Stop()
			return
		}
	}
}

// giveUp ends a hold: it passes to the next call in line, or back to Redis. The key
// stays taken for stay all the same.
func (l *Locker) giveUp(ctx context.Context, h *hold, stay time.Duration, now time.Time) (owned bool, err error) {
	if stay <= 0 && l.waiters.pass(h, now) {
		return true, nil
	}
	// No renewal is sent from here on. One that is in flight finds the key freed and
	// does nothing, since renewals never create.
	l.renewals.drop(h)
	if h.travels.Load() && stay <= 0 {
		l.released(h)
	}
	req := h.releaseRequest()
	req.stay = max(stay, 0)
	l.waiters.depart(h, &req)
	reply, err := l.release(ctx, req)
	l.waiters.departed(h, req, reply, err)
	return reply.owned, err
}

// patience is the policy of Acquire: to wait as long as it takes.
type patience struct{}

func (patience) OnConflict(context.Context, Conflict) (Decision, error) {
	return RetryAfter(time.Hour), nil
}

func (patience) Waits() bool { return true }
