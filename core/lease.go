package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/leasekey"
	"github.com/perkey-go/perkey/internal/observing"
	"github.com/perkey-go/perkey/internal/trust"
)

// Lease is a held key. It is safe for concurrent use. Work under it uses [Lease.Context], and ends
// with [Lease.Release].
//
// A nil Lease is that of work which needed no key, such as a GET's: [LeaseFrom] returns it where
// there is no lease. Its Release does nothing and returns nil. Its Fence is 0; its Key, Mode and
// Token are empty. Extend, Downgrade and Detach, which would promise a held key, return an error
// that wraps [ErrLeaseLost], and its Context has ended with that cause.
//
// The zero Lease is not useful: leases are made by a [Locker].
type Lease struct {
	grant   *grant
	name    string // the Call's
	fence   int64
	ending  // of leaseContext
	granted schedule.Instant
	*leaseExtra
	reserved bool          // the key was reserved when it was granted
	state    leaseState    // guarded by grant.locker.leases.mu
	told     chan struct{} // of a lost one: closed when the observer was told
}

// leaseExtra is what few leases have. The others share the empty one.
type leaseExtra struct {
	minHold time.Duration

	outer *Lease // the lease that the caller's ctx worked under already, if any

	// reentered is set on the handle of a caller whose ctx held this key
	// already: the lease that holds it.
	reentered *Lease
	caller    context.Context // of that caller

	set context.Context // of the LeaseSet that the lease is in
}

var noExtra leaseExtra

var errNoLease = fmt.Errorf("core: there is no lease here: %w", ErrLeaseLost)

// outermost is the lease that holds the key; a reentrant handle only refers to it.
func (l *Lease) outermost() *Lease {
	if l.reentered != nil {
		return l.reentered
	}
	return l
}

type leaseState uint8

const (
	leaseHeld leaseState = iota
	leaseReleased
	leaseLost
	leaseDetached
)

func newLease(ctx context.Context, call Call, g *grant, o *acquireOptions, now time.Time) *Lease {
	lease := &Lease{grant: g, name: call.Name, fence: g.lastFence(), granted: schedule.InstantOf(now), leaseExtra: &noExtra}
	if outer, _ := LeaseFrom(ctx); outer != nil || o.minHold > 0 {
		lease.leaseExtra = &leaseExtra{minHold: o.minHold, outer: outer}
	}
	lease.parent = ctx
	return lease
}

// Context returns the ctx for work under the lease. It ends when the lease does, and when the ctx
// that was given to Acquire does. If the lease was lost its cause wraps [ErrLeaseLost], and it ends
// before Redis can give the key to anyone else, except after [Locker.ForceRelease] and for a lease
// that several processes hold by one token. After [Lease.Detach] its cause wraps [ErrDetached].
//
// Each call of its Done and Err checks the clock: a call that begins after the end of the lease's
// time finds the context over, even in a process that was stopped meanwhile and has not run its
// timers since. So do contexts derived from it with [context.WithValue]. A goroutine that already
// waits on the channel, or has kept it, sees it closed when the lease's timer has run: in a process
// that was stopped, soon after it resumes. The same holds for Done and Err of contexts derived with
// [context.WithCancel], [context.WithTimeout] and the like. Call Err before a step that must not
// come too late.
func (l *Lease) Context() context.Context {
	if l == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(errNoLease)
		return ctx
	}
	if l.set != nil {
		return l.set
	}
	return (*leaseContext)(l)
}

// Key returns the key as it was given to Acquire.
func (l *Lease) Key() string {
	if l == nil {
		return ""
	}
	return l.grant.key()
}

// Fence returns the fencing token: each grant of a key has a greater one than every earlier grant
// of that key. A holder may have lost its lease without knowing it; the fence protects a store from
// its writes, if the holder claims with it what it is about to read. Package sqlfence does so in
// PostgreSQL, SQLite and MySQL. In a row of your own it is
//
//	UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1          -- no row: stop
//	SELECT … FROM orders WHERE id = $2
//	UPDATE orders SET status = … WHERE id = $2 AND fence = $1           -- no row: stop
//
// A store that compares fences only at the write accepts the write of a holder that lost its lease
// after its read, until the next holder has written. Holders of [Shared] and [Counted] leases have
// different fences at the same time: they do not claim.
//
// A fence fits a signed 64-bit column.
func (l *Lease) Fence() int64 {
	if l == nil {
		return 0
	}
	return l.fence
}

// Mode returns how the lease holds its key: [ModeExclusive], unless the key was taken with [Shared]
// or [Counted], or the lease was downgraded. It is empty for a nil Lease.
func (l *Lease) Mode() Mode {
	if l == nil {
		return ""
	}
	return modeOf(l.grant.mode())
}

