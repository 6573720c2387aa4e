package core

import (
	"context"
	"time"
)

// Peek reports whether the call would meet a conflict now, without taking the key. It is for
// callers to whom asking is expensive, such as an HTTP client that sends its body only if it has a
// chance. It inspects the key in one round trip, and changes nothing in Redis: a call that met its
// conflict only here is not notified by [Guard.OnFree] or [NotifyRelease].
//
// A [*ConflictError] means that the key is held, waited for or reserved; it is the call's outcome,
// and the policy is not asked. Nil promises nothing: [Guard.Do] may still meet a conflict. It is
// also nil if ctx works under the key already. Any other error means that the key could not be
// inspected, as with a Locker of [NewQuorum]. It is not an outcome: Do may succeed.
func (g *Guard) Peek(ctx context.Context, call Call) error {
	if err := g.Err(); err != nil {
		return err
	}
	opts := g.options(call)
	a := attempt{locker: g.locker, ctx: ctx, call: call, opts: opts, start: time.Now()}
	if a.locker.holding(ctx, call.Key) != nil {
		return nil
	}
	key, err := a.locker.Inspect(ctx, call.Key)
	if err != nil || key.fits(opts.limit) {
		return err
	}
	a.conflict.Attempt, a.conflict.Waited, a.conflict.Waiting = 1, time.Since(a.start), key.Waiting
	if len(key.Holders) > 0 {
		a.conflict.Remaining = max(key.Holders[0].Remaining, 0)
	}
	err = a.refusal(Reject())
	a.report(err)
	return err
}

// fits reports whether a call with the limit that does not wait would be granted the key, as
// queue.lua and ask.lua say.
func (k *KeyInfo) fits(limit int) bool {
	if k.UnknownFormat || k.Waiting > 0 || k.Reserved > 0 {
		return false
	}
	return k.Held == 0 || k.Mode != ModeExclusive && (limit == shared || k.Held < limit)
}
