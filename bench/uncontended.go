package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"time"
)

// pinning says which CPUs the program and its redis-server run on.
type pinning struct {
	name           string
	client, server []int   // empty: wherever the kernel puts them
	limit          float64 // of perkey's p50, times raw's; 0: no bar is on it
}

// pinnings for what one goroutine does. Together on one core every instruction
// of the client counts, since Redis waits for it; a core each is as over a network.
//
// Left alone the kernel keeps the two on one core, which is the fastest, as long
// as the client uses one thread; who wakes a second one, by handing work from
// goroutine to goroutine, is moved apart from Redis and takes twice as long. That depends on
// what else the machine does, so it is shown, and no bar is on it.
func (b *bench) pinnings() []pinning {
	cpus := allowedCPUs()
	if b.server.process == nil || len(cpus) < 2 {
		return []pinning{{name: "not pinned", limit: 1.25}}
	}
	return []pinning{
		{"client and server on one core", cpus[:1], cpus[:1], 1.25},
		{"client and server on a core each", cpus[:1], cpus[1:2], 1.1},
		{name: "not pinned"},
	}[:scale(b, 3, 2)]
}

// pinned runs f under a pinning.
func (b *bench) pinned(p pinning, f func()) {
	if len(p.client) > 0 {
		all := allowedCPUs()
		procs := runtime.GOMAXPROCS(len(p.client)) // as the runtime chooses on so many CPUs
		defer func() {
			runtime.GOMAXPROCS(procs)
			_, _ = pin(os.Getpid(), all), pin(b.server.process.Pid, all)
		}()
		check(pin(os.Getpid(), p.client))
		check(pin(b.server.process.Pid, p.server))
	}
	f()
}

// roundTrips prints how long a round trip takes under each pinning, which the figures hold for.
func roundTrips(b *bench) {
	for _, p := range b.pinnings() {
		took := make([]time.Duration, 2000)
		b.pinned(p, func() {
			for i := range took {
				began := time.Now()
				check(b.server.admin.Ping(b.ctx).Err())
				took[i] = time.Since(began)
			}
		})
		slices.Sort(took)
		fmt.Printf("a round trip of PING, %s: %s\n", p.name, brief(float64(took[len(took)/2])))
	}
}

// uncontended is the price of a lock that nobody else wants: one goroutine takes
// a free key and releases it. Under a ctx that can be cancelled the same must
// hold, since that is what every request handler has.
func uncontended(b *bench) {
	cancellable, cancel := context.WithCancel(b.ctx)
	defer cancel()
	for _, p := range b.pinnings() {
		b.pinned(p, func() {
			check(b.run("background ctx", func(b *bench) { b.uncontended(context.Background(), p, "background ctx") }))
			check(b.run("cancellable ctx", func(b *bench) { b.uncontended(cancellable, p, "cancellable ctx") }))
		})
	}
	b.scriptsEachWay()
}

func (b *bench) uncontended(ctx context.Context, p pinning, variant string) {
	var entries []entry
	for _, name := range []string{"raw", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey", "perkey-try"} {
		l, keys, n := b.openLock(name, 1), newGuarded(64, "uncontended"), 0
		entries = append(entries, entry{name, func(context.Context, int) error {
			n++
			return pair(ctx, l, &keys[n%len(keys)])
		}})
	}
	all := b.measure(entries, sizes{workers: 1, turns: scale(b, 20, 4), ops: scale(b, 250, 100)})
	all.printOps("uncontended acquire+release pair, 1 goroutine, "+p.name+", "+variant, "raw")
	if p.limit > 0 {
		what := "uncontended, " + p.name + ", " + variant
		perkey, raw := all.find("perkey"), all.find("raw")
		b.atMost(what+", p50 × raw", perkey.ratio(raw, p50), p.limit, durations(perkey, raw, p50))
		// What is left over is the turn's own.
		b.atMost(what+", allocations", math.Round(perkey.median(allocs)), 22)
	}
}

// scriptsEachWay counts perkey's scripts for one acquire and one release.
func (b *bench) scriptsEachWay() {
	l, keys := b.openLock("perkey", 1), newGuarded(100, "each-way")
	taken := make([]lease, len(keys))
	// The first lease starts the subscription, whose checks are scripts: one or two, then one in 2.5 s.
	check(pair(b.ctx, l, &keys[0]))
	check(pause(b.ctx, 200*time.Millisecond))
	each := func(do func(i int)) float64 {
		s := sample{ops: len(keys)}
		s.watch(b, func() {
			for i := range keys {
				do(i)
			}
		})
		return s.figures()[scripts]
	}
	b.atMost("uncontended, scripts to acquire", each(func(i int) { taken[i] = must(l.Acquire(b.ctx, keys[i].key)) }), 1)
	b.atMost("uncontended, scripts to release", each(func(i int) { check(taken[i].Release(b.ctx)) }), 1)
}

// distinct is 64 goroutines that never want the same key: what concurrent calls
// can gain by going to Redis together.
func distinct(b *bench) {
	const workers = 64
	var entries []entry
	for _, name := range []string{"raw", "group", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"} {
		entries = append(entries, pairs(name, b.openLock(name, workers), workers))
	}
	all := b.measure(entries, sizes{workers, scale(b, 20, 2), 25})
	all.printOps("uncontended, 64 goroutines, distinct keys", "raw")
	b.atLeast("uncontended, 64 goroutines, throughput × raw", all.find("perkey").ratio(all.find("raw"), perSecond), 1.4)
}
