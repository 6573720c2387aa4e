package core

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/trust"
)

// leaseTable is which holds a Locker has, which lease has each, and how they end. It sends
// nothing to Redis: the renewals do, for what next returns.
type leaseTable struct {
	begin func()                               // called with mu held, for the first hold
	end   func(h *hold, l *Lease, cause error) // tells of a lost hold, and the lease that had it, if any

	mu       sync.Mutex
	schedule *schedule.Schedule[*hold]
	begun    bool
	stopped  bool
	emptied  chan struct{} // closed when the last hold went, if somebody asked
}

// newLeaseTable makes a table. It calls wake, with its mutex held, to say when to call next.
func newLeaseTable(begin func(), wake func(at schedule.Instant), end func(*hold, *Lease, error)) *leaseTable {
	return &leaseTable{begin: begin, end: end, schedule: schedule.New[*hold](wake)}
}

// add takes a hold that was just made. It reports false when the Locker was closed meanwhile.
func (t *leaseTable) add(h *hold) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	t.schedule.Add(h, h.since)
	if !t.begun {
		t.begun = true
		t.begin()
	}
	return true
}

// adopt makes l the lease that has the hold. It reports false when the hold has ended.
func (t *leaseTable) adopt(h *hold, l *Lease, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !h.valid(now) {
		return false
	}
	h.lease = l
	return true
}

// valid reports whether a hold can be relied on. Called with leaseTable.mu held.
func (h *hold) valid(now time.Time) bool {
	return h.state == leaseHeld && !h.Expired(schedule.MomentOf(now))
}

// check reports a lease that is not held any more. The ctx of a lost one is over
// when it returns: after a long stop the holder may look before the renewals
// did, or while they are about to end the ctx.
func (t *leaseTable) check(l *Lease) error {
	t.mu.Lock()
	state, over := l.state, l.hold.Expired(schedule.MomentOf(time.Now()))
	t.mu.Unlock()
	switch {
	case state == leaseLost:
		err := lost(l.Key(), ranOut)
		l.cancel(err)
		return err
	case state == leaseReleased:
		return lost(l.Key(), loss{text: "it was released"})
	case state == leaseDetached:
		return fmt.Errorf("core: %q: %w", l.Key(), ErrDetached)
	case over:
		return t.lose(l.hold, ranOut)
	}
	return nil
}

// valid reports whether a lease is held.
func (t *leaseTable) valid(l *Lease) bool { return t.check(l) == nil }

// release ends a lease, and reports what it was until now and whether it could
// still be relied on. Its hold stays under renewal, to be handed over or dropped.
func (t *leaseTable) release(l *Lease, now time.Time) (was leaseState, valid bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if was = l.state; was != leaseDetached {
		l.state = leaseReleased
	}
	if l.hold.lease == l {
		l.hold.lease = nil
	}
	return was, l.hold.valid(now)
}

// share keeps the hold of a lease from being handed over, for its token is about to
// leave. It reports false when the lease has ended: the hold can be another's now.
func (t *leaseTable) share(l *Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := l.state == leaseHeld && l.hold.valid(time.Now())
	if held {
		l.hold.transferred.Store(true)
	}
	return held
}

// detach takes a lease and its hold out. It reports false when the lease has ended.
func (t *leaseTable) detach(l *Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := l.hold
	if l.state != leaseHeld || h.state != leaseHeld {
		return false
	}
	l.state, h.lease = leaseDetached, nil
	t.remove(h, leaseReleased)
	return true
}

// drop takes a hold out.
func (t *leaseTable) drop(h *hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(h, leaseReleased)
}

// lengthen records that the hold can be relied on until deadline.
func (t *leaseTable) lengthen(h *hold, deadline time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.state != leaseHeld {
		return lost(h.key(), loss{text: "it ended while it was being renewed"})
	}
	t.schedule.Set(h, schedule.MomentOf(deadline), h.RenewAt())
	return nil
}

// lose ends a hold that is over, and returns what the cause of its lease's context
// became.
func (t *leaseTable) lose(h *hold, why loss) error {
	t.mu.Lock()
	var e ended
	held := h.state == leaseHeld
	if held {
		e = t.markLost(h)
	}
	t.mu.Unlock()
	err := lost(h.key(), why)
	if held {
		t.end(h, e.lease, err)
	}
	return err
}

