package main

import (
	"context"
	"errors"
	"time"
)

// watchIdle adds what Redis sees in each round of that length although nothing happens. Each row has a redis-server of
// its own, so that all can be watched at once and for long: some clients send a PING now and then, and those count.
func (all table) watchIdle(length time.Duration) {
	for range rounds {
		check(together(len(all), func(i int) error {
			seen, err := all[i].server.monitor(length)
			all[i].rounds = append(all[i].rounds, seen)
			return err
		}))
	}
}

// idleHolder is what it costs when a hundred calls wait and nothing happens: their key is held, and its holder does nothing.
func idleHolder(b *bench) {
	const title = "100 waiters in 10 processes, holder idle"
	var all table
	for _, name := range []string{"redislock", "rueidislock", "rueidislock-1key", "perkey"} {
		s := b.openServer("")
		// Not all renew: the lease outlasts the scenario.
		t := target{s.addr, 10, 2 * time.Minute}
		r := b.startLocks(10, t, name)[0]
		r.server = s
		all = append(all, r)
		holder := must(locks[name](t))
		held := must(holder.Acquire(b.ctx, "idle"))
		b.cleanup(func() { _, _ = held.Release(context.Background()), holder.Close() })
	}
	length := scale(b, 5*time.Second, 2200*time.Millisecond)
	j := Job{Key: "idle", Start: monotonic(), For: time.Second + rounds*length}
	waits := map[*row]func() ([]Answer, error){}
	for _, r := range all {
		waits[r] = b.ask(r.processes, "Contend", j)
	}
	check(pause(b.ctx, 500*time.Millisecond)) // until all wait
	all.watchIdle(length)
	for _, r := range all {
		answers, err := waits[r]()
		for _, a := range answers {
			for _, c := range a.Contended {
				if c.Count > 0 {
					err = errors.New("BROKEN: a waiter got a key that was held")
				}
			}
		}
		if err != nil {
			r.rounds, r.remark = nil, err.Error()
		}
	}
	all.print(title, sent, inScripts)
	b.require(title, all, atMost("perkey", sent, 15))
}

// idleWorker is what it costs when a queue's worker has nothing to do.
func idleWorker(b *bench) {
	const title = "queue, one idle worker"
	all := newTable("asynq", "asynq-100ms", "perkey")
	for _, r := range all {
		r.server = b.openServer("")
		q := must(queues[r.name](target{Addr: r.server.addr, Lease: claimLease}, "idle"))
		b.cleanup(func() { _ = q.Close() })
		b.work(q, func(int) {})
	}
	check(pause(b.ctx, 2*time.Second)) // connections, scripts
	all.watchIdle(scale(b, 10*time.Second, 2200*time.Millisecond))
	all.print(title, sent, inScripts, allCalls)
	b.require(title, all, atMost("perkey", allCalls, 2))
}
