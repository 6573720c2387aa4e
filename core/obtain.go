package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/trust"
)

// firstLease bounds the lease of a grant that its caller has not confirmed by a
// renewal: whatever is lost on the way, the key is free again after it.
const firstLease = 3 * time.Second

// obtain takes the call's key: the one loop for tries, decisions, waiting,
// wake-ups and cancellation. A nil policy rejects.
func (l *Locker) obtain(ctx context.Context, call Call, policy ConflictPolicy, o acquireOptions) (*Lease, error) {
	if err := ValidateKey(call.Key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, callerGone(ctx, "acquire", call.Key)
	}
	if lease := l.reenter(ctx, call); lease != nil {
		return lease, nil
	}
	if l.state.Load() != lockerOpen {
		return nil, fmt.Errorf("core: acquire %q: %w", call.Key, ErrClosed)
	}

	var (
		start    = time.Now()
		token    = ident.Random(16)
		wakeID   = "" // ours, if Redis is to tell us of the release
		place    *waiter
		conflict = Conflict{Call: call}
		acquired bool
	)
	if policy != nil || o.notify != nil {
		wakeID = l.id
	}
	defer func() {
		if place != nil {
			place.leave(acquired)
		}
	}()
	for {
		conflict.Attempt++
		announced, busy, remaining := l.waiters.look(call.Key)
		conflict.Remaining = remaining
		if policy == nil || !busy || place != nil && place.first() {
			lease, remaining, err := l.try(ctx, call, token, wakeID, o)
			if err != nil {
				return nil, err
			}
			if lease != nil {
				acquired = true
				l.tellAcquired(lease, start, conflict.Attempt)
				return lease, nil
			}
			conflict.Remaining = remaining
			if place != nil {
				place.refused(remaining)
			}
		}

		conflict.Waited = time.Since(start)
		decision, err := l.decide(ctx, policy, conflict)
		if err != nil {
			return nil, err
		}
		delay, retry := decision.Delay()
		if !retry {
			if o.notify != nil {
				l.wakeups.Start()
				l.waiters.notifyRelease(call.Key, o.notify, announced, conflict.Remaining)
			}
			return nil, refusal(decision, conflict)
		}
		if place == nil {
			if call.BeforeWait != nil {
				if err := call.BeforeWait(); err != nil {
					return nil, err
				}
			}
			l.wakeups.Start()
			place = l.waiters.join(call.Key, announced, conflict.Remaining)
		}
		conflict.LastDelay = delay
		switch err := place.wait(ctx, min(delay, l.pollFloor), l.closing); {
		case errors.Is(err, ErrClosed):
			return nil, fmt.Errorf("core: acquire %q: %w", call.Key, ErrClosed)
		case err != nil:
			return nil, callerGone(ctx, "acquire", call.Key)
		}
	}
}

// tellAcquired tells the observer, whose panic must not leave the key held.
func (l *Locker) tellAcquired(lease *Lease, start time.Time, attempts int) {
	told := false
	defer func() {
		if !told {
			_ = lease.Release(lease.ctx)
		}
	}()
	l.observer.OnAcquired(lease.ctx, Acquired{
		Key: lease.key, Name: lease.name, Fence: lease.fence, Waited: lease.granted.Sub(start), Attempts: attempts,
	})
	told = true
}

func (l *Locker) decide(ctx context.Context, policy ConflictPolicy, c Conflict) (decision Decision, err error) {
	if policy != nil {
		if decision, err = policy.OnConflict(ctx, c); err != nil {
			return decision, fmt.Errorf("core: acquire %q: conflict policy: %w", c.Call.Key, err)
		}
	}
	l.observer.OnConflict(ctx, Conflicted{
		Key: c.Call.Key, Name: c.Call.Name, Decision: decision, Waited: c.Waited, Attempts: c.Attempt,
	})
	return decision, nil
}

func refusal(d Decision, c Conflict) error {
	if ticket, ok := d.Ticket(); ok {
		return &DeferredError{Key: c.Call.Key, Ticket: ticket}
	}
	return &ConflictError{Key: c.Call.Key, Remaining: c.Remaining, Waited: c.Waited, Attempts: c.Attempt}
}

