package main

import (
	"fmt"
	"sync/atomic"
	"time"
)

// drain is one worker that finds a queue full of messages that are due, and
// whose 16 handlers do nothing.
func drain(b *bench) {
	n := scale(b, 50_000, 5000)
	title := fmt.Sprintf("queue, %d due messages", n)
	b.asynqBar(title+", messages/s × asynq", b.drain(title, n, false, "raw", "asynq", "asynq-100ms", "perkey"), 4)
}

// drainKeys is the same with messages of perkey that each run under the lock of their key,
// and in its order, beside a queue that has neither.
func drainKeys(b *bench) {
	n := scale(b, 50_000, 5000)
	title := fmt.Sprintf("queue, %d due messages, perkey's of %d keys, locked and in order", n, keyCount)
	b.asynqBar(title+", messages/s × asynq", b.drain(title, n, true, "asynq", "perkey"), 2)
}

// drain fills queues and has them emptied.
func (b *bench) drain(title string, n int, keyed bool, names ...string) results {
	var all results
	var open []queue
	for _, name := range names {
		all = append(all, &result{name: name})
		open = append(open, b.openQueue(name, "bench-"+name, claimLease))
	}
	b.inTurns(len(all), func(_, i int) {
		if all[i].remark == "" {
			b.drainOnce(all[i], open[i], n, keyed && names[i] == "perkey")
		}
	})
	all.print(title, col("messages/s", perSecond, decimals(0)), times("", perSecond, all.find("asynq")),
		col("client CPU", clientCPU, micros), col("Redis CPU", redisCPU, micros),
		col("scripts each", scripts, decimals(2)), col("commands each", commands, decimals(2)))
	return all
}

func micros(ns float64) string { return decimals(1)(ns/1e3) + "µs" }

// drainLimit is for queues that hang.
const drainLimit = 90 * time.Second

func (b *bench) drainOnce(r *result, q queue, n int, keyed bool) {
	defer func() { _ = b.server.clear(b.ctx, q.Keys()) }()
	// The messages of a key are enqueued in their order.
	check(together(queueWorkers, func(w int) error {
		for i := range n {
			if keyOf(i)%queueWorkers != w {
				continue
			}
			m := queued{number: i}
			if keyed {
				m.key = fmt.Sprintf("key:%d", keyOf(i))
			}
			if err := q.Enqueue(b.ctx, m); err != nil {
				return err
			}
		}
		return nil
	}))
	t := newTracker(n)
	s := sample{ops: n}
	var stop func() error
	s.watch(b, func() {
		start := time.Now()
		stop = must(q.Work(t.handle))
		select {
		case <-t.done:
		case <-time.After(drainLimit):
			r.remark = fmt.Sprintf("hangs: %d are left after %v", t.left.Load(), drainLimit)
		case <-b.ctx.Done():
		}
		s.elapsed = time.Since(start)
	})
	check(stop())
	check(b.ctx.Err())
	if keyed && t.broken.Load() > 0 {
		check(fmt.Errorf("%d messages out of order, or beside another of their key", t.broken.Load()))
	}
	if r.remark == "" {
		r.rounds = append(r.rounds, s.figures())
	}
}

func keyOf(number int) int { return number % keyCount }

// tracker sees every message once, and whether those of a key overlap or come
// out of order.
type tracker struct {
	left   atomic.Int64
	done   chan struct{} // closed: none is left
	seen   []atomic.Bool
	keys   [keyCount]struct{ inside, last atomic.Int64 }
	broken atomic.Int64
}

func newTracker(n int) *tracker {
	t := &tracker{done: make(chan struct{}), seen: make([]atomic.Bool, n)}
	t.left.Store(int64(n))
	return t
}

func (t *tracker) handle(number int) {
	key := &t.keys[keyOf(number)]
	alone := key.inside.Add(1) == 1
	inOrder := key.last.Swap(int64(number)) <= int64(number) // again is allowed, back is not
	key.inside.Add(-1)
	if !alone || !inOrder {
		t.broken.Add(1)
	}
	if !t.seen[number].Swap(true) && t.left.Add(-1) == 0 {
		close(t.done)
	}
}
