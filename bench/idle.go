package main

import (
	"context"
	"errors"
	"time"
)

// watchIdle adds what Redis sees in each round of that length although nothing happens. Each row has a redis-server of
// its own, so that all can be watched at once and for long: some clients send a PING now and then, and those count.
func watchIdle(all table, servers []*server, length time.Duration) {
	for range rounds {
		_ = together(len(all), func(i int) error {
			seen, err := servers[i].monitor(length)
			if err != nil {
				all[i].remark = err.Error()
			}
			all[i].rounds = append(all[i].rounds, seen)
			return nil
		})
	}
	for _, r := range all {
		if r.remark != "" {
			r.rounds = nil
		}
	}
}

// idleHolder is what it costs when a hundred calls wait and nothing happens: their key is held, and its holder does nothing.
func idleHolder(b *bench) {
	const title = "100 waiters in 10 processes, holder idle"
	var all table
	var servers []*server
	var workers []map[string][]process
	for _, name := range []string{"redislock", "rueidislock", "rueidislock-1key", "perkey"} {
		s := b.openServer("")
		// Not all renew: the lease outlasts the scenario.
		t := target{s.addr, 10, 2 * time.Minute}
		rows, processes := b.startLocks(10, t, name)
		all, servers, workers = append(all, rows...), append(servers, s), append(workers, processes)
		holder := must(openLock(name, t))
		held := must(holder.Acquire(b.ctx, "idle"))
		b.cleanup(func() { _, _ = held.Release(context.Background()), holder.Close() })
	}
	length := scale(b, 5*time.Second, 2200*time.Millisecond)
	j := Job{Key: "idle", Start: monotonic(), For: time.Second + rounds*length}
	waits := make([]func() ([]Answer, error), len(all))
	for i, r := range all {
		waits[i] = b.ask(workers[i][r.name], "Contend", j)
	}
	check(pause(b.ctx, 500*time.Millisecond)) // until all wait
	watchIdle(all, servers, length)
	for i, r := range all {
		answers, err := waits[i]()
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
	var servers []*server
	for _, r := range all {
		s := b.openServer("")
		q := must(openQueue(r.name, target{Addr: s.addr, Lease: claimLease}, "bench-idle"))
		b.cleanup(func() { _ = q.Close() })
		b.work(q, func(int) {})
		servers = append(servers, s)
	}
	check(pause(b.ctx, 2*time.Second)) // connections, scripts
	watchIdle(all, servers, scale(b, 10*time.Second, 2200*time.Millisecond))
	all.print(title, sent, inScripts, allCalls)
	b.require(title, all, atMost("perkey", allCalls, 2))
}
