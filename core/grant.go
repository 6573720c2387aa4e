package core

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/along"
)

// grant is a key that Redis granted to this process. A lease is one call's use of it: a grant can be
// handed over from lease to lease without Redis.
type grant struct {
	locker *Locker
	record string // the key's name in Redis
	// The parts of its token, as it was granted; see token and mode. The owner is
	// the id of another Locker if the lease was transferred.
	owner  *string
	secret store.Secret
	limit  int32

	downgrade atomic.Int32
	used      int32 // by how much the present lease's fence is greater than the first one
	fence     int64 // of the first lease
	since     schedule.Instant
	until     schedule.Instant // not renewed past this; zero: no bound
	ttl       time.Duration
	acks      int16       // how many replicas are known to have the grant
	state     leaseState  // guarded by locker.leases.mu
	waited    bool        // its token was in the key's FIFO; guarded by locker.waiters.mu
	along     along.Rider // of the present lease; nil: nobody
	// Its release ends its key's reservation as well. reservedStill: that was made anew, or it is not known that it ended.
	unreserves, reservedStill bool
	briefly                   bool // its release is not tried again while Redis is down: a caller waits for it, and the rest is in the background
	// Redis said that other processes wait.
	waiting atomic.Bool
	// Another process may hold the key by the same token, so the grant cannot be handed over.
	transferred atomic.Bool
	asked       int32 // how long before since it was asked for, in ms

	// Guarded by locker.leases.mu, except for its deadline.
	schedule.Times
	lease        *Lease // that uses it; nil while it is being handed over
	older, newer *grant // in leaseTable.byAge
}

// newGrant makes a grant that Redis made after asked, that is known now, and that can be trusted
// until deadline.
func (l *Locker) newGrant(record, token string, limit int, fence int64, asked, now, deadline time.Time, o *acquireOptions) *grant {
	owner, secret := store.SplitToken(token)
	g := &grant{
		locker: l, record: record, owner: &l.id, secret: secret, limit: int32(limit), fence: fence,
		since: schedule.InstantOf(now), asked: int32(now.Sub(asked).Milliseconds() + 1), ttl: o.ttl,
	}
	if owner != l.id {
		g.owner = new(owner)
	}
	if o.maxHold > 0 {
		g.until = schedule.InstantOf(now.Add(o.maxHold))
		if last := now.Add(o.maxHold); deadline.After(last) { // another process's release granted it for a claim's length
			deadline = last
		}
	}
	var renewAt schedule.Instant
	if first := deadline.Sub(now); o.maxHold == 0 || o.maxHold > first+first/10 {
		renewAt = schedule.InstantOf(renewalTime(now, first))
	}
	g.Start(schedule.MomentOf(deadline), renewAt)
	return g
}

func (g *grant) key() string { return store.KeyOf(g.locker.prefix, g.record) }

func (g *grant) releaseRequest() store.ReleaseRequest {
	return store.ReleaseRequest{Record: g.record, Token: g.token(), Used: g.lastFence(), Asked: g.waited || g.waiting.Load(), Briefly: g.briefly, Unreserve: g.unreserves, Holder: g, Along: g.along}
}

// extend renews the lease in Redis for a caller that waits for it.
func (g *grant) extend(ctx context.Context, op string, ttl time.Duration) (owned bool, err error) {
	token := g.token()
	owned, _, err = g.locker.store.Extend(ctx, op, g.record, token, ttl)
	if err != nil || owned {
		return owned, err
	}
	if now, ok := g.Rekeyed(token); ok {
		owned, _, err = g.locker.store.Extend(ctx, op, g.record, now, ttl)
	}
	return owned, err
}

// An exclusive grant has another token in Redis after a downgrade. While that is in flight it may have
// either.
const (
	notDowngraded int32 = iota
	downgrading
	downgraded
)

// token is the grant's owner token in Redis, as far as is known.
func (g *grant) token() string { return string(g.appendToken(make([]byte, 0, store.TokenRoom))) }

func (g *grant) appendToken(b []byte) []byte {
	limit := int(g.limit)
	if g.downgrade.Load() == downgraded {
		limit = shared
	}
	return store.AppendToken(b, limit, *g.owner, g.secret)
}

// mode is how many may hold the key together with the grant, at worst.
func (g *grant) mode() int {
	if g.downgrade.Load() != notDowngraded {
		return shared
	}
	return int(g.limit)
}

// Rekeyed implements [store.Rekeyed]. It counts a downgrade that is still in flight as done.
func (g *grant) Rekeyed(from string) (token string, ok bool) {
	g.downgrade.CompareAndSwap(downgrading, downgraded)
	token = g.token()
	return token, token != from
}

// lastFence is the fence of the present lease.
func (g *grant) lastFence() int64 { return g.fence + int64(g.used) }

// madeAfter is a time before Redis made the grant.
func (g *grant) madeAfter() schedule.Instant {
	return g.since - schedule.Instant(time.Duration(g.asked)*time.Millisecond)
}

// bounded reports whether the grant is for one lease only: it has a MaxHold.
func (g *grant) bounded() bool { return g.until != 0 }
