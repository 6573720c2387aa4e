package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/trust"
)

// WaitReplicas makes a grant count only when n replicas have it: the call returns a
// lease that a failover to one of them keeps. If fewer have it after timeout the
// grant is given back, and the call fails with an error that wraps ErrNotReplicated
// and ErrUnavailable. It costs one more round trip, and the time that replication
// takes, for each grant by Redis; a grant that is handed over within the process has
// been replicated already.
//
// It reports, and does not undo. A failover to a replica that is not among the n can
// still lose the grant. Nor are renewals waited for: a replica that has the grant but
// not its last renewals frees the key earlier than the holder reckons, which the
// holder learns at its next renewal. For what must not overlap even then there is the
// fence.
//
// n is 1 to 100, timeout 1 ms to 1 min. The Locker's client must be a *redis.Client
// or a *redis.ClusterClient.
func WaitReplicas(n int, timeout time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.replicas, o.replicaWait = n, timeout
		if n < 1 || n > 100 || timeout < time.Millisecond || timeout > time.Minute {
			return fmt.Errorf("core: %w: WaitReplicas(%d, %s): want 1 to 100 replicas, 1 ms to 1 min", ErrInvalidOption, n, timeout)
		}
		return nil
	}
}

// replicate waits until as many replicas as o wants have the grants of holds, all on
// one node. A hold that Redis does not know is lost when it returns nil.
func (l *Locker) replicate(ctx context.Context, holds []*hold, o *acquireOptions) error {
	key := holds[0].key()
	type answer struct {
		renewed []bool
		copies  int
		err     error
	}
	sent := time.Now()
	answers := make(chan answer, 1)
	gone := make(chan struct{}) // ends go-redis's retries
	defer close(gone)
	ok := l.background(func() {
		var a answer
		a.renewed, a.copies, a.err = l.store.confirm(&callContext{Context: context.WithoutCancel(ctx), gone: gone}, holds, o)
		answers <- a
	})
	timer := time.NewTimer(o.replicaWait + replyTimeout)
	defer timer.Stop()
	if !ok {
		return fmt.Errorf("core: acquire %q: %w", key, ErrClosed)
	}
	select {
	case a := <-answers:
		switch {
		case a.err != nil:
			return unavailable("acquire", key, a.err)
		case a.copies < o.replicas && slices.Contains(a.renewed, true):
			return unavailable("acquire", key, fmt.Errorf("%w: %d of %d replicas have it after %s", ErrNotReplicated, a.copies, o.replicas, o.replicaWait))
		}
		for i, h := range holds {
			h.copies = int16(a.copies)
			if !a.renewed[i] {
				_ = l.leases.lose(h, notOurs)
			} else if !h.bounded() {
				_ = l.leases.lengthen(h, trust.Until(sent, min(h.ttl, l.firstLease))) // adopting it tells whether it was lost
			}
		}
		return nil
	case <-ctx.Done():
		return callerGone(ctx, "acquire", key)
	case <-timer.C:
		return unavailable("acquire", key, fmt.Errorf("no reply within %s", o.replicaWait+replyTimeout))
	case <-l.closing:
		return fmt.Errorf("core: acquire %q: %w", key, ErrClosed)
	}
}

// confirm implements store. It asks until enough replicas have the grants, or the time for it is over. It
// asks in steps, which keep the leases going and the Locker's Close from waiting for
// the last replica.
func (d *deployment) confirm(ctx context.Context, holds []*hold, o *acquireOptions) (renewed []bool, copies int, err error) {
	client, err := d.primary(ctx, holds[0].record)
	if err != nil {
		return nil, 0, err
	}
	if most := client.Options().ReadTimeout; most > 0 {
		client = client.WithTimeout(most + replicaStep)
	}
	for end := time.Now().Add(o.replicaWait); ; {
		step := max(min(time.Until(end), replicaStep), time.Millisecond)
		renewed, copies, err = confirmOnce(ctx, client, holds, o.replicas, step)
		if err != nil || copies >= o.replicas || ctx.Err() != nil || !time.Now().Before(end) || !slices.Contains(renewed, true) {
			return renewed, copies, err
		}
	}
}

const replicaStep = 500 * time.Millisecond

// confirmOnce renews holds, and has Redis wait for its replicas on the same
// connection: WAIT is about what came before it on that. The renewal is a millisecond
// longer than the grant, so that it is never nothing.
func confirmOnce(ctx context.Context, client *redis.Client, holds []*hold, replicas int, wait time.Duration) (known []bool, copies int, err error) {
	asked := renewalsOf(holds)
	for i, h := range holds {
		ttl := min(h.ttl, h.locker.firstLease)
		if h.bounded() {
			ttl = min(ttl, h.until.Sub(time.Now()))
		}
		asked[i].ttl = ttl + time.Millisecond
	}
	renewal, acks := renewCall(ctx, asked), redis.NewIntCmd(ctx, "wait", replicas, wait.Milliseconds())
	_ = luascript.Pipeline(ctx, client, []*luascript.Call{renewal}, acks) // each command has its own error
	owned, err := renewed(renewal, len(holds))
	if err = cmp.Or(err, acks.Err()); err != nil {
		return nil, 0, err
	}
	for _, n := range owned {
		known = append(known, n > 0)
	}
	return known, int(acks.Val()), nil
}

// replicates implements store.
func (d *deployment) replicates() error {
	if d.single || d.cluster != nil {
		return nil
	}
	return fmt.Errorf("core: %w: WaitReplicas: a redis client of type %T may use another connection for each command", ErrInvalidOption, d.rdb)
}

// primary is the node that serves a record's writes.
func (d *deployment) primary(ctx context.Context, record string) (*redis.Client, error) {
	if d.cluster != nil {
		return d.cluster.MasterForKey(ctx, record)
	}
	client, known := d.rdb.(*redis.Client)
	if !known {
		return nil, errors.New("the client's connections are not known")
	}
	return client, nil
}
