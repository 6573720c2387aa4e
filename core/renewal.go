package core

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

const (
	// Leases due within the horizon are renewed in one go.
	renewalHorizon = 10 * time.Millisecond
	// The scheduler looks at the clock this often while there are leases, so
	// that it notices a suspended machine.
	renewalTick = time.Second
)

// renewals keeps a Locker's holds alive and ends them in time: one goroutine
// and one heap, ordered by when each has to be looked at next. It never waits for
// Redis itself, so a slow server cannot keep it from ending a lease; and renewals
// for one node of a Cluster do not wait for those of another.
type renewals struct {
	locker *Locker

	mu      sync.Mutex
	holds   holdHeap
	flights map[any]int   // batches in flight, by node
	wakeAt  time.Time     // when the goroutine looks next; zero: not before a hold is added
	timer   *time.Timer   // runs out at wakeAt
	over    chan struct{} // closed by stop
	stopped bool
	emptied chan struct{} // closed when the last hold went, if somebody asked
}

func newRenewals(l *Locker) *renewals {
	return &renewals{locker: l, timer: time.NewTimer(time.Hour), over: make(chan struct{}), flights: map[any]int{}}
}

// add takes a hold under its care. It reports false when the Locker was closed
// meanwhile.
func (r *renewals) add(h *hold) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	heap.Push(&r.holds, h)
	r.wakeBefore(h.dueTime())
	r.locker.started.Do(func() { r.locker.begin() })
	return true
}

// adopt makes l the lease that has the hold. It reports false when the hold has ended.
func (r *renewals) adopt(h *hold, l *Lease, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.state != leaseHeld || trust.Passed(h.deadline, now) {
		return false
	}
	h.lease = l
	return true
}

// deadline is until when a hold is trusted.
func (r *renewals) deadline(h *hold) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return h.deadline
}

// check reports a lease that is not held any more. The ctx of a lost one is over
// when it returns: after a long stop the holder may look before the scheduler
// did, or while the scheduler is about to end the ctx.
func (r *renewals) check(l *Lease) error {
	r.mu.Lock()
	state, over := l.state, trust.Passed(l.hold.deadline, time.Now())
	r.mu.Unlock()
	switch {
	case state == leaseLost:
		err := lost(l.Key(), ranOut)
		l.cancel(err)
		return err
	case state == leaseReleased:
		return lost(l.Key(), "it was released")
	case state == leaseDetached:
		return fmt.Errorf("core: %q: %w", l.Key(), ErrDetached)
	case over:
		return r.lose(l.hold, ranOut)
	}
	return nil
}

// valid reports whether a lease is held.
func (r *renewals) valid(l *Lease) bool { return r.check(l) == nil }

// Why a lease was lost.
const (
	ranOut  = "it was not renewed in time"
	notOurs = "redis says that the key is not ours"
	forced  = "it was taken away with ForceRelease"
	// Of leases that travelled.
	elsewhere = "it was released by another that had its token"
)

// release ends a lease, and reports what it was until now and whether it could
// still be trusted. Its hold stays under renewal, to be passed on or dropped.
func (r *renewals) release(l *Lease, now time.Time) (was leaseState, valid bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was = l.state; was != leaseDetached {
		l.state = leaseReleased
	}
	if l.hold.lease == l {
		l.hold.lease = nil
	}
	return was, l.hold.state == leaseHeld && !trust.Passed(l.hold.deadline, now)
}

// share keeps the hold of a lease from being passed on, for its token is about to
// leave. It reports false when the lease has ended: the hold can be another's now.
func (r *renewals) share(l *Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := l.state == leaseHeld && l.hold.state == leaseHeld && !trust.Passed(l.hold.deadline, time.Now())
	if held {
		l.hold.travels.Store(true)
	}
	return held
}

// detach takes a lease and its hold out of this process's care. It reports false when
// the lease has ended.
func (r *renewals) detach(l *Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := l.hold
	if l.state != leaseHeld || h.state != leaseHeld {
		return false
	}
	l.state, h.state, h.lease = leaseDetached, leaseReleased, nil
	r.remove(h)
	return true
}

// drop takes a hold out of renewal.
func (r *renewals) drop(h *hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h.state = leaseReleased
	r.remove(h)
}

// lengthen records that the hold can be trusted until deadline.
func (r *renewals) lengthen(h *hold, deadline time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.state != leaseHeld {
		return lost(h.key(), "it ended while it was being renewed")
	}
	h.trustUntil(later(h.deadline, deadline))
	r.reschedule(h)
	return nil
}

// lose ends a hold that is over, and returns what the cause of its lease's context
// became.
func (r *renewals) lose(h *hold, why string) error {
	r.mu.Lock()
	var l *Lease
	held := h.state == leaseHeld
	if held {
		l = r.markLost(h)
	}
	r.mu.Unlock()
	err := lost(h.key(), why)
	if held {
		r.locker.end(h, l, err)
	}
	return err
}

// of returns the holds on key whose grant has this first fence.
func (r *renewals) of(key string, fence int64) (found []*hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.holds {
		if h := s.hold; h.fence == fence && h.key() == key {
			found = append(found, h)
		}
	}
	return found
}

func lost(key, why string) error {
	return fmt.Errorf("core: %q: %w: %s", key, ErrLeaseLost, why)
}

