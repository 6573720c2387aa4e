package core

// The outcome of each call: exactly one, which its observer gets.

import (
	"context"
	"errors"
	"time"
)

// OutcomeKind is how a call ended. The kinds are few and fixed, so they make good metric labels.
type OutcomeKind string

// How a call can end.
const (
	// OutcomeAcquired: the call has its key, or all of its keys.
	OutcomeAcquired OutcomeKind = "acquired"
	// OutcomeConflict: the key is held or reserved, and the policy refused the call. A call
	// without a policy, such as [Locker.TryAcquire], is refused at once.
	OutcomeConflict OutcomeKind = "conflict"
	// OutcomeDeferred: the policy stored the call to run later.
	OutcomeDeferred OutcomeKind = "deferred"
	// OutcomeShed: too many calls wait already; see [WithMaxWaiters], which says what error the call
	// returns.
	OutcomeShed OutcomeKind = "shed"
	// OutcomeCancelled: the caller's ctx was cancelled.
	OutcomeCancelled OutcomeKind = "cancelled"
	// OutcomeDeadline: the deadline of the caller's ctx passed.
	OutcomeDeadline OutcomeKind = "deadline"
	// OutcomeUnavailable: the call failed with [ErrUnavailable].
	OutcomeUnavailable OutcomeKind = "unavailable"
	// OutcomeClosed: the call failed with [ErrClosed].
	OutcomeClosed OutcomeKind = "closed"
	// OutcomeError: the call failed in another way. Its key, an option or its token is
	// invalid, its token's lease was lost, it ended with [ErrUpgrade], or its policy or
	// Call.BeforeWait failed or panicked. Their errors are of this kind whatever they wrap, unless
	// they are the error of the caller's ctx, or wrap [ErrConflict], which is OutcomeConflict.
	OutcomeError OutcomeKind = "error"
)

// Outcome describes how a call ended. The [Observer] gets one for each call.
type Outcome struct {
	Kind OutcomeKind
	// Key is the call's key; empty if that is invalid. For a call for several
	// keys it is the first one if all were acquired, and otherwise the one that was asked for
	// last, such as the one that is held.
	Key string
	// Name and ID are those of the [Call], or of [Named].
	Name, ID string
	// Mode is how the call wanted to hold the key; empty if Key is.
	Mode Mode
	// Fence is the lease's fence; 0 if the call was not granted its key.
	Fence int64
	// Leases is how many leases were granted: 1, or more for several keys. It is 0 if the
	// call was granted none; keys that its ctx held already do not count. Each lease ends with
	// OnReleased or OnLost.
	Leases int
	// Keys are those of an AcquireAll or TryAcquireAll, sorted. Fences are their fences, in
	// the same order, if they were granted. Both are nil for other calls; Keys is also nil if one of
	// the keys is invalid.
	Keys   []string
	Fences []int64
	// Waited is the time from the call to its end.
	Waited time.Duration
	// Attempts is how often the call asked for the key, counted as in [Conflict]: 1 if it
	// was free, 0 if the call ended before it asked or if its ctx held the key already. For
	// several keys it is how often the call tried to take all of them.
	Attempts int
	// Waiting is how many calls waited for the key when the call last met a conflict, as in
	// [Conflict]; 0 if it met none.
	Waiting int
	// DidWait: OnWaiting was called for the call.
	DidWait bool
	// Resumed: the call is a [Locker.Resume].
	Resumed bool
	// Cause is the error that the call returns; nil if it was granted its key. If the call was
	// deferred it is a [*DeferredError], which has the ticket.
	Cause error
}

// Waiting describes a call that begins to wait, for [Observer].OnWaiting.
type Waiting struct {
	// Key, Name, ID and Mode are as in Outcome.
	Key, Name, ID string
	Mode          Mode
	// Waiting is how many calls wait for the key, as in [Conflict].
	Waiting int
	// Remaining is how much is left of the holder's lease; 0: not known.
	Remaining time.Duration
}