// reenter returns a handle on the lease that ctx works under, if it holds the
// call's key and has not ended.
func (l *Locker) reenter(ctx context.Context, call Call) *Lease {
	inner, _ := LeaseFrom(ctx)
	for held := inner; held != nil; held = held.outer {
		if held.key != call.Key || held.locker.prefix != l.prefix || held.locker.rdb != l.rdb {
			continue
		}
		if held.reentered != nil {
			held = held.reentered
		}
		if held.locker.renewals.check(held) != nil {
			return nil
		}
		lease := &Lease{
			locker: held.locker, key: held.key, name: call.Name, fence: held.fence,
			granted: held.granted, ttl: held.ttl, reentered: held,
		}
		lease.bindAgain(ctx)
		return lease
	}
	return nil
}

// try asks Redis for the key once. A nil lease with a nil error is a conflict.
func (l *Locker) try(ctx context.Context, call Call, token, wakeID string, o acquireOptions) (lease *Lease, remaining time.Duration, err error) {
	first := min(o.ttl, firstLease)
	record := recordName(l.prefix, call.Key)
	courier := l.courier()
	if courier == nil {
		return nil, 0, fmt.Errorf("core: acquire %q: %w", call.Key, ErrClosed)
	}
	sent := time.Now()
	reply, err := courier.ask(call.Key, acquireRequest{ctx: ctx, record: record, token: token, ttl: first, wakeID: wakeID})
	if !reply.abandoned && reply.err == nil {
		l.couriers.keep(courier)
	}
	switch {
	case reply.err != nil:
		return nil, 0, unavailable("acquire", call.Key, reply.err)
	case !reply.granted:
		return nil, reply.remaining, err
	}
	if err == nil && ctx.Err() != nil {
		err = callerGone(ctx, "acquire", call.Key) // nobody is left to use the grant
	}
	if err == nil && trust.Passed(trust.Until(sent, first), time.Now()) {
		err = unavailable("acquire", call.Key, fmt.Errorf("the reply took %s, longer than the first lease", time.Since(sent)))
	}
	if err == nil {
		if lease = l.newLease(ctx, call, record, token, reply.fence, sent, o); l.renewals.add(lease) {
			l.started.Do(func() { l.background(l.renewals.run) })
			return lease, 0, nil
		}
		err = fmt.Errorf("core: acquire %q: %w", call.Key, ErrClosed)
	}
	l.background(func() { l.cancel(l.cancels, record, token, first) })
	return nil, 0, err
}

func (l *Locker) newLease(ctx context.Context, call Call, record, token string, fence int64, sent time.Time, o acquireOptions) *Lease {
	first := min(o.ttl, firstLease)
	lease := &Lease{
		locker: l, key: call.Key, name: call.Name, record: record, token: token, fence: fence,
		granted: time.Now(), ttl: o.ttl, fixed: o.fixed, index: -1,
		deadline: trust.Until(sent, first),
	}
	if !o.fixed || o.ttl > first {
		lease.renewAt = sent.Add(jitteredThird(first))
	}
	lease.bind(ctx)
	return lease
}

// cancel gives back a key that token may own without our knowing, if there is a
// slot. After ttl there is nothing left to give back.
func (l *Locker) cancel(slots chan struct{}, record, token string, ttl time.Duration) {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	default:
		return
	}
	pause := 50 * time.Millisecond
	for end := time.Now().Add(ttl); time.Now().Before(end); pause = min(2*pause, time.Second) {
		if _, err := l.release(context.Background(), record, token); err == nil {
			l.waiters.freed(keyOf(l.prefix, record))
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

// patience is the policy of Acquire: to wait as long as it takes. The release
// wakes the call; asking again now and then is for announcements that were lost.
type patience struct{ l *Locker }

// How often Acquire asks while nobody could wake it.
const (
	pollMin = 10 * time.Millisecond
	pollMax = 250 * time.Millisecond
)

func (p patience) OnConflict(_ context.Context, c Conflict) (Decision, error) {
	if !p.l.wakeups.Up() {
		return RetryAfter(backoff.Spread(backoff.Exponential(c.Attempt, pollMin, pollMax))), nil
	}
	if c.Remaining > 0 && c.Remaining < p.l.pollFloor {
		return RetryAfter(c.Remaining + time.Millisecond + rand.N(10*time.Millisecond)), nil
	}
	return RetryAfter(backoff.Spread(p.l.pollFloor)), nil
}
