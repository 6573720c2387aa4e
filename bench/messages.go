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

// enqueue is 16 producers that enqueue one small job after the other, which
// nobody works on.
func enqueue(b *bench) {
	const title = "queue, 16 producers enqueue"
	all := b.openQueues("raw", "asynq", "perkey")
	for _, r := range all {
		r.op = func(ctx context.Context, worker int) error { return r.queue.Enqueue(ctx, queued{number: worker}) }
	}
	b.measure(all, size{queueWorkers, scale(b, 10, 2), scale(b, 100, 50)})
	all.printOps(title, "raw")
	b.require(title, all, atLeast("perkey", perSecond.over("asynq"), 1.3))
}

// drain is one worker that finds a queue full of messages that are due, and
// whose 16 handlers do nothing.
func drain(b *bench) {
	n := scale(b, 50_000, 5000)
	b.drain(fmt.Sprintf("queue, %d due messages", n), n, "", 4, "raw", "asynq", "asynq-100ms", "perkey")
}

// drainKeys is the same with messages of perkey that each run under the lock of their key,
// and in its order, beside a queue that has neither.
func drainKeys(b *bench) {
	n := scale(b, 50_000, 5000)
	title := fmt.Sprintf("queue, %d due messages, perkey's of %d keys, locked and in order", n, keyCount)
	b.drain(title, n, "perkey", 2, "asynq", "perkey")
}

// drain fills queues and has them emptied. The messages of the one named keyed have keys.
func (b *bench) drain(title string, n int, keyed string, bar float64, names ...string) {
	all := b.openQueues(names...)
	b.inRounds(all, 1, func(r *row, _ int, s *sample) error {
		defer func() { check(b.server.clear(keysOf(r.name))) }()
		check(fill(b, r.queue, n, r.name == keyed))
		t := newTracker(n)
		var stop func() error
		var err error
		s.watch(b, func() {
			start := time.Now()
			stop = must(r.queue.Work(t.handle))
			_, err = receive(b.ctx, t.done, 90*time.Second, "the queue was not empty")
			s.elapsed = time.Since(start)
		})
		check(stop())
		if broken := t.broken.Load(); r.name == keyed && broken > 0 {
			check(fmt.Errorf("%d messages out of order, or beside another of their key", broken))
		}
		s.ops = n
		return err
	})
	all.print(title, perSecond, perSecond.over("asynq"), clientCPU, redisCPU, scripts, commands)
	b.require(title, all, atLeast("perkey", perSecond.over("asynq"), bar))
}

// fill enqueues n messages, those of a key in their order.
func fill(b *bench, q queue, n int, keyed bool) error {
	return together(queueWorkers, func(w int) error {
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
	})
}

const keyCount = 1000

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

// latePace is the time between two messages, and lateMost the longest delay.
const (
	latePace = 2 * time.Millisecond
	lateMost = 2 * time.Second
)

var early = figure{name: "% early", digits: 1, worst: true}

// lateness is how long after their time messages start that have random delays.
func lateness(b *bench) {
	names := []string{"asynq", "asynq-100ms", "perkey"}
	if b.quick {
		names = names[1:] // asynq's delays are up to 6 s
	}
	all := b.openQueues(names...)
	d := scale(b, 10*time.Second, time.Second)
	b.inRounds(all, 1, func(r *row, _ int, s *sample) error {
		s.ops = int(d / latePace)
		s.took = b.lateStarts(r.queue, s.ops)
		slices.Sort(s.took)
		onTime, _ := slices.BinarySearch(s.took, 0)
		s.also = values{early: 100 * float64(onTime) / float64(s.ops)}
		return b.server.clear(keysOf(r.name))
	})
	title := fmt.Sprintf("queue, start after due, %d messages/s at delays up to %v, for %v", time.Second/latePace, lateMost, d)
	all.print(title, p50, p99, longest, early)
	b.require(title, all, atMost("perkey", p99, 10e6), atMost("perkey", early, 0))
}

