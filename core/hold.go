package core

import (
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
)

// hold is what this process has of a key in Redis. A lease is one call's use of it:
// a hold can pass from lease to lease without Redis.
type hold struct {
	locker *Locker
	record string // the key's name in Redis
	// What its entry is made of, as it was granted; see holder and mode. The owner is
	// the id of another Locker if the lease has travelled.
	owner  *string
	secret entrySecret
	limit  int32

	form   atomic.Int32
	used   int32 // what the present lease's fence is above the first's
	fence  int64 // of the first lease
	since  schedule.Instant
	until  schedule.Instant // not renewed past this; zero: no bound
	ttl    time.Duration
	copies int16      // replicas that are known to have the grant
	state  leaseState // guarded by locker.leases.mu
	// Redis said that somebody waits.
	waiting atomic.Bool
	// Another process may hold the key by the same entry: it cannot be passed on.
	travels atomic.Bool

	// Guarded by locker.leases.mu, but for its end.
	schedule.Times
	lease *Lease // who has it; nil while it is being passed
}

// newHold makes the hold of a grant that can be trusted until deadline.
func (l *Locker) newHold(record, entry string, limit int, fence int64, deadline time.Time, o *acquireOptions) *hold {
	now := time.Now()
	owner, secret := splitEntry(entry)
	h := &hold{
		locker: l, record: record, owner: &l.id, secret: secret, limit: int32(limit), fence: fence,
		since: schedule.InstantOf(now), ttl: o.ttl,
	}
	if owner != l.id {
		h.owner = new(owner)
	}
	if o.maxHold > 0 {
		h.until = schedule.InstantOf(now.Add(o.maxHold))
	}
	var renewAt schedule.Instant
	if first := deadline.Sub(now); o.maxHold == 0 || o.maxHold > first+first/10 {
		renewAt = schedule.InstantOf(renewalTime(now, first))
	}
	h.Start(schedule.MomentOf(deadline), renewAt)
	return h
}

func (h *hold) key() string { return keyOf(h.locker.prefix, h.record) }

func (h *hold) releaseRequest() releaseRequest {
	return releaseRequest{record: h.record, entry: h.holder(), used: h.lastFence(), hold: h}
}

// lastFence is that of the present lease.
func (h *hold) lastFence() int64 { return h.fence + int64(h.used) }

// bounded reports whether the hold is made for one lease.
func (h *hold) bounded() bool { return h.until != 0 }
