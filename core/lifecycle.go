package core

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// lifecycle is the end of a Locker and of its store: whether they take calls, and which
// goroutines Close waits for.
//
// Its mutex is the innermost of this package. A goroutine that holds one of these takes only
// those to the right of it:
//
//	waiters, leaseTable, quorumAttempt, quorum | deployment.batchersMu, a batcher's group, cancellations, lifecycle
//
// waiters' mutex guards all wait queues, and the admissions and refreshes that are to be sent. Under
// the mutexes of batcher, notices, node, renewer and renewals no other is taken. No caller's reply is
// delivered, and no observer called, under any.
type lifecycle struct {
	mu      sync.Mutex
	state   atomic.Int32   // written under mu
	closing chan struct{}  // closed when calls are refused
	over    chan struct{}  // closed when the Locker is closed
	running sync.WaitGroup // every goroutine but the listener's
}

const (
	lockerOpen int32 = iota
	lockerDraining
	lockerClosed
)

func newLifecycle() *lifecycle {
	return &lifecycle{closing: make(chan struct{}), over: make(chan struct{})}
}

func (c *lifecycle) open() bool   { return c.state.Load() == lockerOpen }
func (c *lifecycle) closed() bool { return c.state.Load() == lockerClosed }

// refuseCalls goes on to state, unless it is past that.
func (c *lifecycle) refuseCalls(state int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open() {
		close(c.closing)
	}
	if state == lockerClosed && !c.closed() {
		close(c.over)
	}
	c.state.Store(max(c.state.Load(), state))
}

// background runs f on a goroutine that Close waits for. It reports false, and
// does not run f, when the Locker is closed.
func (c *lifecycle) background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed() {
		return false
	}
	c.running.Go(f)
	return true
}

// enlist has Close wait for the caller, until running.Done. It reports false when the
// Locker is closed.
func (c *lifecycle) enlist() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed() {
		return false
	}
	c.running.Add(1)
	return true
}

// later runs f in the background, or at once when the Locker is closed.
func (c *lifecycle) later(f func()) {
	if !c.background(f) {
		f()
	}
}

// pause waits for d. It returns ErrClosed when calls are refused, and the ctx's error when ctx
// ends.
func (c *lifecycle) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.closing:
		return ErrClosed
	}
}
