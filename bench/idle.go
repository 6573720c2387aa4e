package main

import (
	"errors"
	"time"
)

// idler is something that costs Redis commands although nothing happens. Each has a redis-server of its own, so that all
// can be watched at once and for long: some clients send a PING now and then, and those count.
type idler struct {
	*result
	server *server
	err    error // it is out
}

// watch adds what Redis sees in each round of that length.
func watch(idlers []*idler, length time.Duration) {
	for range rounds {
		_ = together(len(idlers), func(i int) error {
			if one := idlers[i]; one.err == nil {
				seen, err := one.server.monitor(length)
				one.rounds, one.err = append(one.rounds, seen), err
			}
			return nil
		})
	}
}

// idleHolder is what it costs when a hundred calls wait and nothing happens: their key is held, and its holder does nothing.
func idleHolder(b *bench) {
	const title = "100 waiters in 10 processes, holder idle"
	var all results
	var idlers []*idler
	var workers []*processes
	for _, name := range []string{"redislock", "rueidislock", "rueidislock-1key", "perkey"} {
		s := b.openServer("")
		// Not all renew: the lease outlasts the scenario.
		row, ps := b.start(11, settings{Addr: s.addr, Workers: 10, Lease: 2 * time.Minute}, name)
		all, workers = append(all, row[0]), append(workers, ps[0])
		idlers = append(idlers, &idler{row[0], s, ps[0].err})
	}
	length := scale(b, 5*time.Second, 2200*time.Millisecond)
	end := monotonic() + time.Second + rounds*length // until then calls wait
	waiters := make([]*pending[Contended], len(idlers))
	for i, one := range idlers {
		if one.err != nil {
			continue
		}
		ps := workers[i]
		b.shared.reset()
		j := Job{Key: "idle", At: monotonic()}
		j.For = end - j.At + time.Second // the waiters leave before the holder
		begin[int](ps, ps.all[:1], "Hold", j)
		if one.err = until(func() bool { return b.shared.held.Load() != 0 }); one.err == nil {
			j.For = end - j.At
			waiters[i] = begin[Contended](ps, ps.all[1:], "Contend", j)
		}
	}
	watch(idlers, length)
	for i, one := range idlers {
		if one.err == nil {
			for _, a := range waiters[i].wait(b) {
				if a.Last > 0 {
					one.err = errors.New("BROKEN: a waiter got a key that was held")
				}
			}
			one.err = errors.Join(one.err, workers[i].err)
		}
		if one.err != nil {
			one.rounds, one.remark = nil, one.err.Error()
		}
	}
	all.printTraffic(title)
	b.atMost(title+", commands/s", all.find("perkey").median(sent), 15)
}

// idleWorker is what it costs when a queue's worker has nothing to do.
func idleWorker(b *bench) {
	const title = "queue, one idle worker"
	var all results
	var idlers []*idler
	for _, name := range []string{"asynq", "asynq-100ms", "perkey"} {
		s := b.openServer("")
		q := must(openQueue(name, target{addr: s.addr, lease: claimLease}, "bench-idle"))
		b.cleanup(func() { _ = q.Close() })
		stop := must(q.Work(func(int) {}))
		b.cleanup(func() { _ = stop() })
		all = append(all, &result{name: name})
		idlers = append(idlers, &idler{result: all[len(all)-1], server: s})
	}
	check(pause(b.ctx, 2*time.Second)) // connections, scripts
	watch(idlers, scale(b, 10*time.Second, 2200*time.Millisecond))
	for _, one := range idlers {
		check(one.err)
		for _, f := range one.rounds {
			f[commands] = f[sent] + f[inScripts]
		}
	}
	all.printTraffic(title)
	perkey := all.find("perkey")
	b.atMost(title+", commands/s", perkey.median(commands), 2,
		decimals(1)(perkey.median(sent))+"/s sent", decimals(1)(perkey.median(inScripts))+"/s in scripts")
}
