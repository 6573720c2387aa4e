package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pinning says which CPU the program and which its redis-server runs on.
type pinning struct {
	name           string
	client, server string  // as taskset has them; empty: wherever the kernel puts them
	limit          float64 // of perkey's p50, times raw's
}

// pinnings for what one goroutine does. Together on one core every instruction
// of the client counts, since Redis waits for it; a core each is as over a network. Left alone
// the kernel chooses by what else the machine does.
func (b *bench) pinnings() []pinning {
	cpus := allowedCPUs()
	if b.server.process == nil || len(cpus) < 2 {
		return []pinning{{"not pinned", "", "", 1.25}}
	}
	return []pinning{
		{"client and server on one core", cpus[0], cpus[0], 1.25},
		{"client and server on a core each", cpus[0], cpus[1], 1.1},
	}
}

// pinned runs f under a pinning.
func (b *bench) pinned(p pinning, f func()) {
	if p.client != "" {
		all := strings.Join(allowedCPUs(), ",")
		procs := runtime.GOMAXPROCS(1) // as the runtime chooses on one CPU
		defer func() {
			runtime.GOMAXPROCS(procs)
			_, _ = pin(os.Getpid(), all), pin(b.server.process.Pid, all)
		}()
		check(errors.Join(pin(os.Getpid(), p.client), pin(b.server.process.Pid, p.server)))
	}
	f()
}

// pin binds all threads of a process to CPUs. Threads that start later are bound as those that start them.
func pin(pid int, cpus string) error {
	return exec.Command("taskset", "-a", "-c", "-p", cpus, strconv.Itoa(pid)).Run()
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
		fmt.Printf("a round trip of PING, %s: %s\n", p.name, duration(float64(took[len(took)/2])))
	}
}

// uncontended is the price of a lock that nobody else wants: one goroutine takes
// a free key and releases it. Under a ctx that can be cancelled the same must
// hold, since that is what every request handler has.
func uncontended(b *bench) {
	for _, p := range b.pinnings() {
		b.pinned(p, func() {
			check(b.run(p.name, func(b *bench) { b.uncontended(context.Background(), p, "background ctx") }))
			check(b.run(p.name, func(b *bench) { b.uncontended(b.ctx, p, "cancellable ctx") }))
		})
	}
	b.scriptsEachWay()
}

func (b *bench) uncontended(ctx context.Context, p pinning, variant string) {
	all := newTable("raw", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey")
	for _, r := range all {
		l, sections, n := b.openLock(r.name, 1), newSections(64, r.name+":uncontended"), 0
		r.op = func(context.Context, int) error {
			n++
			return sections[n%len(sections)].pass(ctx, l)
		}
	}
	b.compare("uncontended pair, 1 goroutine, "+p.name+", "+variant, all, "raw", size{1, scale(b, 20, 4), scale(b, 250, 100)},
		atMost("perkey", p50.over("raw"), p.limit), atMost("perkey", allocs, 22))
}

// scriptsEachWay counts perkey's scripts for one acquire and one release.
func (b *bench) scriptsEachWay() {
	l, sections := b.openLock("perkey", 1), newSections(100, "each-way")
	taken := make([]lease, len(sections))
	// The first lease starts the subscription, whose checks are scripts: one or two, then one in 2.5 s.
	check(sections[0].pass(b.ctx, l))
	check(pause(b.ctx, 200*time.Millisecond))
	count := func(way string, f func(i int)) {
		s := sample{ops: len(sections)}
		s.watch(b, func() {
			for i := range sections {
				f(i)
			}
		})
		b.require("uncontended, "+way, table{{name: "perkey", rounds: []values{s.values()}}}, atMost("perkey", scripts, 1))
	}
	count("to acquire", func(i int) { taken[i] = must(l(b.ctx, sections[i].key)) })
	count("to release", func(i int) { check(taken[i].Release(b.ctx)) })
}

// distinct is 64 goroutines that never want the same key: what concurrent calls
// can gain by going to Redis together.
func distinct(b *bench) {
	const workers = 64
	var all table
	for _, name := range []string{"raw", "group", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"} {
		all = append(all, pairs(name, b.openLock(name, workers), workers))
	}
	b.compare("uncontended, 64 goroutines, distinct keys", all, "raw", size{workers, scale(b, 20, 2), 25},
		atLeast("perkey", perSecond.over("raw"), 1.4))
}
