package core

import (
	"context"
	"time"
)

// Peek reports whether the call would meet a conflict now, without asking for the key: it is for
// callers who pay for asking, such as an HTTP client that sends its body only if it has a chance.
// It inspects the key in one round trip, and nothing changes in Redis: a call that met its conflict here alone is
// not told by [Guard.OnFree] or [NotifyRelease].
//
// A [*ConflictError] says that the key is held, waited for or reserved; that is the call's
// outcome, and the policy is not asked. Nil promises nothing: Do may meet a conflict. It is nil
// too if ctx works under the key already. Any other error says that the key could not be
// inspected, as by a Locker of NewQuorum, and is no outcome: Do may succeed.
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
		a.conflict.Remaining = key.Holders[0].Remaining
	}
	err = a.refusal(Reject())
	a.report(err)
	return err
}

// fits reports whether a call with the limit that does not wait would be granted the key, as
// queue.lua and ask.lua say.
func (k *KeyInfo) fits(limit int) bool {
	if k.Foreign || k.Waiting > 0 || k.Reserved > 0 {
		return false
	}
	return k.Held == 0 || k.Mode != ModeExclusive && (limit == shared || k.Held < limit)
}
