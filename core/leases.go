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
	begin func()                                // called with mu held, for the first grant
	end   func(g *grant, l *Lease, cause error) // tells of a lost grant, and its lease, if it has one

	mu       sync.Mutex
	schedule *schedule.Schedule[*grant]
	byAge    grant // is none: the ends of the list of all grants, by when their present calls were granted them
	begun    bool
	stopped  bool
	emptied  chan struct{} // nil, or closed when the last grant has ended; see empty
}

// newLeaseTable makes a table. It calls wake, with its mutex held, to say when to call next.
func newLeaseTable(begin func(), wake func(at schedule.Instant), end func(*grant, *Lease, error)) *leaseTable {
	t := &leaseTable{begin: begin, end: end, schedule: schedule.New[*grant](wake)}
	t.byAge.older, t.byAge.newer = &t.byAge, &t.byAge
	return t
}

// add takes a new grant. It reports false when the Locker was closed meanwhile.
func (t *leaseTable) add(g *grant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	t.schedule.Add(g, g.since)
	t.link(g)
	if !t.begun {
		t.begun = true
		t.begin()
	}
	return true
}

// adopt makes l the lease of the grant. It reports false when the grant has ended.
func (t *leaseTable) adopt(g *grant, l *Lease, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !g.valid(now) {
		return false
	}
	g.unlink()
	g.lease = l
	t.link(g)
	return true
}

// valid reports whether a grant can be relied on. Called with leaseTable.mu held.
func (g *grant) valid(now time.Time) bool {
	return g.state == leaseHeld && !g.Expired(schedule.MomentOf(now))
}

// check returns why a lease is not held any more, or nil. The ctx of a lost one has ended when it
// returns: after a long stop the holder may check before the renewal loop does, or while that is
// about to end the ctx.
func (t *leaseTable) check(l *Lease) error {
	t.mu.Lock()
	state, over := l.state, l.grant.Expired(schedule.MomentOf(time.Now()))
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
		return t.lose(l.grant, ranOut)
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
	if l.grant.lease == l {
		l.grant.lease = nil
	}
	return was, l.grant.valid(now)
}

// share keeps the grant of a lease from being handed over, since its token is about to be
// transferred. It reports false when the lease has ended: the grant may already be another lease's.
func (t *leaseTable) share(l *Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	held := l.state == leaseHeld && l.grant.valid(time.Now())
	if held {
		l.grant.transferred.Store(true)
	}
	return held
}

// detach removes a lease and its grant. It reports false when the lease has ended.
func (t *leaseTable) detach(l *Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := l.grant
	if l.state != leaseHeld || g.state != leaseHeld {
		return false
	}
	l.state, g.lease = leaseDetached, nil
	t.remove(g, leaseReleased)
	return true
}

// drop removes a grant.
func (t *leaseTable) drop(g *grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(g, leaseReleased)
}

// lengthen records that the grant can be relied on until deadline.
func (t *leaseTable) lengthen(g *grant, deadline time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g.state != leaseHeld {
		return lost(g.key(), loss{text: "it ended while it was being renewed"})
	}
	t.schedule.Set(g, schedule.MomentOf(deadline), g.RenewAt())
	return nil
}

// lose ends a grant that is over: mark it lost → end the lease's context. It returns the cause of
// that context.
func (t *leaseTable) lose(g *grant, why loss) error {
	t.mu.Lock()
	var e ended
	held := g.state == leaseHeld
	if held {
		e = t.markLost(g)
	}
	t.mu.Unlock()
	err := lost(g.key(), why)
	if held {
		t.end(g, e.lease, err)
	}
	return err
}

// of returns the grants of key whose first fence this is.
func (t *leaseTable) of(key string, fence int64) (found []*grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for g := range t.schedule.All() {
		if g.fence == fence && g.key() == key {
			found = append(found, g)
		}
	}
	return found
}

// ended is a grant that was lost, and its lease, if it had one.
type ended struct {
	grant *grant
	lease *Lease
}

// next removes the grants that have expired, and returns them and those to be renewed now.
func (t *leaseTable) next(now time.Time) (lost []ended, due []*grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	expired, due := t.schedule.Next(schedule.MomentOf(now))
	for _, g := range expired {
		lost = append(lost, t.markLost(g))
	}
	return lost, due
}

// lengths sets for how long each grant of a batch is to be renewed: first at most while it has no
// lease.
func (t *leaseTable) lengths(asked []store.Renewal, batch []*grant, first time.Duration, sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, g := range batch {
		ttl := g.ttl
		if g.lease == nil { // its call may still fail
			ttl = min(ttl, first)
		}
		if g.bounded() {
			ttl = max(min(ttl, g.until.Sub(sent)), time.Millisecond)
		}
		asked[i].TTL = ttl
	}
}

// answered applies the replies to a batch. It returns the grants that Redis does not know any more.
func (t *leaseTable) answered(batch []*grant, asked []store.Renewal, replies []store.RenewalReply, sent, now time.Time) (gone []*grant, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, g := range batch {
		reply := replies[i]
		switch {
		case g.state != leaseHeld:
		case reply.Err != nil:
			err = cmp.Or(err, reply.Err)
			t.putOff(g, now.Add(max(g.ttl/20, schedule.Horizon)))
		case !reply.Owned:
			if _, rekeyed := g.Rekeyed(asked[i].Token); rekeyed {
				t.putOff(g, now.Add(schedule.Horizon))
			} else {
				gone = append(gone, g)
			}
		default:
			g.waiting.Store(reply.Waiting)
			renewAt := schedule.InstantOf(renewalTime(sent, reply.TTL))
			if g.bounded() && g.until.Sub(sent) <= reply.TTL {
				renewAt = 0 // confirmed to its end
			}
			t.schedule.Set(g, schedule.MomentOf(trust.Until(sent, reply.TTL)), renewAt)
		}
	}
	return gone, err
}

// postpone postpones the renewal of grants that could not be renewed now.
func (t *leaseTable) postpone(batch []*grant, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Now().Add(d)
	for _, g := range batch {
		t.putOff(g, at)
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
	for _, g := range slices.Collect(t.schedule.All()) {
		if at := schedule.InstantOf(now.Add(rand.N(followSpread))); g.RenewAt() > at {
			t.schedule.Set(g, g.Deadline(), at)
		}
	}
}

// stop removes all grants and returns them. No more are added.
func (t *leaseTable) stop() (held []ended) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for _, g := range slices.Collect(t.schedule.All()) {
		held = append(held, t.markLost(g))
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

func (t *leaseTable) markLost(g *grant) ended {
	t.remove(g, leaseLost)
	if g.lease != nil {
		g.lease.state = leaseLost
		g.lease.told = make(chan struct{})
	}
	return ended{g, g.lease}
}

// remove removes a grant.
func (t *leaseTable) remove(g *grant, state leaseState) {
	g.state = state
	t.schedule.Remove(g)
	g.unlink()
	if t.schedule.Len() == 0 && t.emptied != nil {
		close(t.emptied)
		t.emptied = nil
	}
}

// putOff sets when a grant is to be renewed, unless it needs no renewal any more: the reply to a
// later try may have arrived first.
func (t *leaseTable) putOff(g *grant, at time.Time) {
	if g.RenewAt() != 0 {
		t.schedule.Set(g, g.Deadline(), schedule.InstantOf(at))
	}
}
