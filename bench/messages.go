package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// enqueue is 16 producers of small jobs, which nobody works on.
func enqueue(b *bench) {
	all := newTable("raw", "asynq", "perkey")
	for _, r := range all {
		q := b.openQueue(r.name, r.name, claimLease)
		r.op = func(ctx context.Context, worker int) error { return q.enqueue(ctx, queued{number: worker}) }
	}
	b.compare("queue, 16 producers enqueue", all, "raw", size{queueWorkers, scale(b, 10, 2), scale(b, 100, 50)},
		atLeast("perkey", perSecond.over("asynq"), 1.3))
}

// drain is one worker, whose 16 handlers do nothing, on a queue full of due messages.
func drain(b *bench) {
	b.drain("", func(int) string { return "" }, 4, "raw", "asynq", "asynq-100ms", "perkey")
}

// drainKeys is the same with keys: perkey runs each message under its key's lock, and in order.
func drainKeys(b *bench) {
	key := func(number int) string { return fmt.Sprintf("key:%d", keyOf(number)) }
	b.drain(fmt.Sprintf(", perkey's of %d keys, locked and in order", keyCount), key, 2, "asynq", "perkey")
}

// drain fills queues and has them emptied.
func (b *bench) drain(variant string, key func(number int) string, bar float64, names ...string) {
	all, n := newTable(names...), scale(b, 50_000, 5000)
	b.inRounds(all, 1, func(r *row, _ int, s *sample) {
		t := newTracker(n)
		check(b.run(r.name, func(b *bench) {
			q := b.openQueue(r.name, r.name, claimLease)
			check(b.fill(q, n, key))
			s.watch(b, func() {
				start := time.Now()
				q.work(b, t.handle)
				must(receive(b.ctx, t.done, 90*time.Second, "the queue was not empty"))
				s.elapsed = time.Since(start)
			})
		}))
		if broken := t.broken.Load(); key(0) != "" && r.name == "perkey" && broken > 0 {
			check(fmt.Errorf("%w: %d messages out of order, or beside another of their key", errBroken, broken))
		}
		s.ops = n
	})
	b.report(fmt.Sprintf("queue, %d due messages%s", n, variant), all,
		[]figure{perSecond, perSecond.over("asynq"), clientCPU, redisCPU, scripts, commands}, atLeast("perkey", perSecond.over("asynq"), bar))
}