// Extend renews the lease so that at least d of it remains; it never shortens the lease. The
// renewals go on as before. It blocks for one round trip, and no longer than ctx allows. d is 100
// ms to 24 h. An error that wraps [ErrLeaseLost] means that the lease is lost; after any other
// error the lease is as it was.
func (l *Lease) Extend(ctx context.Context, d time.Duration) error {
	if err := checkTTL("Extend", d); err != nil {
		return err
	}
	if l == nil {
		return errNoLease
	}
	if l.reentered != nil {
		return l.reentered.Extend(ctx, d)
	}
	g, owner := l.grant, l.grant.locker
	if err := owner.leases.check(l); err != nil {
		return err
	}
	sent := time.Now()
	owned, err := g.extend(ctx, "extend", d)
	switch {
	case err != nil:
		return err
	case !owned:
		return owner.leases.lose(g, notOurs)
	}
	return owner.leases.lengthen(g, trust.Until(sent, d))
}

// Downgrade makes an exclusive lease a shared one, as if taken with [Shared], with nobody in
// between: shared calls that are next in the queue get the key at once. The fence stays. It blocks
// for one round trip, and no longer than ctx allows.
//
// A lease that is shared already stays as it is. Downgrade returns [ErrNotExclusive] for a lease
// that was taken with [Counted], and for one that was taken again under the ctx of an exclusive
// lease: downgrade that lease instead. An error that wraps [ErrLeaseLost] means that the lease is
// lost. After any other error the key is held, at least shared: call Downgrade again to be sure.
func (l *Lease) Downgrade(ctx context.Context) error {
	if l == nil {
		return errNoLease
	}
	g, owner := l.grant, l.grant.locker
	if err := owner.store.Downgrades(); err != nil {
		return err
	}
	if g.mode() != shared && (l.reentered != nil || g.limit != exclusive) {
		return fmt.Errorf("core: downgrade %q: %w", l.Key(), ErrNotExclusive)
	}
	held := l
	if l.reentered != nil {
		held = l.reentered
	}
	if err := owner.leases.check(held); err != nil {
		return err
	}
	if g.limit == shared || g.downgrade.Load() == downgraded {
		return nil
	}
	g.downgrade.CompareAndSwap(notDowngraded, downgrading)
	owner.waiters.withdraw(g)
	owned, err := owner.store.Downgrade(ctx, store.DowngradeRequest{
		Record: g.record, Token: store.FormatToken(exclusive, *g.owner, g.secret), Shared: store.FormatToken(shared, *g.owner, g.secret),
		Fence: g.lastFence(), Timeout: max(g.ttl, store.ReplyTimeout),
	})
	switch {
	case err != nil:
		return err
	case !owned:
		return owner.leases.lose(g, notOurs)
	}
	g.downgrade.Store(downgraded)
	return nil
}

// Release frees the key. The Lease's Context has ended when it returns. It works on a dead ctx, and
// may be called more than once. It blocks for one round trip, or for some 3 s; from then on, and for a lease
// that had ended before, the release goes on in the background.
//
// It returns an error that wraps [ErrLeaseLost] if the lease had ended before. After any other
// error the key is free when the lease expires, or earlier. Of leases that were taken again under
// the ctx of another one, only the outermost releases the key.
func (l *Lease) Release(ctx context.Context) error {
	if l == nil {
		return nil
	}
	now := time.Now()
	was, err := l.release(ctx, now, false, false)
	return l.released(was, err, now)
}

// release ends the lease: stop its ctx → hand the grant over to the next call of this process, or
// release it in Redis, briefly if that is down; perhaps with the key's reservation. It returns the state of the lease before.
func (l *Lease) release(ctx context.Context, now time.Time, briefly, unreserves bool) (was leaseState, err error) {
	owner := l.grant.locker
	if l.reentered != nil {
		l.finish()
		if err := owner.leases.check(l.reentered); !errors.Is(err, ErrDetached) {
			return leaseHeld, err
		}
		return leaseHeld, nil
	}
	was, valid := owner.leases.release(l, now)
	if was == leaseReleased || was == leaseDetached {
		return was, nil
	}
	l.grant.unreserves, l.grant.reservedStill = unreserves, unreserves
	if was == leaseLost || !valid {
		err = lost(l.Key(), ranOut)
		l.cancel(err)
		owner.leases.drop(l.grant)
		owner.waiters.lost(l.grant)
		owner.cancel(l.grant, time.Time{})
	} else {
		l.finish()
		var owned bool
		l.grant.briefly = briefly
		keptUntil := now.Add(l.minHold - l.granted.Elapsed(now))
		switch owned, err = owner.releaseGrant(ctx, l.grant, keptUntil, now); {
		case err != nil:
			err = store.Unavailable("release", l.Key(), err)
			owner.cancel(l.grant, keptUntil)
		case !owned:
			err = lost(l.Key(), notOurs)
		}
	}
	return was, err
}

// toldWithin is how long a release waits for an observer that is being told of the loss. One that waits for the holder would
// wait forever.
const toldWithin = 100 * time.Millisecond