// of returns the holds on key whose grant has this first fence.
func (t *leaseTable) of(key string, fence int64) (found []*hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for h := range t.schedule.All() {
		if h.fence == fence && h.key() == key {
			found = append(found, h)
		}
	}
	return found
}

// ended is a hold that was lost, and the lease that had it, if any.
type ended struct {
	hold  *hold
	lease *Lease
}

// next takes out the holds that have expired, and returns those to be renewed now.
func (t *leaseTable) next(now time.Time) (lost []ended, due []*hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	expired, due := t.schedule.Next(schedule.MomentOf(now))
	for _, h := range expired {
		lost = append(lost, t.markLost(h))
	}
	return lost, due
}

// lengths sets how long each hold of a batch is to be renewed for. first is for holds that
// no lease has yet.
func (t *leaseTable) lengths(asked []store.Renewal, batch []*hold, first time.Duration, sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, h := range batch {
		ttl := h.ttl
		if h.lease == nil { // its call may yet fail
			ttl = min(ttl, first)
		}
		if h.bounded() {
			ttl = max(min(ttl, h.until.Sub(sent)), time.Millisecond)
		}
		asked[i].TTL = ttl
	}
}

// answered applies the replies to a batch. It returns the holds that are not ours any more.
func (t *leaseTable) answered(batch []*hold, asked []store.Renewal, replies []store.RenewalReply, sent, now time.Time) (gone []*hold, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, h := range batch {
		reply := replies[i]
		switch {
		case h.state != leaseHeld:
		case reply.Err != nil:
			err = cmp.Or(err, reply.Err)
			t.putOff(h, now.Add(max(h.ttl/20, schedule.Horizon)))
		case !reply.Owned:
			if _, rekeyed := h.Rekeyed(asked[i].Token); rekeyed {
				t.putOff(h, now.Add(schedule.Horizon))
			} else {
				gone = append(gone, h)
			}
		default:
			h.waiting.Store(reply.Waiting)
			renewAt := schedule.InstantOf(renewalTime(sent, reply.TTL))
			if h.bounded() && h.until.Sub(sent) <= reply.TTL {
				renewAt = 0 // confirmed to its end
			}
			t.schedule.Set(h, schedule.MomentOf(trust.Until(sent, reply.TTL)), renewAt)
		}
	}
	return gone, err
}

// postpone puts off the renewal of holds that could not be renewed now.
func (t *leaseTable) postpone(batch []*hold, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Now().Add(d)
	for _, h := range batch {
		t.putOff(h, at)
	}
}

// followSpread is the time over which a process renews all its holds after a failover: not at
// once, since every process has some.
const followSpread = time.Second

// soon has all holds that are renewed at all renewed within followSpread: Redis may have lost
// them.
func (t *leaseTable) soon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, h := range slices.Collect(t.schedule.All()) {
		if at := schedule.InstantOf(now.Add(rand.N(followSpread))); h.RenewAt() > at {
			t.schedule.Set(h, h.Deadline(), at)
		}
	}
}

// stop takes all holds out and returns them. No more are added.
func (t *leaseTable) stop() (held []ended) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for _, h := range slices.Collect(t.schedule.All()) {
		held = append(held, t.markLost(h))
	}
	return held
}

// empty returns a channel that is closed when no key is held.
func (t *leaseTable) empty() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.schedule.Len() == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if t.emptied == nil {
		t.emptied = make(chan struct{})
	}
	return t.emptied
}

// count is how many keys are held.
func (t *leaseTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.schedule.Len()
}

// The rest is called with mu held.

func (t *leaseTable) markLost(h *hold) ended {
	t.remove(h, leaseLost)
	if h.lease != nil {
		h.lease.state = leaseLost
	}
	return ended{h, h.lease}
}

// remove takes a hold out.
func (t *leaseTable) remove(h *hold, state leaseState) {
	h.state = state
	t.schedule.Remove(h)
	if t.schedule.Len() == 0 && t.emptied != nil {
		close(t.emptied)
		t.emptied = nil
	}
}

// putOff sets when a hold is to be renewed, unless it needs no renewal any more: a
// later try was answered first.
func (t *leaseTable) putOff(h *hold, at time.Time) {
	if h.RenewAt() != 0 {
		t.schedule.Set(h, h.Deadline(), schedule.InstantOf(at))
	}
}
