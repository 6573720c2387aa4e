package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// watchIdle adds what Redis sees in each round of that length although nothing happens. Each row has a redis-server of
// its own, so that all can be watched at once and for long: some clients send a PING now and then, and those count.
func (all table) watchIdle(length time.Duration) {
	for range rounds {
		check(together(len(all), func(i int) error {
			return try(func() { all[i].rounds = append(all[i].rounds, all[i].server.monitor(length)) })
		}))
	}
}

// idleHolder is what it costs when a hundred calls wait and nothing happens: their key is held, and its holder does nothing.
func idleHolder(b *bench) {
	const key = "idle"
	var all table
	for _, name := range []string{"redislock", "rueidislock", "rueidislock-1key", "perkey"} {
		s := b.openServer("")
		// Not all renew: the lease outlasts the scenario.
		t := Target{Addr: s.addr, Workers: 10, Lease: 2 * time.Minute}
		r := b.startLocks(10, t, name)[0]
		r.server = s
		all = append(all, r)
		held := must(locks[name](b, t)(b.ctx, key))
		b.cleanup(func() error { return held.Release(context.Background()) })
	}
	length := scale(b, 5*time.Second, 2200*time.Millisecond)
	c := Contest{Key: key, Start: monotonic(), For: time.Second + rounds*length}
	waits := make([]func() ([][][]time.Duration, error), len(all))
	for i, r := range all {
		waits[i] = ask[[][]time.Duration](b, r.processes, "Contend", c, c.For)
	}
	check(pause(b.ctx, 500*time.Millisecond)) // until all wait
	all.watchIdle(length)
	for i, r := range all {
		r.try(func() {
			for _, each := range slices.Concat(must(waits[i]())...) {
				if len(each) > 1 {
					check(fmt.Errorf("%w: a waiter of %s got a key that was held", errBroken, r.name))
				}
			}
		})
	}
	b.report("100 waiters in 10 processes, holder idle", all, []figure{sent, inScripts}, atMost("perkey", sent, 15))
}

// idleWorker is what it costs when a queue's worker has nothing to do.
func idleWorker(b *bench) {
	all := newTable("asynq", "asynq-100ms", "perkey")
	for _, r := range all {
		r.server = b.openServer("")
		queues[r.name](b, Target{Addr: r.server.addr, Lease: claimLease, Queue: "idle"}).work(b, func(int) {})
	}
	check(pause(b.ctx, 2*time.Second)) // connections, scripts
	all.watchIdle(scale(b, 10*time.Second, 2200*time.Millisecond))
	b.report("queue, one idle worker", all, []figure{sent, inScripts, allCalls}, atMost("perkey", allCalls, 2))
}