// lateStarts enqueues n messages at a steady pace while a worker is idle but for
// them, and returns how late each began. A message is due its delay after Enqueue is called: the time until Redis
// has it counts as late.
func (b *bench) lateStarts(q queue, n int) []time.Duration {
	due, took := make([]time.Time, n), make([]time.Duration, n)
	t := newTracker(n)
	stop := must(q.Work(func(number int) {
		took[number] = time.Since(due[number])
		t.handle(number)
	}))
	defer func() { check(stop()) }()
	start := time.Now()
	for i := range due {
		time.Sleep(time.Until(start.Add(time.Duration(i) * latePace)))
		delay := time.Duration(rand.N(lateMost.Milliseconds())+1) * time.Millisecond
		due[i] = time.Now().Add(delay)
		check(q.Enqueue(b.ctx, queued{number: i, delay: delay}))
	}
	must(receive(b.ctx, t.done, lateMost+20*time.Second, "not all messages started"))
	return took
}

// redeliver is how long after kill -9 of a worker process its message is given
// to another one, which has been there all along. That is waiting, so all queues
// wait at once.
func redeliver(b *bench) {
	lease := scale(b, claimLease, 2*time.Second)
	names := []string{"asynq", "perkey"}
	if b.quick {
		names = names[1:] // asynq takes minutes
	}
	all := newTable(names...)
	started := make([]chan time.Time, len(all)*rounds)
	owners := make([]process, len(started))
	for i := range started {
		started[i] = make(chan time.Time, 1)
		owners[i] = b.claimed(names[i/rounds], fmt.Sprintf("redeliver-%d", i), lease, started[i])
	}
	took := make([]time.Duration, len(started))
	check(together(len(started), func(i int) error {
		// A claim is renewed every now and then: no two are at the same point.
		killed := time.Now().Add(time.Duration(i+1) * lease / 15)
		err := errors.Join(pause(b.ctx, time.Until(killed)), owners[i].Kill())
		if err != nil {
			return err
		}
		at, err := receive(b.ctx, started[i], scale(b, 4*time.Minute, 3*lease), names[i/rounds]+"'s message did not run again")
		took[i] = at.Sub(killed)
		return err
	}))
	for i, r := range all {
		s := sample{took: took[i*rounds : (i+1)*rounds], ops: rounds}
		r.rounds = []values{s.values()}
	}
	title := fmt.Sprintf("queue, kill -9 of a worker with a claim of %v, until it runs again", lease)
	all.print(title, p50, longest)
	b.require(title, all, atMost("perkey", longest, float64(lease+time.Second)))
}

// claimed has a process claim the one message of a queue, and another worker wait for it.
func (b *bench) claimed(implementation, name string, lease time.Duration, started chan<- time.Time) process {
	q := b.openQueue(implementation, name, lease)
	check(q.Enqueue(b.ctx, queued{}))
	owner := b.start(1)
	must(b.ask(owner, "Claim", Job{Name: implementation, Target: target{Addr: b.server.addr, Lease: lease}, Key: prefix + name})())
	b.work(q, func(int) {
		select {
		case started <- time.Now():
		default:
		}
	})
	return owner[0]
}

// Claim works on a queue with a handler that never comes back.
func (w *Worker) Claim(j Job, _ *Answer) (err error) {
	defer func() { rescue(recover(), &err) }()
	claimed := make(chan struct{})
	must(must(queues[j.Name](j.Target, j.Key)).Work(func(int) {
		claimed <- struct{}{}
		<-context.Background().Done()
	}))
	_, err = receive(context.Background(), claimed, grace, "no message was claimed")
	return err
}

// wake is the time from the start of a release to the start of the handler of the
// one call that was parked because the key was held. The holder and the worker
// share a process, and nothing else: each has a locker and a client of its own.
func wake(b *bench) {
	const name = "wake"
	worker := b.openQueue("perkey", name, claimLease)
	requests := b.openQueue("perkey", name, claimLease).(*perkeyQueue)
	started := make(chan time.Time, 1)
	b.work(worker, func(int) { started <- time.Now() })
	guard := requests.locker.Guard(delayqueue.Policy(requests.queue))
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
	const title = "queue, release to the start of the parked call"
	all := table{{name: "perkey", rounds: []values{s.values()}}}
	all.print(title, p50, p99, longest)
	b.require(title, all, atMost("perkey", p99, 20e6))
}
