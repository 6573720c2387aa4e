package core

import (
	"context"
	"sync"
	"time"
)

// waiters keeps the calls of this process that wait for keys: one line for each
// key and limit, in order of arrival. A line has at most one entry in Redis's
// queue, and only its first call asks Redis.
//
// While this process holds a key, its line does not ask at all: the release passes
// the key on to the first in line without Redis, as long as others need not wait too
// long for it (lock cohorting: Dice, Marathe & Shavit, 2012).
type waiters struct {
	locker *Locker
	pool   sync.Pool // of waiters

	mu      sync.Mutex
	lines   map[lineKey]*line
	waiting int // calls in all lines
	// Entries that a message granted while a question about them was under way:
	// its answer is no news. With the grants' fences.
	accepted map[string]int64
	reserved reservations // keys of which a hold is not passed on
}

// waiter is a call in line. Only its own goroutine uses it, but for grant.
type waiter struct {
	all        *waiters
	line       *line
	prev, next *waiter
	inLine     bool
	opts       *acquireOptions
	number     uint64        // see answers; guarded by all.mu
	companion  string        // its entry in an admission under way; guarded by all.mu
	wake       chan struct{} // holds one
	timer      *time.Timer
	grant      *hold         // guarded by all.mu: passed to this call
	granted    chan struct{} // holds one, with grant
}

func newWaiters(l *Locker) *waiters {
	return &waiters{locker: l, pool: sync.Pool{New: newWaiter}, lines: map[lineKey]*line{}, accepted: map[string]int64{}, reserved: reservations{said: map[string]time.Time{}}}
}

func newWaiter() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &waiter{wake: make(chan struct{}, 1), granted: make(chan struct{}, 1), timer: timer}
}

// join puts a call at the end of the line for key. If there are too many it returns nil,
// how many wait for the key, and whether that is known to be held.
func (w *waiters) join(key string, o *acquireOptions) (c *waiter, waiting int, held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	k := lineKey{key, o.limit}
	ln := w.lines[k]
	if ln != nil && ln.n >= w.locker.maxPerKey || w.waiting >= w.locker.maxWaiters {
		if ln == nil {
			return nil, 0, false
		}
		return nil, ln.waiting(), ln.held != nil || ln.informed > 0 && ln.failure == nil
	}
	if ln == nil {
		ln = &line{lineKey: k}
		w.lines[k] = ln
	}
	c = w.pool.Get().(*waiter)
	c.all, c.line, c.opts = w, ln, o
	ln.push(c)
	w.waiting++
	return c, 0, false
}

// leave takes the call out of line. What was passed to it and not taken goes on to
// the next.
func (c *waiter) leave() {
	w := c.all
	w.mu.Lock()
	unused := c.grant
	if c.inLine {
		ln := c.line
		wasFirst := ln.first == c
		w.remove(c)
		if ln.first == nil {
			w.close(ln)
		} else if wasFirst {
			w.withdrawEntry(ln)
			ln.first.poke()
		}
	}
	w.mu.Unlock()
	drain(c.wake) // nobody pokes it any more
	drain(c.granted)
	c.all, c.line, c.opts, c.grant = nil, nil, nil, nil
	w.pool.Put(c)
	if unused != nil {
		w.locker.later(func() { _, _ = w.locker.giveUp(context.Background(), unused, 0, time.Now()) })
	}
}

// withdrawEntry takes back the entry of a line whose first call is gone, if others may be granted
// the key along with it: it may have been granted already, and to a call that came later its fence
// could be smaller than one seen before. Called with mu held.
func (w *waiters) withdrawEntry(ln *line) {
	if ln.limit != exclusive && ln.entry != "" {
		w.drop(ln.key, ln.entry)
		ln.entry, ln.askAt = "", time.Time{}
	}
}

// rejoin puts a call that got a hold which has ended back at the head of its line. The
// hold may have ended just before it was passed: then nobody else clears held.
func (c *waiter) rejoin(h *hold) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	ln := w.lines[c.line.lineKey]
	if ln == nil {
		ln = &line{lineKey: c.line.lineKey}
		w.lines[ln.lineKey] = ln
	}
	c.line = ln
	if ln.held == h {
		ln.held = nil
	}
	ln.askAt = time.Time{}
	ln.unshift(c)
	c.number = 0 // it had the key
	w.waiting++
}

// sendAway waits, but not for long, until the calls in line have seen that the
// Locker is closing: those that left before it is closed give up their places in
// Redis's queues.
func (w *waiters) sendAway() {
	for range 100 {
		w.mu.Lock()
		n := w.waiting
		w.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// remove takes a waiting call out of its line. Called with mu held.
func (w *waiters) remove(c *waiter) {
	c.line.remove(c)
	c.companion = ""
	w.waiting--
}

// close ends a line in which nobody is left. Called with mu held.
func (w *waiters) close(ln *line) {
	if ln.held != nil && ln.entry != "" {
		return // its release takes the entry along
	}
	delete(w.lines, ln.lineKey)
	if entry := ln.entry; entry != "" {
		ln.entry = ""
		w.drop(ln.key, entry)
	}
}

// drop has Redis forget an entry, whatever it has.
func (w *waiters) drop(key, entry string) {
	l := w.locker
	l.store.cancel(releaseRequest{record: recordName(l.prefix, key), entry: entry}, l.firstLease, func() { l.notices.freed(key) })
}

// hand passes a hold to the call. Called with mu held.
func (c *waiter) hand(h *hold) {
	c.grant = h
	send(c.granted, struct{}{})
}

// taken returns what was passed to the call, once.
func (c *waiter) taken() *hold {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	h := c.grant
	c.grant = nil
	drain(c.granted)
	return h
}

func (c *waiter) hasGrant() bool {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return c.grant != nil
}

// askAgain has every line ask: messages may have been missed.
func (w *waiters) askAgain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ln := range w.lines {
		ln.asks, ln.askAt = 0, time.Time{}
		if ln.first != nil {
			ln.first.poke()
		}
	}
}

// hint is what the line knows of the key, for a call that does not ask.
func (c *waiter) hint() (remaining time.Duration, waiting int) {
	w := c.all
	w.mu.Lock()
	defer w.mu.Unlock()
	until := c.line.until
	if h := c.line.held; h != nil {
		until = w.locker.renewals.deadline(h)
	}
	return max(0, time.Until(until)), c.line.waiting()
}

// waiting is how many calls wait, those of other processes as one each.
func (ln *line) waiting() int { return max(ln.queued, 1) - 1 + ln.n }

// askNow lets the line ask again without delay.
func (c *waiter) askNow() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.line.askAt = time.Time{}
}

// wait returns nil after d, or when the call is poked; ErrClosed when the Locker
// closes; the ctx's error when ctx ends.
func (c *waiter) wait(ctx context.Context, d time.Duration, closing <-chan struct{}) error {
	c.timer.Reset(d)
	defer c.timer.Stop()
	select {
	case <-c.granted:
		return nil
	case <-c.wake:
		return nil
	case <-c.timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closing:
		return ErrClosed
	}
}

func (c *waiter) poke() { send(c.wake, struct{}{}) }

func send[T any](ch chan<- T, v T) {
	select {
	case ch <- v:
	default:
	}
}

func drain[T any](ch <-chan T) {
	select {
	case <-ch:
	default:
	}
}
