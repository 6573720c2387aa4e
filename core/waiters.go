package core

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// waiters keeps the calls of this process that wait for keys: one line per key,
// in order of arrival. Only the first in line asks Redis; it is woken when the
// key is freed, and passes the word on when it leaves without the key.
type waiters struct {
	mu    sync.Mutex
	lines map[string]*waitLine
	// Channels of NotifyRelease, per key.
	notify map[string][]notification
	swept  time.Time
	// Counts announcements, of all keys that share a hash. A call that meets a
	// conflict joins the line only after Redis answered: if the count moved
	// meanwhile, what was announced may have been its key.
	announced [256]uint64
	seed      maphash.Seed
}

type waitLine struct {
	calls []*waiter
	// A call that left this line holds the key: its release will be heard
	// without Redis.
	held bool
	// When the holder's lease ends, as told at the last conflict.
	until time.Time
}

type notification struct {
	ch    chan<- string
	until time.Time
}

// waiter is a call in line. Only its own goroutine uses it.
type waiter struct {
	all  *waiters
	key  string
	line *waitLine
	wake chan struct{} // holds one
}

func newWaiters() *waiters {
	return &waiters{lines: map[string]*waitLine{}, notify: map[string][]notification{}, seed: maphash.MakeSeed()}
}

// look returns the count of announcements so far, and whether there are calls in
// line for key, with what is left of the holder's lease as far as they know.
func (w *waiters) look(key string) (announced uint64, busy bool, remaining time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if line := w.lines[key]; line != nil {
		busy, remaining = true, max(0, time.Until(line.until))
	}
	return *w.count(key), busy, remaining
}

// join puts a call at the end of the line for key. If anything was announced
// since announced was counted, it is woken at once.
func (w *waiters) join(key string, announced uint64, remaining time.Duration) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := w.lines[key]
	if line == nil {
		line = &waitLine{}
		w.lines[key] = line
	}
	line.until = time.Now().Add(remaining)
	c := &waiter{all: w, key: key, line: line, wake: make(chan struct{}, 1)}
	line.calls = append(line.calls, c)
	if *w.count(key) != announced {
		line.wakeFirst()
	}
	return c
}

// first reports whether the call is the one that may ask Redis.
func (c *waiter) first() bool {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return c.line.calls[0] == c
}

// refused records a conflict.
func (c *waiter) refused(remaining time.Duration) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.line.until = time.Now().Add(remaining)
}

// wait returns nil after d, or when the call is woken; ErrClosed when the Locker
// closes; the ctx's error when ctx ends.
func (c *waiter) wait(ctx context.Context, d time.Duration, closing <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.wake:
		return nil
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closing:
		return ErrClosed
	}
}

// leave takes the call out of line, with or without the key. The next in line
// asks Redis for itself, unless this process now holds the key and will say
// when it is free.
func (c *waiter) leave(acquired bool) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	at := slices.Index(c.line.calls, c)
	c.line.calls = slices.Delete(c.line.calls, at, at+1)
	if len(c.line.calls) == 0 {
		delete(c.all.lines, c.key)
		return
	}
	if acquired {
		c.line.held = true
	} else if at == 0 && !c.line.held {
		c.line.wakeFirst()
	}
}

// notifyRelease has ch told when key is freed, until the holder's lease is over.
// If anything was announced since announced was counted, ch is told at once.
func (w *waiters) notifyRelease(key string, ch chan<- string, announced uint64, remaining time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweep()
	w.forget(key, func(n notification) bool { return n.ch == ch })
	if *w.count(key) != announced {
		send(ch, key)
		return
	}
	w.notify[key] = append(w.notify[key], notification{ch: ch, until: time.Now().Add(remaining + time.Second)})
}

// freed announces that key is free, or may be.
func (w *waiters) freed(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*w.count(key)++
	if line := w.lines[key]; line != nil {
		line.held = false
		line.wakeFirst()
	}
	for _, n := range w.notify[key] {
		send(n.ch, key)
	}
	delete(w.notify, key)
}

// freedAll makes everyone look again: announcements may have been missed.
func (w *waiters) freedAll() {
	w.mu.Lock()
	keys := make([]string, 0, len(w.lines)+len(w.notify))
	for key := range w.lines {
		keys = append(keys, key)
	}
	for key := range w.notify {
		if w.lines[key] == nil {
			keys = append(keys, key)
		}
	}
	for i := range w.announced {
		w.announced[i]++
	}
	w.mu.Unlock()
	for _, key := range keys {
		w.freed(key)
	}
}

// count is the counter of announcements that key shares. Called with mu held.
func (w *waiters) count(key string) *uint64 {
	return &w.announced[maphash.String(w.seed, key)%uint64(len(w.announced))]
}

func (line *waitLine) wakeFirst() { send(line.calls[0].wake, struct{}{}) }

func send[T any](ch chan<- T, v T) {
	select {
	case ch <- v:
	default:
	}
}

// sweep forgets notifications whose announcement never came, at most once a
// second. Called with mu held.
func (w *waiters) sweep() {
	now := time.Now()
	if now.Sub(w.swept) < time.Second {
		return
	}
	w.swept = now
	for key := range w.notify {
		w.forget(key, func(n notification) bool { return now.After(n.until) })
	}
}

// forget drops the notifications of key that match. Called with mu held.
func (w *waiters) forget(key string, match func(notification) bool) {
	kept := w.notify[key][:0]
	for _, n := range w.notify[key] {
		if !match(n) {
			kept = append(kept, n)
		}
	}
	if len(kept) == 0 {
		delete(w.notify, key)
		return
	}
	w.notify[key] = kept
}
