package core

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
	"github.com/perkey-go/perkey/core/internal/store"
)

// hold is a key that Redis granted to this process. A lease is one call's use of it: a grant can be
// handed over from lease to lease without Redis.
type hold struct {
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
	acks      int16      // how many replicas are known to have the grant
	state     leaseState // guarded by locker.leases.mu
	waited    bool       // its token was in the key's FIFO; guarded by locker.waiters.mu
	// Redis said that other processes wait.
	waiting atomic.Bool
	// Another process may hold the key by the same token, so the grant cannot be handed over.
	transferred atomic.Bool

	// Guarded by locker.leases.mu, except for its deadline.
	schedule.Times
	lease *Lease // that uses it; nil while it is being handed over
}

// newHold makes the hold of a grant that came now and can be trusted until deadline.
func (l *Locker) newHold(record, token string, limit int, fence int64, now, deadline time.Time, o *acquireOptions) *hold {
	owner, secret := store.SplitToken(token)
	h := &hold{
		locker: l, record: record, owner: &l.id, secret: secret, limit: int32(limit), fence: fence,
		since: schedule.InstantOf(now), ttl: o.ttl,
	}
	if owner != l.id {
		h.owner = new(owner)
	}
	if o.maxHold > 0 {
		h.until = schedule.InstantOf(now.Add(o.maxHold))
		if last := now.Add(o.maxHold); deadline.After(last) { // another process's release granted it for a claim's length
			deadline = last
		}
	}
	var renewAt schedule.Instant
	if first := deadline.Sub(now); o.maxHold == 0 || o.maxHold > first+first/10 {
		renewAt = schedule.InstantOf(renewalTime(now, first))
	}
	h.Start(schedule.MomentOf(deadline), renewAt)
	return h
}

func (h *hold) key() string { return store.KeyOf(h.locker.prefix, h.record) }

func (h *hold) releaseRequest() store.ReleaseRequest {
	return store.ReleaseRequest{Record: h.record, Token: h.token(), Used: h.lastFence(), Asked: h.waited || h.waiting.Load(), Holder: h}
}

// extend renews the lease in Redis for a caller that waits for it.
func (h *hold) extend(ctx context.Context, op string, ttl time.Duration) (owned bool, err error) {
	token := h.token()
	owned, _, err = h.locker.store.Extend(ctx, op, h.record, token, ttl)
	if err != nil || owned {
		return owned, err
	}
	if now, ok := h.Rekeyed(token); ok {
		owned, _, err = h.locker.store.Extend(ctx, op, h.record, now, ttl)
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
func (h *hold) token() string { return string(h.appendToken(make([]byte, 0, store.TokenRoom))) }

func (h *hold) appendToken(b []byte) []byte {
	limit := int(h.limit)
	if h.downgrade.Load() == downgraded {
		limit = shared
	}
	return store.AppendToken(b, limit, *h.owner, h.secret)
}

// mode is how many may hold the key together with the grant, at worst.
func (h *hold) mode() int {
	if h.downgrade.Load() != notDowngraded {
		return shared
	}
	return int(h.limit)
}

// Rekeyed implements [store.Rekeyed]. It counts a downgrade that is still in flight as done.
func (h *hold) Rekeyed(from string) (token string, ok bool) {
	h.downgrade.CompareAndSwap(downgrading, downgraded)
	token = h.token()
	return token, token != from
}

// lastFence is the fence of the present lease.
func (h *hold) lastFence() int64 { return h.fence + int64(h.used) }

// bounded reports whether the grant is for one lease only: it has a MaxHold.
func (h *hold) bounded() bool { return h.until != 0 }