// fill enqueues n messages, those of a key in their order.
func (b *bench) fill(q queue, n int, key func(number int) string) error {
	return together(queueWorkers, func(w int) error {
		for i := range n {
			if keyOf(i)%queueWorkers == w {
				if err := q.enqueue(b.ctx, queued{number: i, key: key(i)}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

const keyCount = 1000

func keyOf(number int) int { return number % keyCount }

// tracker counts messages, and those of a key that overlap or are out of order.
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

var early = figure{name: "% early", digits: 1, worst: true}

// lateness is how long after their time messages start that have random delays. They are enqueued at a steady pace while a
// worker is idle but for them. A message is due its delay after Enqueue is called: the time until Redis has it counts as late.
func lateness(b *bench) {
	const pace, longestDelay = 2 * time.Millisecond, 2 * time.Second
	// asynq's delays are up to 6 s.
	all := newTable(scale(b, []string{"asynq", "asynq-100ms", "perkey"}, []string{"asynq-100ms", "perkey"})...)
	d := scale(b, 10*time.Second, time.Second)
	b.inRounds(all, 1, func(r *row, _ int, s *sample) {
		s.ops = int(d / pace)
		s.took = make([]time.Duration, s.ops)
		check(b.run(r.name, func(b *bench) {
			q, due, t := b.openQueue(r.name, r.name, claimLease), make([]time.Time, s.ops), newTracker(s.ops)
			q.work(b, func(number int) {
				s.took[number] = time.Since(due[number])
				t.handle(number)
			})
			start := time.Now()
			for i := range due {
				time.Sleep(time.Until(start.Add(time.Duration(i) * pace)))
				delay := time.Duration(rand.N(longestDelay.Milliseconds())+1) * time.Millisecond
				due[i] = time.Now().Add(delay)
				check(q.enqueue(b.ctx, queued{number: i, delay: delay}))
			}
			must(receive(b.ctx, t.done, longestDelay+20*time.Second, "not all messages started"))
		}))
		slices.Sort(s.took)
		onTime, _ := slices.BinarySearch(s.took, 0)
		s.also = values{early: 100 * float64(onTime) / float64(s.ops)}
	})
	title := fmt.Sprintf("queue, start after due, %d messages/s at delays up to %v, for %v", time.Second/pace, longestDelay, d)
	b.report(title, all, []figure{p50, p99, longest, early}, atMost("perkey", p99, 10e6), atMost("perkey", early, 0))
}

// redeliver is how long after kill -9 of a worker process its message is given
// to another one, which has been there all along. That is waiting, so all queues
// wait at once.
func redeliver(b *bench) {
	lease := scale(b, claimLease, 2*time.Second)
	all := newTable(scale(b, []string{"asynq", "perkey"}, []string{"perkey"})...) // asynq takes minutes
	took := make([]float64, len(all)*rounds)
	check(together(len(took), func(i int) error {
		name, implementation := fmt.Sprintf("redeliver-%d", i), all[i/rounds].name
		t := Target{Name: implementation, Addr: b.server.addr, Lease: lease, Queue: prefix + name}
		return b.run(implementation, func(b *bench) {
			q := b.openQueue(implementation, name, lease)
			check(q.enqueue(b.ctx, queued{}))
			owner := b.start(1)
			must(ask[None](b, owner, "Claim", t, 0)())
			started := make(chan time.Time, 9) // it runs at least once
			q.work(b, func(int) { started <- time.Now() })
			// A claim is renewed every now and then: no two are at the same point when they are killed.
			check(pause(b.ctx, time.Duration(i+1)*lease/15))
			killed := time.Now()
			check(owner[0].Kill())
			again := must(receive(b.ctx, started, scale(b, 4*time.Minute, 3*lease), "its message did not run again"))
			took[i] = float64(again.Sub(killed))
		})
	}))
	for i, ns := range took {
		r := all[i/rounds]
		r.rounds = append(r.rounds, values{p50: ns, longest: ns})
	}
	title := fmt.Sprintf("queue, kill -9 of a worker with a claim of %v, until it runs again", lease)
	b.report(title, all, []figure{p50, longest}, atMost("perkey", longest, float64(lease+time.Second)))
}

// Claim works on a queue with a handler that never comes back.
func (w *Worker) Claim(t Target, _ *None) error {
	return try(func() {
		claimed := make(chan struct{})
		queues[t.Name](w.bench, t).work(w.bench, func(int) {
			claimed <- struct{}{}
			select {}
		})
		must(receive(w.ctx, claimed, grace/2, "no message was claimed"))
	})
}

// wake is the time from the start of a release to the start of the handler of the
// one call that was parked because the key was held. The holder and the worker
// share a process, and nothing else: each has a locker and a client of its own.
func wake(b *bench) {
	const name = "wake"
	worker := b.openQueue("perkey", name, claimLease)
	requests := b.openQueue("perkey", name, claimLease)
	started := make(chan time.Time, 1)
	worker.work(b, func(int) { started <- time.Now() })
	guard := requests.locker.Guard(delayqueue.Policy(requests.perkey))
	call := core.Call{Key: "wake", Encode: func() ([]byte, error) { return queued{}.payload(), nil }}
	s := sample{ops: scale(b, 500, 50)}
	for range s.ops {
		lease := must(requests.locker.Acquire(b.ctx, call.Key))
		err := guard.Do(b.ctx, call, func(context.Context) error { return errors.New("ran under a held key") })
		if !errors.Is(err, core.ErrDeferred) {
			check(fmt.Errorf("the call was not parked: %w", err))
		}
		// The worker has met the held key by then.
		time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
		released := time.Now()
		check(lease.Release(b.ctx))
		at := must(receive(b.ctx, started, 10*time.Second, "the parked call did not start"))
		s.took = append(s.took, at.Sub(released))
	}
	all := table{{name: "perkey", rounds: []values{s.values()}}}
	b.report("queue, release to the start of the parked call", all, []figure{p50, p99, longest}, atMost("perkey", p99, 20e6))
}