func (r *renewals) run() {
	defer r.timer.Stop()
	for {
		expired, due, stopped := r.look(time.Now())
		if stopped {
			return
		}
		for _, e := range expired {
			r.locker.end(e.hold, e.lease, lost(e.hold.key(), ranOut))
		}
		for node, holds := range r.byNode(due) {
			for len(holds) > 0 {
				n := min(len(holds), renewalBatch)
				r.send(node, holds[:n])
				holds = holds[n:]
			}
		}

		select {
		case <-r.over:
			return
		case <-r.timer.C:
		}
	}
}

// ended is a hold that was lost, and the lease that had it, if any.
type ended struct {
	hold  *hold
	lease *Lease
}

// look takes the holds that have run out and those to be renewed now, and sets
// when to look next.
func (r *renewals) look(now time.Time) (expired []ended, due []*hold, stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	expire := func(h *hold) { expired = append(expired, ended{h, r.markLost(h)}) }
	suspended := len(r.holds) > 0 && !r.wakeAt.IsZero() && now.Round(0).Sub(r.wakeAt.Round(0)) > renewalTick
	if suspended {
		// The wall clock went on while this process did not run: no order by
		// the monotonic clock tells which holds are over.
		for _, s := range slices.Clone(r.holds) {
			if trust.Passed(s.hold.deadline, now) {
				expire(s.hold)
			}
		}
	}
	soon := instantOf(now.Add(renewalHorizon))
	for len(r.holds) > 0 && r.holds[0].at <= soon {
		h := r.holds[0].hold
		if trust.Passed(h.deadline, now) {
			expire(h)
			continue
		}
		if h.renewAt == 0 || h.renewAt > soon {
			break // its end is near but not there: look again at the very moment
		}
		// Asked again, on another connection, if there is no answer by then. Past
		// the horizon, or this loop would not end.
		h.renewAt = instantOf(now.Add(max(h.deadline.Sub(now)/3, 2*renewalHorizon)))
		due = append(due, h)
		r.holds.fix(h)
	}
	r.wakeAt = time.Time{}
	if len(r.holds) > 0 {
		r.wakeAt = r.holds[0].hold.dueTime()
		if tick := now.Add(renewalTick); r.wakeAt.After(tick) {
			r.wakeAt = tick
		}
		r.timer.Reset(r.wakeAt.Sub(now))
	}
	return expired, due, r.stopped
}

// followSpread is the time over which a process renews all its holds after a failover: not at
// once, since every process has some.
const followSpread = time.Second

// soon renews, within followSpread, all holds that are renewed at all: Redis may have lost them.
func (r *renewals) soon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, s := range slices.Clone(r.holds) {
		if at := instantOf(now.Add(rand.N(followSpread))); s.hold.renewAt > at {
			s.hold.renewAt = at
			r.reschedule(s.hold)
		}
	}
}

// stop ends the care for all holds and returns them.
func (r *renewals) stop() []ended {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		close(r.over)
	}
	r.stopped = true
	var held []ended
	for _, s := range slices.Clone(r.holds) {
		held = append(held, ended{s.hold, r.markLost(s.hold)})
	}
	return held
}

// empty returns a channel that is closed when no key is held.
func (r *renewals) empty() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.holds) == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if r.emptied == nil {
		r.emptied = make(chan struct{})
	}
	return r.emptied
}

// count is how many keys are held.
func (r *renewals) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.holds)
}

// The rest is called with mu held.

// markLost takes a hold out, and returns the lease that had it.
func (r *renewals) markLost(h *hold) *Lease {
	h.state = leaseLost
	r.remove(h)
	l := h.lease
	if l != nil {
		l.state = leaseLost
	}
	return l
}

// putOff sets when a hold is to be renewed, unless it needs no renewal any more: a
// later try was answered first.
func (r *renewals) putOff(h *hold, at time.Time) {
	if h.renewAt != 0 {
		h.renewAt = instantOf(at)
		r.reschedule(h)
	}
}

// due is when the scheduler looks at the hold next.
func (h *hold) due() instant {
	end := instantOf(h.deadline)
	if h.renewAt == 0 {
		return end
	}
	return min(h.renewAt, end)
}

// dueTime is due by both clocks as they were at the last grant or renewal: look tells
// from the wall clock that the machine was suspended.
func (h *hold) dueTime() time.Time { return h.deadline.Add(h.due().sub(h.deadline)) }

func (r *renewals) reschedule(h *hold) {
	if h.index < 0 {
		return
	}
	r.holds.fix(h)
	r.wakeBefore(h.dueTime())
}

func (r *renewals) remove(h *hold) {
	if h.index < 0 {
		return
	}
	heap.Remove(&r.holds, int(h.index))
	if len(r.holds) == 0 && r.emptied != nil {
		close(r.emptied)
		r.emptied = nil
	}
}

// wakeBefore has the goroutine look at the time at, if it would look only later. It
// does not wake it now: that would cost every first lease a switch of threads. A
// lease that goes wakes nobody: the goroutine looks in vain, at most once a tick.
func (r *renewals) wakeBefore(at time.Time) {
	if r.wakeAt.IsZero() || at.Before(r.wakeAt) {
		r.wakeAt = at
		r.timer.Reset(time.Until(at))
	}
}

// renewalTime is when a lease of ttl that was asked for at sent is renewed: at a
// third, less a little at random, so that leases granted together do not stay
// together for ever. It is rounded down, so that many leases need few batches.
func renewalTime(sent time.Time, ttl time.Duration) time.Time {
	third := max(ttl, 0) / 3 // a grant can be over by the time it is looked at
	at := sent.Add(third - rand.N(third/16+1))
	return at.Add(-time.Duration(at.UnixNano() % int64(third/16+1)))
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