// errUnwound is the outcome of a call that does not return.
var errUnwound = errors.New("core: a panic or runtime.Goexit ended the call")

// outcomeOf classifies how a call under ctx ended with err. known is not empty if err alone does
// not say it: the call was shed, or err is that of its policy or of BeforeWait.
func outcomeOf(ctx context.Context, err error, known OutcomeKind) OutcomeKind {
	over := ctx.Err()
	switch {
	case err == nil:
		return OutcomeAcquired
	case known == OutcomeShed:
		return known
	case over != nil && errors.Is(err, over): // the ctx's cause may wrap any of those below
		if errors.Is(over, context.DeadlineExceeded) {
			return OutcomeDeadline
		}
		return OutcomeCancelled
	case known != "" && !errors.Is(err, ErrConflict):
		return known
	case errors.Is(err, ErrDeferred):
		return OutcomeDeferred
	case errors.Is(err, ErrConflict):
		return OutcomeConflict
	case errors.Is(err, ErrClosed):
		return OutcomeClosed
	case errors.Is(err, ErrUnavailable):
		return OutcomeUnavailable
	}
	return OutcomeError
}

// report calls OnOutcome when the call has ended with err. If the observer panics, the key is
// released.
func (a *attempt) report(err error) {
	e := Outcome{
		Kind: outcomeOf(a.ctx, err, a.kind), Key: a.call.Key, Name: a.call.Name, ID: a.call.ID, Mode: modeOf(a.opts.limit),
		Attempts: a.conflict.Attempt, Waiting: a.conflict.Waiting, DidWait: a.waited, Resumed: a.resumed, Cause: err,
	}
	if err != nil {
		e.Waited = time.Since(a.start)
		if a.record != "" {
			e.Attempts = max(e.Attempts, 1)
		}
		if ValidateKey(e.Key) != nil {
			e.Key, e.Mode = "", ""
		}
		a.locker.observer.OnOutcome(a.ctx, e)
		return
	}
	lease := a.lease
	e.Fence = lease.fence
	if lease.reentered == nil {
		e.Leases, e.Attempts, e.Waited = 1, e.Attempts+1, lease.granted.Sub(a.start)
	}
	reported := false
	defer func() {
		if !reported {
			_ = lease.Release(lease.Context())
		}
	}()
	a.locker.observer.OnOutcome(lease.Context(), e)
	reported = true
}

// reportWaiting calls OnWaiting, at most once for each call.
func (a *attempt) reportWaiting() {
	waited := &a.waited
	if a.multi != nil {
		waited = &a.multi.waited
	}
	if *waited {
		return
	}
	*waited = true
	a.locker.observer.OnWaiting(a.ctx, Waiting{
		Key: a.call.Key, Name: a.call.Name, ID: a.call.ID, Mode: modeOf(a.opts.limit),
		Waiting: a.conflict.Waiting, Remaining: a.conflict.Remaining,
	})
}

// report does for several keys what attempt's report does for one.
func (m *multiAttempt) report(err error) {
	e := Outcome{
		Kind: outcomeOf(m.ctx, err, m.kind), Key: m.key, Name: m.opts.name, ID: m.opts.id, Keys: m.all,
		Waited: time.Since(m.start), Attempts: m.rounds, Waiting: m.waiting, DidWait: m.waited, Cause: err,
	}
	if e.Key != "" {
		e.Mode = modeOf(m.opts.limit)
	}
	if err != nil {
		m.locker.observer.OnOutcome(m.ctx, e)
		return
	}
	e.Key, e.Fences = e.Keys[0], make([]int64, len(e.Keys))
	for i, lease := range m.set.leases {
		e.Fences[i] = lease.fence
		if lease.reentered == nil {
			e.Leases++
		}
	}
	e.Fence = e.Fences[0]
	reported := false
	defer func() {
		if !reported {
			_ = m.set.Release(m.set.ctx)
		}
	}()
	m.locker.observer.OnOutcome(m.set.ctx, e)
	reported = true
}
