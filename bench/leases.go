package main

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

var (
	heap        = figure{name: "bytes of heap each"}
	goroutines  = figure{name: "goroutines"}
	more        = figure{name: "goroutines more than for a tenth"}
	cpuPerMin   = figure{name: "client CPU s/min", digits: 3}
	ofRedisCore = figure{name: "% of a Redis core", digits: 1} // of all rows together
)

// leases is what it costs to keep many keys, which are renewed all the while:
// the client's CPU, its memory, its goroutines, and Redis. A quick run
// has a tenth of the leases, a tenth as long, which is as many renewals a second.
func leases(b *bench) {
	title := "10,000 renewed leases of 30 s" + scale(b, "", ", here 1,000 of 3 s")
	all := b.keep(scale(b, 10_000, 1000), scale(b, 30*time.Second, 3*time.Second), rounds, "raw+renewal", "rueidislock-1key", "perkey")
	b.report(title, all, []figure{cpuPerMin, cpuPerMin.over("raw+renewal"), heap, goroutines, more},
		atMost("perkey", cpuPerMin.over("raw+renewal"), 2), atMost("perkey", more, holders), atMost("perkey", heap, 400))

	title = "100,000 renewed leases of 30 s"
	if b.quick {
		fmt.Printf("\n%s: only in a full run\n", title)
		return
	}
	all = nil
	for _, name := range []string{"raw+renewal", "perkey"} { // what Redis does is measured, so each goes alone
		all = append(all, b.keep(maxLeases, 30*time.Second, 2, name)...)
	}
	b.report(title, all, []figure{ofRedisCore, cpuPerMin, heap, goroutines},
		atMost("perkey", ofRedisCore, 7), atMost("perkey", heap, 400))
}

// keep has a process of each lock keep n leases, and measures for some whole periods of theirs.
func (b *bench) keep(n int, lease time.Duration, periods int, names ...string) (all table) {
	check(b.run(fmt.Sprintf("%d leases", n), func(b *bench) {
		all = b.startLocks(1, Target{Addr: b.server.addr, Workers: 1, Lease: lease}, names...)
		keep := func(r *row, count int) Usage {
			return must(ask[Usage](b, r.processes, "Keep", count, 40*time.Second)())[0]
		}
		for _, r := range all {
			r.try(func() {
				keep(r, n/10) // for connections, whose buffers would count as the leases'
				keep(r, 0)
				few, full := keep(r, n/10), keep(r, n)
				for range periods { // what does not change meanwhile
					r.rounds = append(r.rounds, values{
						heap: (full.Heap - few.Heap) / float64(n-n/10), goroutines: full.Goroutines, more: full.Goroutines - few.Goroutines,
					})
				}
			})
		}
		check(pause(b.ctx, lease)) // the first renewals are over, and spread as they will be
		for i := range periods {
			redis, cpu := b.server.cpu(b.ctx), map[*row]time.Duration{}
			for _, r := range all {
				cpu[r] = cpuTime(r.processes[0].Pid)
			}
			check(pause(b.ctx, lease))
			redis = b.server.cpu(b.ctx) - redis
			for _, r := range all {
				if r.remark == "" {
					r.rounds[i][cpuPerMin] = (cpuTime(r.processes[0].Pid) - cpu[r]).Seconds() / lease.Minutes()
					r.rounds[i][ofRedisCore] = 100 * redis.Seconds() / lease.Seconds()
				}
			}
		}
		for _, r := range all {
			if r.try(func() { keep(r, 0) }); r.remark != "" {
				r.rounds = nil
			}
		}
	}))
	return all
}

const (
	maxLeases = 100_000
	holders   = 16 // goroutines of a process that acquire leases at once
)

// Usage is what a process is using.
type Usage struct{ Heap, Goroutines float64 }

// Keep acquires keys until it has that many, or releases all, and answers what the process is using then.
func (w *Worker) Keep(count int, usage *Usage) error {
	if w.keys == nil { // made beforehand, so that they are not taken for the leases' memory
		w.leases = make([]lease, 0, maxLeases)
		for i := range maxLeases {
			w.keys = append(w.keys, fmt.Sprintf("lease:%d", i))
		}
	}
	first := len(w.leases)
	w.leases = w.leases[:max(first, count)]
	err := together(holders, func(holder int) (err error) {
		for i := holder; i < len(w.leases); i += holders {
			if count == 0 {
				err = errors.Join(err, w.leases[i].Release(w.ctx))
			} else if i >= first && err == nil {
				w.leases[i], err = w.lock(w.ctx, w.keys[i])
			}
		}
		return err
	})
	clear(w.leases[count:])
	w.leases = w.leases[:count]
	time.Sleep(100 * time.Millisecond) // what ends after an acquire has ended
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what was in pools
	runtime.ReadMemStats(&m)
	*usage = Usage{float64(m.HeapAlloc), float64(runtime.NumGoroutine())}
	return err
}
