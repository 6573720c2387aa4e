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

// leaseTable has the grants of a Locker and the lease of each, and decides how they end. It sends
// nothing to Redis: the renewal loop sends what next returns.
type leaseTable struct {
	begin func()                               // called with mu held, for the first grant
	end   func(h *hold, l *Lease, cause error) // tells of a lost grant, and its lease, if it has one

	mu       sync.Mutex
	schedule *schedule.Schedule[*hold]
	begun    bool
	stopped  bool
	emptied  chan struct{} // nil, or closed when the last grant has ended; see empty
}

// newLeaseTable makes a table. It calls wake, with its mutex held, to say when to call next.
func newLeaseTable(begin func(), wake func(at schedule.Instant), end func(*hold, *Lease, error)) *leaseTable {
	return &leaseTable{begin: begin, end: end, schedule: schedule.New[*hold](wake)}
}

// add takes a new grant. It reports false when the Locker was closed meanwhile.
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

// adopt makes l the lease of the grant. It reports false when the grant has ended.
func (t *leaseTable) adopt(h *hold, l *Lease, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !h.valid(now) {
		return false
	}
	h.lease = l
	return true
}

// valid reports whether a grant can be relied on. Called with leaseTable.mu held.
func (h *hold) valid(now time.Time) bool {
	return h.state == leaseHeld && !h.Expired(schedule.MomentOf(now))
}

// check returns why a lease is not held any more, or nil. The ctx of a lost one has ended when it
// returns: after a long stop the holder may check before the renewal loop does, or while that is
// about to end the ctx.
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

// release ends a lease, and returns its state before and whether it could still be relied on. Its
// grant stays under renewal, to be handed over or dropped.
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

// share keeps the grant of a lease from being handed over, since its token is about to be
// transferred. It reports false when the lease has ended: the grant may already be another lease's.
func (t *leaseTable) share(l *Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := l.state == leaseHeld && l.hold.valid(time.Now())
	if held {
		l.hold.transferred.Store(true)
	}
	return held
}

// detach removes a lease and its grant. It reports false when the lease has ended.
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

// drop removes a grant.
func (t *leaseTable) drop(h *hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(h, leaseReleased)
}

// lengthen records that the grant can be relied on until deadline.
func (t *leaseTable) lengthen(h *hold, deadline time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.state != leaseHeld {
		return lost(h.key(), loss{text: "it ended while it was being renewed"})
	}
	t.schedule.Set(h, schedule.MomentOf(deadline), h.RenewAt())
	return nil
}

// lose ends a grant that is over: mark it lost → end the lease's context. It returns the cause of
// that context.
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

// of returns the grants of key whose first fence this is.
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

// ended is a grant that was lost, and its lease, if it had one.
type ended struct {
	hold  *hold
	lease *Lease
}

// next removes the grants that have expired, and returns them and those to be renewed now.
func (t *leaseTable) next(now time.Time) (lost []ended, due []*hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	expired, due := t.schedule.Next(schedule.MomentOf(now))
	for _, h := range expired {
		lost = append(lost, t.markLost(h))
	}
	return lost, due
}

// lengths sets for how long each grant of a batch is to be renewed: first at most while it has no
// lease.
func (t *leaseTable) lengths(asked []store.Renewal, batch []*hold, first time.Duration, sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, h := range batch {
		ttl := h.ttl
		if h.lease == nil { // its call may still fail
			ttl = min(ttl, first)
		}
		if h.bounded() {
			ttl = max(min(ttl, h.until.Sub(sent)), time.Millisecond)
		}
		asked[i].TTL = ttl
	}
}

// answered applies the replies to a batch. It returns the grants that Redis does not know any more.
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

// postpone postpones the renewal of grants that could not be renewed now.
func (t *leaseTable) postpone(batch []*hold, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Now().Add(d)
	for _, h := range batch {
		t.putOff(h, at)
	}
}

// followSpread is the time over which a process renews all its grants after a failover: not at
// once, since every process has some.
const followSpread = time.Second

// soon has all grants that are renewed at all renewed within followSpread: Redis may have lost
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

// stop removes all grants and returns them. No more are added.
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

// remove removes a grant.
func (t *leaseTable) remove(h *hold, state leaseState) {
	h.state = state
	t.schedule.Remove(h)
	if t.schedule.Len() == 0 && t.emptied != nil {
		close(t.emptied)
		t.emptied = nil
	}
}

// putOff sets when a grant is to be renewed, unless it needs no renewal any more: the reply to a
// later try may have arrived first.
func (t *leaseTable) putOff(h *hold, at time.Time) {
	if h.RenewAt() != 0 {
		t.schedule.Set(h, h.Deadline(), schedule.InstantOf(at))
	}
}
