package core

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

const (
	// Leases due within the horizon are renewed in one go.
	renewalHorizon = 10 * time.Millisecond
	renewalBatch   = 256
	// Batches in flight at once. Beyond that renewals wait their turn; ends of
	// leases do not.
	renewalFlights = 8
	// The scheduler looks at the clock this often while there are leases, so
	// that it notices a suspended machine.
	renewalTick = time.Second
)

// renewals keeps a Locker's leases alive and ends them in time: one goroutine
// and one heap, ordered by when each lease has to be looked at next. It never
// waits for Redis itself, so a slow server cannot keep it from ending a lease.
type renewals struct {
	locker *Locker

	mu      sync.Mutex
	leases  leaseHeap
	wakeAt  time.Time     // when the goroutine looks next; zero: not before a lease is added
	timer   *time.Timer   // runs out at wakeAt
	over    chan struct{} // closed by stop
	stopped bool
	emptied chan struct{} // closed when the last lease went, if somebody asked

	flights chan struct{} // holds one per batch in flight
}

func newRenewals(l *Locker) *renewals {
	return &renewals{locker: l, timer: time.NewTimer(time.Hour), over: make(chan struct{}), flights: make(chan struct{}, renewalFlights)}
}

// add takes a granted lease under its care. It reports false when the Locker
// was closed meanwhile.
func (r *renewals) add(l *Lease) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	r.schedule(l)
	heap.Push(&r.leases, l)
	r.wakeBefore(l.at)
	return true
}

// check reports a lease that is not held any more. The ctx of a lost one is over
// when it returns: after a long stop the holder may look before the scheduler
// did, or while the scheduler is about to end the ctx.
func (r *renewals) check(l *Lease) error {
	r.mu.Lock()
	state, over := l.state, trust.Passed(l.deadline, time.Now())
	r.mu.Unlock()
	switch {
	case state == leaseLost:
		err := lost(l, ranOut)
		l.cancel(err)
		return err
	case state == leaseReleased:
		return lost(l, "it was released")
	case over:
		return r.lose(l, ranOut)
	}
	return nil
}

// Why a lease was lost.
const (
	ranOut  = "it was not renewed in time"
	notOurs = "redis says that the key is not ours"
)

// release takes the lease out of renewal, and reports what it was until now and
// whether it could still be trusted.
func (r *renewals) release(l *Lease) (was leaseState, valid bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, l.state = l.state, leaseReleased
	r.remove(l)
	return was, !trust.Passed(l.deadline, time.Now())
}

// lengthen records that the lease can be trusted until deadline.
func (r *renewals) lengthen(l *Lease, deadline time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.state != leaseHeld {
		return lost(l, "it ended while it was being renewed")
	}
	if deadline.After(l.deadline) {
		l.deadline = deadline
	}
	r.reschedule(l)
	return nil
}

// lose ends a lease that is over, and returns what its context's
// cause became.
func (r *renewals) lose(l *Lease, why string) error {
	r.mu.Lock()
	held := l.state == leaseHeld
	if held {
		l.state = leaseLost
		r.remove(l)
	}
	r.mu.Unlock()
	err := lost(l, why)
	if held {
		r.locker.end(l, err)
	}
	return err
}

func lost(l *Lease, why string) error {
	return fmt.Errorf("core: %q: %w: %s", l.key, ErrLeaseLost, why)
}

func (r *renewals) run() {
	defer r.timer.Stop()
	for {
		expired, due, stopped := r.look(time.Now())
		if stopped {
			return
		}
		for _, l := range expired {
			r.locker.end(l, lost(l, ranOut))
		}
		for len(due) > 0 {
			n := min(len(due), renewalBatch)
			r.send(due[:n])
			due = due[n:]
		}

		select {
		case <-r.over:
			return
		case <-r.timer.C:
		}
	}
}

