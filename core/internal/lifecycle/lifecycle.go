// Package lifecycle tracks whether a Locker and its store take calls, and which goroutines Close waits for.
package lifecycle

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosed means that the Locker was closed.
var ErrClosed = errors.New("locker closed")

// Lifecycle is the state of one Locker: open → draining (calls are refused) → closed. It is safe for
// concurrent use.
//
// Its mutex is the innermost of core. A goroutine that holds one of these takes only those to its
// right:
//
//	core's waiters, leaseTable | store's quorumAttempt, quorum, deployment.batchersMu, a batcher, its group, cancellations | Lifecycle
//
// waiters' mutex guards all wait queues, and the admissions and refreshes that are to be sent. The
// mutexes of notifications, node, dedicated.Client and renewals may be taken under any of these, and no
// other under them. No caller's reply is delivered, and no observer called, under any.
type Lifecycle struct {
	mu      sync.Mutex
	state   atomic.Int32    // written under mu
	closing context.Context // ends when calls are refused
	refuse  context.CancelFunc
	over    chan struct{}  // closed when the Locker is closed
	running sync.WaitGroup // every goroutine except the listener's
}

const (
	open int32 = iota
	draining
	closed
)

// New returns the lifecycle of a Locker that takes calls.
func New() *Lifecycle {
	c := &Lifecycle{over: make(chan struct{})}
	c.closing, c.refuse = context.WithCancel(context.Background())
	return c
}

// Open reports whether calls are taken.
func (c *Lifecycle) Open() bool { return c.state.Load() == open }

// Closed reports whether the Locker is closed.
func (c *Lifecycle) Closed() bool { return c.state.Load() == closed }

// Context ends when calls are refused.
func (c *Lifecycle) Context() context.Context { return c.closing }

// Closing is closed when calls are refused.
func (c *Lifecycle) Closing() <-chan struct{} { return c.closing.Done() }

// Over is closed when the Locker is closed.
func (c *Lifecycle) Over() <-chan struct{} { return c.over }

// Drain refuses calls from now on.
func (c *Lifecycle) Drain() { c.end(draining) }

// Close refuses calls and goroutines from now on.
func (c *Lifecycle) Close() { c.end(closed) }

// end moves on to state, unless the lifecycle is past it.
func (c *Lifecycle) end(state int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse()
	if state == closed && !c.Closed() {
		close(c.over)
	}
	c.state.Store(max(c.state.Load(), state))
}

// Wait waits for the goroutines of a Locker that is closed.
func (c *Lifecycle) Wait() { c.running.Wait() }

// Background runs f on a goroutine that Wait waits for. It reports false, and does not run f, when the Locker is closed.
func (c *Lifecycle) Background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Closed() {
		return false
	}
	c.running.Go(f)
	return true
}

// Enlist makes Wait wait for the caller, until Leave. It reports false when the Locker is closed.
func (c *Lifecycle) Enlist() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Closed() {
		return false
	}
	c.running.Add(1)
	return true
}

// Leave ends what Enlist began.
func (c *Lifecycle) Leave() { c.running.Done() }

// Later runs f in the background, or at once when the Locker is closed.
func (c *Lifecycle) Later(f func()) {
	if !c.Background(f) {
		f()
	}
}

// Pause waits for d. It returns ErrClosed when calls are refused, and the ctx's error when ctx ends.
func (c *Lifecycle) Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.Closing():
		return ErrClosed
	}
}
