package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// redeliver is how long after kill -9 of a worker process its message is given
// to another one, which has been there all along. That is waiting, so all queues
// wait at once.
func redeliver(b *bench) {
	lease := scale(b, claimLease, 2*time.Second)
	names := []string{"asynq", "perkey"}
	if b.quick {
		names = names[1:] // asynq takes minutes
	}
	b.shared.reset()
	var all results
	var claims []*claim
	for _, name := range names {
		r := &result{name: name}
		all = append(all, r)
		for i := range rounds {
			claims = append(claims, b.claim(r, fmt.Sprintf("bench-redeliver-%d", i), lease))
		}
	}
	for _, c := range claims {
		// A claim is renewed every now and then: no two are at the same point.
		check(pause(b.ctx, lease/15))
		c.killed = time.Now()
		check(c.owner.cmd.Process.Kill())
	}
	limit := time.After(scale(b, 4*time.Minute, 3*lease))
	for _, c := range claims {
		select {
		case at := <-c.started:
			c.rounds = append(c.rounds, map[figure]float64{most: float64(at.Sub(c.killed))})
		case <-limit:
			check(fmt.Errorf("%s: the message of a killed worker was not run again", c.name))
		case <-b.ctx.Done():
			check(b.ctx.Err())
		}
	}
	longest := func(r *result) float64 { return slices.Max(r.each(most)) }
	title := fmt.Sprintf("queue, kill -9 of a worker with a claim of %v", lease)
	all.print(title, col("median until it runs again", most, brief),
		column{"the longest", func(r *result) string { return brief(longest(r)) }})
	b.atMost(title+", s until it runs again", longest(all.find("perkey"))/1e9, (lease + time.Second).Seconds())
}

// claim is of the one message of a queue, by a process of its own.
type claim struct {
	*result
	owner   *process
	killed  time.Time
	started chan time.Time // again
}

func (b *bench) claim(r *result, name string, lease time.Duration) *claim {
	q := b.openQueue(r.name, name, lease)
	check(q.Enqueue(b.ctx, queued{}))
	claimed := b.shared.held.Load()
	ps := b.startProcesses(1, settings{Name: r.name, Addr: b.server.addr, Lease: lease})
	ask[int](b, ps, ps.all, "Claim", Job{Key: name})
	check(ps.err)
	check(until(func() bool { return b.shared.held.Load() > claimed }))
	c := &claim{result: r, owner: ps.all[0], started: make(chan time.Time, 1)}
	stop := must(q.Work(func(int) {
		select {
		case c.started <- time.Now():
		default:
		}
	}))
	b.cleanup(func() { _ = stop() })
	return c
}

// Claim works on a queue with a handler that never comes back.
func (w *Worker) Claim(j Job, _ *int) error {
	q, err := openQueue(w.Name, target{addr: w.Addr, lease: w.Lease}, j.Key)
	if err != nil {
		return err
	}
	_, err = q.Work(func(int) {
		w.shared.held.Add(1)
		<-context.Background().Done()
	})
	return err
}
