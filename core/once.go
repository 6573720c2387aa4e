package core

import (
	"context"
	"fmt"
	"time"
)

// Once runs fn in one process per period: for a cron tick that fires in every replica. Each replica
// calls Once. The first one holds key and runs fn, and its release leaves the key held for the rest
// of the period; the others return false and nil at once. (Do would run fn in all of them, one
// after the other.)
//
// A period begins with its run and lasts nine tenths of every, which is 100 ms to 366 days. So runs
// start at least that far apart. A tick is run by exactly one replica if its calls come within nine
// tenths of every of one another, and none comes more than a tenth of it early: so far may the
// replicas' clocks be apart. A run that takes longer than its period holds the key until its end,
// and the ticks meanwhile are skipped.
//
// The period counts if fn returns nil and Redis is told so before the lease ends. Otherwise the
// next call runs fn, in any process and in the same period too. That is the call of a late replica,
// or of the next tick: a replica that was told false does not call again. If fn fails or panics,
// the key is free at once. If the lease was lost, or the process died, the key is free when the
// lease ends ([WithTTL], [WithFirstLease]). The same is true if fn succeeded, but Redis cannot be
// reached from then until the lease ends, or until the Locker is closed: then [Observer].OnReleased
// has the error, and err is nil. For what must not be done twice, claim [Lease.Fence] in your store
// first.
//
// ran reports whether fn was called. If it was, err is fn's error, joined with one that wraps
// [ErrLeaseLost] if the lease was lost. If not, err is nil when the period is another call's, and
// otherwise the error of [Locker.TryAcquire]: perhaps nobody ran fn. On a quorum, where calls at
// the same time can all be refused, a call that is refused asks again for a tenth of every, at most
// a second.
//
// Use the key for Once alone: a call that finds it held for other work, waited for or reserved also
// returns false and nil. If ctx holds the key already, or with [Shared], [Counted] or [MinHold],
// Once returns an error that wraps [ErrInvalidOption].
func (l *Locker) Once(ctx context.Context, key string, every time.Duration, fn func(context.Context) error, opts ...AcquireOption) (ran bool, err error) {
	o, err := l.onceOptions(ctx, key, every, fn, opts)
	var policy ConflictPolicy
	if !l.store.Queues() {
		policy = splitVote(min(every/10, maxSplitVote))
	}
	lease, err := l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, policy, o, err)
	if err != nil {
		if outcomeOf(ctx, err, "") == OutcomeConflict {
			err = nil
		}
		return false, err
	}
	lease.minHold = 0
	return true, lease.run(ctx, func(ctx context.Context) error {
		err := fn(ctx)
		if err == nil {
			lease.minHold = o.minHold
		}
		return err
	})
}

// maxPeriod bounds the periods of Once.
const maxPeriod = 366 * 24 * time.Hour

func (l *Locker) onceOptions(ctx context.Context, key string, every time.Duration, fn func(context.Context) error, opts []AcquireOption) (acquireOptions, error) {
	o, err := l.acquireOptions(opts)
	switch {
	case err != nil:
	case fn == nil:
		err = errNoFunction
	case every < MinTTL || every > maxPeriod:
		err = fmt.Errorf("core: %w: Once: every %s: want %s to %s", ErrInvalidOption, every, MinTTL, maxPeriod)
	case o.limit != exclusive || o.minHold > 0:
		err = fmt.Errorf("core: %w: Once: Shared, Counted and MinHold cannot be used", ErrInvalidOption)
	case l.holding(ctx, key) != nil:
		err = fmt.Errorf("core: %w: Once: the ctx holds %q already, and its release ends the period", ErrInvalidOption, key)
	}
	o.minHold = every - every/10
	return o, err
}

// splitVote is the policy of Once on a quorum; its value is how long a call goes on asking. If
// several calls asked at the same time, each may have got less than a majority, so that nobody has
// the key.
type splitVote time.Duration

const maxSplitVote = time.Second

func (wait splitVote) OnConflict(_ context.Context, c Conflict) (Decision, error) {
	if left := time.Duration(wait) - c.Waited; left > 0 {
		return RetryAfter(left), nil
	}
	return Reject(), nil
}