// released tells the observer of a release, and returns the error of Release.
func (l *Lease) released(was leaseState, err error, now time.Time) error {
	owner := l.grant.locker
	if l.reentered != nil || was == leaseReleased || was == leaseDetached {
		return err
	}
	if was == leaseLost {
		timer := time.NewTimer(toldWithin)
		defer timer.Stop()
		select {
		case <-l.told:
		case <-timer.C:
		}
		// The ctx may have ended before, with its caller's cause.
		if cause := context.Cause(l.Context()); errors.Is(cause, ErrLeaseLost) {
			err = cause
		}
		return fmt.Errorf("core: release: %w", err)
	}
	if held := l.granted.Elapsed(now); errors.Is(err, ErrLeaseLost) {
		e := Lost{Key: l.Key(), Name: l.name, Fence: l.fence, Held: held, Kind: lossOf(err), Cause: err}
		observing.Tell(l.Context(), nil, "core", func() { owner.observer.OnLost(l.Context(), e) })
	} else {
		owner.observer.OnReleased(l.Context(), Released{Key: l.Key(), Name: l.name, Fence: l.fence, Held: held, Err: err})
	}
	return err
}

// run calls fn under the lease and releases it, also when fn panics. It returns nil only if fn did
// and the lease was held throughout.
func (l *Lease) run(ctx context.Context, fn func(context.Context) error) error {
	err, lost := l.runToEnd(ctx, fn)
	if lost != nil {
		return errors.Join(err, lost)
	}
	return err
}

// runToEnd is run, but returns fn's error and the loss of the lease separately.
func (l *Lease) runToEnd(ctx context.Context, fn func(context.Context) error) (err, lost error) {
	defer func() {
		// The work was done within the lease. If Redis could not be told of the release, the work
		// has not failed.
		now := time.Now()
		was, err := l.release(ctx, now, true, false)
		if released := l.released(was, err, now); errors.Is(released, ErrLeaseLost) {
			lost = released
		}
	}()
	return fn(l.Context()), nil
}

// leaseContext is a lease as the ctx of work under it. One type for both saves an allocation.
type leaseContext Lease

// Deadline is the caller's.
func (c *leaseContext) Deadline() (time.Time, bool) {
	if c.caller != nil {
		return c.caller.Deadline()
	}
	return c.parent.Deadline()
}

// Done checks the clock, as Err does.
func (c *leaseContext) Done() <-chan struct{} {
	if c.grant.Expired(schedule.MomentOf(time.Now())) {
		_ = c.Err()
	}
	return c.cancellation().ctx.Done()
}

// Err checks the clock too: a process that was stopped past its lease's end must not go on because
// its timers have not run yet.
func (c *leaseContext) Err() error {
	if err := c.err(); err != nil {
		return err
	}
	held := (*Lease)(c)
	if held.reentered != nil {
		if c.caller.Err() != nil {
			held.cancel(context.Cause(c.caller))
		}
		held = held.reentered
	}
	_ = held.grant.locker.leases.check(held) // ends the ctx if it is over
	return c.err()
}

func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return (*Lease)(c)
	}
	if c.caller != nil {
		// Without the caller's own cancellation: that of the lease holds.
		if v := context.WithoutCancel(c.caller).Value(key); v != nil {
			return v
		}
	}
	return c.value(key)
}

func (c *leaseContext) String() string { return (*Lease)(c).String() }

type leaseKey struct{}

// LeaseFrom returns the innermost lease that ctx works under, and whether there is one. A handler
// gives its fence to its store. The lease is nil in a handler that needs no key, such as a GET's.
func LeaseFrom(ctx context.Context) (*Lease, bool) {
	l, _ := leaseFrom(ctx)
	return l, l != nil
}

// leaseFrom is LeaseFrom. It also reports whether the lease was found in a framework's own context,
// which does not end when the lease does.
func leaseFrom(ctx context.Context) (l *Lease, fromFramework bool) {
	if l, ok := ctx.Value(leaseKey{}).(*Lease); ok {
		return l, false
	}
	l, _ = ctx.Value(leasekey.Lease).(*Lease)
	return l, l != nil
}

// again makes a reentrant handle, for a caller whose ctx holds the lease. The handle's ctx is
// derived from the lease's, so that it ends at once with that; the caller's own ctx may have been
// detached from it with WithoutCancel.
func (l *Lease) again(ctx context.Context, call Call) *Lease {
	inner, cancel := context.WithCancelCause(l.Context())
	// Another goroutine asks for the cause, so it cannot ask ctx itself: a framework's own context changes meanwhile.
	caller, leave := context.WithCancel(ctx)
	unhook := context.AfterFunc(caller, func() { cancel(context.Cause(caller)) })
	outer, _ := LeaseFrom(ctx)
	lease := &Lease{
		grant: l.grant, name: call.Name, fence: l.fence, granted: l.granted,
		leaseExtra: &leaseExtra{outer: outer, reentered: l, caller: ctx},
	}
	lease.use(&cancellation{inner, func(cause error) {
		unhook()
		leave()
		cancel(cause)
	}})
	return lease
}

// String describes the lease without its owner token.
func (l *Lease) String() string {
	if l == nil {
		return "no lease"
	}
	return fmt.Sprintf("lease on %q, fence %d", l.Key(), l.fence)
}
