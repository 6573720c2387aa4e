package core

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A command in flight cannot be called back. So that its caller can go away all
// the same it is sent by a courier, a goroutine that asks Redis for one caller at
// a time. Either the caller takes the reply, or the courier gives back what came
// of it: the swap of state decides which.
//
// Couriers are kept for the next caller: a new goroutine would grow its stack
// anew under each command, which costs as much as a fifth of the round trip.
type courier struct {
	locker   *Locker
	requests chan acquireRequest // holds one; closed: nothing more comes
	replies  chan acquireReply   // holds one
	gone     chan struct{}       // closed when the caller went away
	state    atomic.Int32
	timer    *time.Timer
}

// Whether the reply of an acquire still has somebody waiting for it.
const (
	replyAwaited int32 = iota
	replyTaken
	replyAbandoned
)

type acquireRequest struct {
	ctx    context.Context
	record string
	token  string
	ttl    time.Duration
	wakeID string
}

// ask sends the request and waits for the reply, for as long as the caller can
// and the lease that is asked for may last. With an error the reply is not known,
// or it is a grant that nobody can use.
func (c *courier) ask(key string, req acquireRequest) (reply acquireReply, err error) {
	ctx := req.ctx
	c.state.Store(replyAwaited)
	c.timer.Reset(req.ttl)
	defer c.timer.Stop()
	req.ctx = callContext{ctx, c.gone}
	c.requests <- req
	select {
	case reply = <-c.replies:
		return reply, nil
	case <-ctx.Done():
		err = callerGone(ctx, "acquire", key)
	case <-c.timer.C:
		err = unavailable("acquire", key, fmt.Errorf("no reply within %s", req.ttl))
	case <-c.locker.closing:
		err = fmt.Errorf("core: acquire %q: %w", key, ErrClosed)
	}
	if c.state.CompareAndSwap(replyAwaited, replyAbandoned) {
		close(c.gone)
		return acquireReply{abandoned: true}, err
	}
	return <-c.replies, err
}

func (c *courier) run() {
	for req := range c.requests {
		reply := c.locker.acquire(req)
		mine := !c.state.CompareAndSwap(replyAwaited, replyTaken)
		if !mine {
			c.replies <- reply
		}
		if reply.err != nil || mine && reply.granted {
			c.locker.cancel(c.locker.cancels, req.record, req.token, req.ttl)
		}
		if reply.err != nil || mine {
			return // not kept
		}
	}
}

// couriers are those that nobody uses now.
type couriers struct {
	mu     sync.Mutex
	idle   []*courier
	closed bool
}

const maxIdleCouriers = 64

// courier returns one to ask with, or nil when the Locker is closed.
func (l *Locker) courier() *courier {
	l.couriers.mu.Lock()
	if n := len(l.couriers.idle); n > 0 {
		c := l.couriers.idle[n-1]
		l.couriers.idle = l.couriers.idle[:n-1]
		l.couriers.mu.Unlock()
		return c
	}
	l.couriers.mu.Unlock()
	c := &courier{
		locker: l, requests: make(chan acquireRequest, 1), replies: make(chan acquireReply, 1),
		gone: make(chan struct{}), timer: time.NewTimer(time.Hour),
	}
	if !l.background(c.run) {
		return nil
	}
	return c
}

// keep keeps a courier whose reply was taken and was not an error.
func (cs *couriers) keep(c *courier) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed || len(cs.idle) == maxIdleCouriers {
		close(c.requests)
		return
	}
	cs.idle = append(cs.idle, c)
}

func (cs *couriers) close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for _, c := range cs.idle {
		close(c.requests)
	}
	cs.idle = nil
}

// callContext has the values of a caller's ctx, and ends when the caller has gone:
// that ends go-redis's own retries.
type callContext struct {
	context.Context
	gone <-chan struct{}
}

func (c callContext) Deadline() (time.Time, bool) { return time.Time{}, false }

func (c callContext) Done() <-chan struct{} { return c.gone }

func (c callContext) Err() error {
	select {
	case <-c.gone:
		return context.Canceled
	default:
		return nil
	}
}
