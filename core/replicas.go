package core

// Grants that count only when replicas have them: [WaitReplicas].

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/trust"
)

// WaitReplicas makes a grant count only once n replicas have it: the call returns a lease that
// survives a failover to one of them. If fewer have it after timeout, the grant is released and the
// call fails with an error that wraps [ErrNotReplicated] and [ErrUnavailable]. It costs one more
// round trip, and the time that replication takes, for each grant by Redis; a grant that is handed
// over within the process has been replicated already.
//
// It does not prevent every loss. A failover to a replica that is not among the n can still lose
// the grant. Nor does it wait for renewals: a replica that has the grant but not its last renewals
// frees the key earlier than the holder expects, and the holder learns that at its next renewal.
// What must not overlap even then needs the fence.
//
// n is 1 to 100, timeout 1 ms to 1 min; the Locker's client must be a *redis.Client or a
// *redis.ClusterClient. Anything else is an [ErrInvalidOption].
func WaitReplicas(n int, timeout time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.replicas, o.replicaWait = n, timeout
		if n < 1 || n > 100 || timeout < time.Millisecond || timeout > time.Minute {
			return fmt.Errorf("core: %w: WaitReplicas(%d, %s): want 1 to 100 replicas, 1 ms to 1 min", ErrInvalidOption, n, timeout)
		}
		return nil
	}
}

// replicate waits until so many replicas have the grants, all on one node: renew and WAIT, until
// enough replicas acknowledge or wait is over. A grant that Redis does not know is lost when it
// returns nil.
func (l *Locker) replicate(ctx context.Context, grants []*grant, replicas int, wait time.Duration) error {
	key := grants[0].key()
	type answer struct {
		known []bool
		acks  int
		err   error
	}
	renewals := func() []store.Renewal {
		asked := renewalsOf(grants)
		for i, g := range grants {
			ttl := min(g.ttl, l.firstLease)
			if g.bounded() {
				ttl = min(ttl, g.until.Sub(time.Now()))
			}
			asked[i].TTL = ttl + time.Millisecond // longer than the grant, so that it changes something
		}
		return asked
	}
	sent := time.Now()
	answers := make(chan answer, 1)
	confirming, cancel := context.WithCancel(context.WithoutCancel(ctx)) // ends go-redis's retries
	defer cancel()
	ok := l.life.Background(func() {
		var a answer
		a.known, a.acks, a.err = l.store.Confirm(confirming, renewals, replicas, wait)
		answers <- a
	})
	timer := time.NewTimer(wait + store.ReplyTimeout)
	defer timer.Stop()
	if !ok {
		return store.Closed("acquire", key)
	}
	select {
	case a := <-answers:
		switch {
		case a.err != nil:
			return store.Unavailable("acquire", key, a.err)
		case a.acks < replicas && slices.Contains(a.known, true):
			return store.Unavailable("acquire", key, fmt.Errorf("%w: %d of %d replicas have it after %s", ErrNotReplicated, a.acks, replicas, wait))
		}
		for i, g := range grants {
			g.acks = int16(a.acks)
			if !a.known[i] {
				_ = l.leases.lose(g, notOurs)
			} else if !g.bounded() {
				_ = l.leases.lengthen(g, trust.Until(sent, min(g.ttl, l.firstLease))) // adopting it tells whether it was lost
			}
		}
		return nil
	case <-ctx.Done():
		return store.CallerGone(ctx, "acquire", key)
	case <-timer.C:
		return store.Unavailable("acquire", key, fmt.Errorf("no reply within %s", wait+store.ReplyTimeout))
	case <-l.life.Closing():
		return store.Closed("acquire", key)
	}
}
