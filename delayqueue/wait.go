package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/listener"
	"github.com/perkey-go/perkey/internal/trust"
)

const (
	minWait, maxWait = 5 * time.Millisecond, 500 * time.Millisecond // between two reads of a waiter without messages
	waitUnsubscribed = 2                                            // reads before a waiter subscribes: most waits are short
	waitFallback     = 12 * time.Second                             // between two reads of a waiter that gets messages, in case one is lost

	// A partition is asked to publish ends for awaitSpan, again and again after awaitAgain.
	awaitSpan  = time.Minute
	awaitAgain = awaitSpan / 2
	awaitRetry = time.Second // after it did not answer
)

// Wait returns the status of a message once it has ended. Redis publishes the end, over one
// subscription for all waiting calls of this Queue, which exists only while one of them waits. Wait
// also reads the status every 12 s, or every 500 ms if it cannot subscribe. After the first read it
// waits for a Redis that fails to return. If ctx ends first, the error is ctx's, and the status the
// last one that was read.
func (q *Queue) Wait(ctx context.Context, id string) (Status, error) {
	if checkID(id) != nil {
		return Status{}, fmt.Errorf("delayqueue: wait: %w", ErrNotFound)
	}
	s, p, err := q.find(ctx, "wait", id)
	if err != nil || s.State.Ended() {
		return q.status(s), err
	}
	var (
		w         *waiter // nil: it has not subscribed yet
		wake      <-chan struct{}
		listening bool
	)
	defer func() {
		if w != nil {
			q.waits.leave(w)
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for try := 1; ; try++ {
		timer.Reset(waitPause(s, try, listening))
		woken := false
		select {
		case <-timer.C:
		case <-wake:
			woken = true
		case <-ctx.Done():
			return q.status(s), store.CallerGone(ctx, fmt.Sprintf("wait for message %q, which is %s", id, states[s.State]))
		}
		if try == waitUnsubscribed {
			w = q.waits.join(q, p, id)
			wake = w.wake
		}
		listening = w != nil && w.listens() // before the read: a message tells of an end after it
		if !woken && !isTooOld(s) && p.GoesOn(ctx, id) {
			continue
		}
		switch now, _, err := q.find(ctx, "wait", id); {
		case err == nil && now.State.Ended():
			return q.status(now), nil
		case err == nil:
			s = now
		case errors.Is(err, core.ErrUnavailable):
			listening = false
		default:
			return q.status(s), err
		}
	}
}

// waitPause is how long a waiter waits before it reads a message's status again.
func waitPause(f store.Found, try int, listening bool) time.Duration {
	d := backoff.Spread(backoff.Exponential(try, minWait, maxWait))
	if listening {
		d = backoff.Spread(waitFallback)
	}
	if f.State == store.Queued { // nobody tells that it has become too old
		d = min(d, max(time.Until(f.ExpiresAt)+minWait, maxWait))
	}
	return d
}

func isTooOld(f store.Found) bool { return f.State == store.Queued && time.Now().After(f.ExpiresAt) }

// waits are the calls of Wait of a Queue that get messages.
type waits struct {
	mu  sync.Mutex
	hub *waitHub // nil: nobody waits
}

// waiter is one call.
type waiter struct {
	hub       *waitHub
	id        string
	partition *store.Partition
	wake      chan struct{} // holds one: read the status
}

// waitHub has the subscription that waiters share, and has the partitions publish ends.
type waitHub struct {
	queue    *Queue
	listener *listener.Listener
	stop     context.CancelFunc
	ask      chan struct{} // holds one: a partition has to be asked

	mu            sync.Mutex
	waiters       map[string][]*waiter
	count         map[*store.Partition]int       // of waiters
	until         map[*store.Partition]time.Time // ends are published, at least
	subscriptions int                            // that there have been
}

func (s *waits) join(q *Queue, p *store.Partition, id string) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hub == nil {
		ctx, stop := context.WithCancel(context.Background())
		h := &waitHub{
			queue: q, stop: stop, ask: make(chan struct{}, 1),
			waiters: map[string][]*waiter{}, count: map[*store.Partition]int{}, until: map[*store.Partition]time.Time{},
		}
		h.listener = listener.New(q.rdb, endedChannel(&q.settings), h.subscribed, func(error) { h.wakeAll(nil) }, h.ended)
		h.listener.Start()
		go h.run(ctx)
		s.hub = h
	}
	h := s.hub
	w := &waiter{hub: h, id: id, partition: p, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters[id] = append(h.waiters[id], w)
	if h.count[p]++; h.count[p] == 1 {
		h.askSoon()
	}
	return w
}

func (s *waits) leave(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters[w.id] = slices.DeleteFunc(h.waiters[w.id], func(other *waiter) bool { return other == w })
	if len(h.waiters[w.id]) == 0 {
		delete(h.waiters, w.id)
	}
	if h.count[w.partition]--; h.count[w.partition] == 0 {
		delete(h.count, w.partition)
	}
	if len(h.waiters) == 0 {
		s.hub = nil
		h.stop()
		go h.listener.Close() // it may have to wait for Redis
	}
}

// listens reports whether a message will wake the waiter from now on.
func (w *waiter) listens() bool {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.hub.listener.Up() && !trust.Passed(w.hub.until[w.partition], time.Now())
}

func (w *waiter) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wakeAll wakes the waiters of a partition, or with nil all of them.
func (h *waitHub) wakeAll(p *store.Partition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, some := range h.waiters {
		for _, w := range some {
			if p == nil || w.partition == p {
				w.wakeUp()
			}
		}
	}
}

// subscribed is called when there is a subscription. It may be to another Redis than before.
func (h *waitHub) subscribed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.until)
	h.subscriptions++
	h.askSoon()
}

// ended wakes the calls that wait for the messages with these ids.
func (h *waitHub) ended(ids string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range strings.FieldsSeq(ids) {
		for _, w := range h.waiters[id] {
			w.wakeUp()
		}
	}
}

func (h *waitHub) askSoon() {
	select {
	case h.ask <- struct{}{}:
	default:
	}
}

// run has the partitions with waiters publish ends, until ctx is over.
func (h *waitHub) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-h.ask:
		case <-ctx.Done():
			return
		}
		var asked sync.WaitGroup
		for _, p := range h.unasked() {
			asked.Go(func() { h.await(ctx, p) })
		}
		asked.Wait()
		timer.Reset(awaitRetry)
	}
}

// unasked are the partitions to ask, for the first time or again.
func (h *waitHub) unasked() (parts []*store.Partition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.count {
		if time.Until(h.until[p]) < awaitAgain {
			parts = append(parts, p)
		}
	}
	return parts
}

// await asks a partition to publish ends. The first time its waiters read the status once more,
// since an earlier end was not published.
func (h *waitHub) await(ctx context.Context, p *store.Partition) {
	h.mu.Lock()
	since, sent := h.subscriptions, time.Now()
	h.mu.Unlock()
	if p.Await(ctx, awaitSpan) != nil {
		return
	}
	h.mu.Lock()
	first := trust.Passed(h.until[p], time.Now())
	if h.subscriptions == since {
		h.until[p] = trust.Until(sent, awaitSpan)
	}
	h.mu.Unlock()
	if first {
		h.wakeAll(p)
	}
}
