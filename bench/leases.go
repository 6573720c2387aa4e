package main

import (
	"context"
	"fmt"
	"maps"
	"time"
)

const (
	heap        figure = "heap"            // bytes per lease
	goroutines  figure = "goroutines"      // with all leases
	atATenth    figure = "at a tenth"      // with a tenth of them
	cpuPerMin   figure = "client CPU"      // seconds per minute
	ofRedisCore figure = "of a Redis core" // percent
)

// leases is what it costs to keep many keys, which are renewed all the while:
// the client's CPU, its memory, its goroutines, and Redis.
func leases(b *bench) {
	check(b.run("10,000 leases", tenThousand))
	if b.quick {
		fmt.Printf("\n100,000 renewed leases: only in a full run\n")
		return
	}
	var all results
	for _, name := range []string{"raw+renewal", "perkey"} {
		// What Redis does is measured, so each goes alone.
		check(b.run(name, func(b *bench) { all = append(all, hundredThousand(b, name)) }))
	}
	all.print("100,000 renewed leases of 30 s", col("of a Redis core", ofRedisCore, func(v float64) string { return decimals(1)(v) + " %" }),
		col("client CPU s/min", cpuPerMin, decimals(2)), col("heap/lease", heap, bytes), col("goroutines", goroutines, decimals(0)))
	perkey := all.find("perkey")
	b.atMost("100,000 leases, % of a Redis core", perkey.median(ofRedisCore), 7)
	b.atMost("100,000 leases, bytes of heap each", perkey.median(heap), 400)
}

func bytes(v float64) string { return decimals(0)(v) + " B" }

// keeper is a process that holds leases, and what it costs.
type keeper struct {
	*processes
	static map[figure]float64 // what does not change while it holds them
	cpu    time.Duration      // when it was last looked at
	looked time.Time
}

func (k *keeper) ask(b *bench, method string, count int) Usage {
	return ask[Usage](b, k.processes, k.all, method, Job{Count: count, For: 40 * time.Second})[0]
}

// keep has a process acquire n leases.
func (b *bench) keep(name string, n int, lease time.Duration) *keeper {
	_, ps := b.start(1, settings{Addr: b.server.addr, Workers: 1, Lease: lease}, name)
	k := &keeper{processes: ps[0]}
	k.ask(b, "Usage", n) // so that there is room
	// And connections, whose buffers would count as the leases'.
	k.ask(b, "Keep", n/10)
	k.ask(b, "Drop", 0)
	use := func(count int) Usage {
		k.ask(b, "Keep", count)
		time.Sleep(100 * time.Millisecond) // what ends after an acquire has ended
		return k.ask(b, "Usage", n)
	}
	few, all := use(n/10), use(n)
	k.static = map[figure]float64{
		heap:       (float64(all.Heap) - float64(few.Heap)) / float64(n-n/10),
		goroutines: float64(all.Goroutines), atATenth: float64(few.Goroutines),
	}
	return k
}

// look is the CPU time per minute since the last look.
func (k *keeper) look(b *bench) float64 {
	cpu, now := k.ask(b, "Usage", 0).CPU, time.Now()
	perMinute := (cpu - k.cpu).Seconds() / now.Sub(k.looked).Minutes()
	k.cpu, k.looked = cpu, now
	return perMinute
}

// tenThousand lets all keep their leases side by side. A quick run
// has a tenth of the leases, a tenth as long, which is as many renewals a second.
func tenThousand(b *bench) {
	title := "10,000 renewed leases of 30 s" + scale(b, "", ", here 1,000 of 3 s")
	lease := scale(b, 30*time.Second, 3*time.Second)
	var all results
	var keepers []*keeper
	for _, name := range []string{"raw+renewal", "rueidislock-1key", "perkey"} {
		k := b.keep(name, scale(b, 10_000, 1000), lease)
		all, keepers = append(all, k.result), append(keepers, k)
	}
	time.Sleep(lease) // the first renewals are over, and spread as they will be
	for round := range rounds + 1 {
		if round > 0 {
			check(pause(b.ctx, lease)) // whole periods of every one of them
		}
		for _, k := range keepers {
			f := maps.Clone(k.static)
			f[cpuPerMin] = k.look(b)
			if k.err != nil {
				k.rounds = nil
			} else if round > 0 {
				k.rounds = append(k.rounds, f)
			}
		}
	}
	raw, perkey := all.find("raw+renewal"), all.find("perkey")
	all.print(title, col("client CPU s/min", cpuPerMin, decimals(3)), times("", cpuPerMin, raw),
		col("heap/lease", heap, bytes), col("goroutines", goroutines, decimals(0)), col("at a tenth", atATenth, decimals(0)))
	b.atMost("10,000 leases, client CPU × raw+renewal", perkey.ratio(raw, cpuPerMin), 2,
		decimals(3)(perkey.median(cpuPerMin))+" s/min", "raw+renewal "+decimals(3)(raw.median(cpuPerMin))+" s/min")
	b.atMost("10,000 leases, goroutines more than for a tenth", perkey.median(goroutines)-perkey.median(atATenth), holders)
	b.atMost("10,000 leases, bytes of heap each", perkey.median(heap), 400)
}

func hundredThousand(b *bench, name string) *result {
	const lease = 30 * time.Second
	k := b.keep(name, 100_000, lease)
	check(k.err)
	check(pause(b.ctx, lease/2))
	k.look(b)
	start := time.Now()
	var s sample
	s.watch(b, func() { check(pause(b.ctx, 2*lease)) })
	k.static[ofRedisCore] = 100 * s.redis.Seconds() / time.Since(start).Seconds()
	k.static[cpuPerMin] = k.look(b)
	k.ask(b, "Drop", 0)
	check(k.err)
	k.rounds = append(k.rounds, k.static)
	return k.result
}

// holders is how many goroutines of a process acquire leases at once.
const holders = 16

// Hold acquires one key, and keeps it for the job's time.
func (w *Worker) Hold(j Job, _ *int) error {
	h, err := w.lock.Acquire(context.Background(), j.Key)
	if err != nil {
		return err
	}
	w.shared.held.Store(1)
	time.Sleep(j.For)
	return h.Release(context.Background())
}

// Keep acquires so many keys in all and keeps them.
func (w *Worker) Keep(j Job, _ *Usage) error {
	first := len(w.leases)
	w.leases = w.leases[:j.Count] // there is room: see Usage
	return w.each(first, func(i int) (err error) {
		w.leases[i], err = w.lock.Acquire(context.Background(), w.keys[i])
		return err
	})
}

// Drop releases what Keep keeps.
func (w *Worker) Drop(Job, *Usage) error {
	err := w.each(0, func(i int) error { return w.leases[i].Release(context.Background()) })
	clear(w.leases)
	w.leases = w.leases[:0]
	return err
}

// each does something with every lease from the first on, a few at a time.
func (w *Worker) each(first int, do func(i int) error) error {
	return together(holders, func(h int) error {
		for i := first + h; i < len(w.leases); i += holders {
			if err := do(i); err != nil {
				return err
			}
		}
		return nil
	})
}