// look takes the leases that have run out and those to be renewed now, and sets
// when to look next.
func (r *renewals) look(now time.Time) (expired, due []*Lease, stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	suspended := len(r.leases) > 0 && !r.wakeAt.IsZero() && now.Round(0).Sub(r.wakeAt.Round(0)) > renewalTick
	if suspended {
		// The wall clock went on while this process did not run: no order by
		// the monotonic clock tells which leases are over.
		for _, l := range append(leaseHeap(nil), r.leases...) {
			if trust.Passed(l.deadline, now) {
				l.state = leaseLost
				r.remove(l)
				expired = append(expired, l)
			}
		}
	}
	soon := now.Add(renewalHorizon)
	for len(r.leases) > 0 && !r.leases[0].at.After(soon) {
		l := r.leases[0]
		if trust.Passed(l.deadline, now) {
			l.state = leaseLost
			r.remove(l)
			expired = append(expired, l)
			continue
		}
		if l.renewAt.IsZero() || l.renewAt.After(soon) {
			break // its end is near but not there: look again at the very moment
		}
		// Asked again, on another connection, if there is no answer by then. Past
		// the horizon, or this loop would not end.
		l.renewAt = now.Add(max(l.deadline.Sub(now)/3, 2*renewalHorizon))
		due = append(due, l)
		r.schedule(l)
		heap.Fix(&r.leases, l.index)
	}
	r.wakeAt = time.Time{}
	if len(r.leases) > 0 {
		r.wakeAt = r.leases[0].at
		if tick := now.Add(renewalTick); r.wakeAt.After(tick) {
			r.wakeAt = tick
		}
		r.timer.Reset(r.wakeAt.Sub(now))
	}
	return expired, due, r.stopped
}

// send renews a batch in the background. When too many batches are in flight
// the leases wait for the next look.
func (r *renewals) send(batch []*Lease) {
	select {
	case r.flights <- struct{}{}:
	default:
		r.postpone(batch, max(batch[0].ttl/50, renewalHorizon))
		return
	}
	if !r.locker.background(func() {
		defer func() { <-r.flights }()
		r.renew(batch)
	}) {
		<-r.flights
	}
}

// renew sends one pipeline and applies its replies.
func (r *renewals) renew(batch []*Lease) {
	ctx := context.Background()
	sent := time.Now()
	replies := r.locker.renewBatch(ctx, batch, sent)
	var firstErr error
	for i, l := range batch {
		reply := replies[i]
		switch {
		case reply.err != nil:
			if firstErr == nil {
				firstErr = reply.err
			}
			r.postpone(batch[i:i+1], max(l.ttl/20, renewalHorizon))
		case !reply.owned:
			_ = r.lose(l, notOurs)
		default:
			next := sent.Add(jitteredThird(l.ttl))
			if l.fixed {
				next = time.Time{} // confirmed to its full length: it is not renewed again
			}
			r.mu.Lock()
			l.renewAt = next
			r.mu.Unlock()
			_ = r.lengthen(l, trust.Until(sent, reply.ttl))
		}
	}
	r.locker.observer.OnRenewed(ctx, Renewed{Leases: len(batch), Latency: time.Since(sent), Err: firstErr})
}

// postpone puts off the renewal of leases that could not be renewed now.
func (r *renewals) postpone(batch []*Lease, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range batch {
		if l.renewAt.IsZero() {
			continue // a later try was answered first
		}
		l.renewAt = time.Now().Add(d)
		r.reschedule(l)
	}
}

// stop ends the care for all leases and returns those still held.
func (r *renewals) stop() []*Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		close(r.over)
	}
	r.stopped = true
	held := append([]*Lease(nil), r.leases...)
	for _, l := range held {
		l.state = leaseLost
		r.remove(l)
	}
	return held
}

// empty returns a channel that is closed when no lease is held.
func (r *renewals) empty() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.leases) == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if r.emptied == nil {
		r.emptied = make(chan struct{})
	}
	return r.emptied
}

// The rest is called with mu held.

func (r *renewals) schedule(l *Lease) {
	l.at = l.deadline
	if !l.renewAt.IsZero() && l.renewAt.Before(l.at) {
		l.at = l.renewAt
	}
}

func (r *renewals) reschedule(l *Lease) {
	if l.index < 0 {
		return
	}
	r.schedule(l)
	heap.Fix(&r.leases, l.index)
	r.wakeBefore(l.at)
}

func (r *renewals) remove(l *Lease) {
	if l.index < 0 {
		return
	}
	heap.Remove(&r.leases, l.index)
	if len(r.leases) == 0 && r.emptied != nil {
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

// jitteredThird is when a lease of ttl is renewed: at a third, less a little,
// so that leases granted together do not stay together.
func jitteredThird(ttl time.Duration) time.Duration {
	third := ttl / 3
	return third - rand.N(third/8+1)
}
