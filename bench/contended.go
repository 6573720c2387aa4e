package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

var (
	fair    = figure{name: "Jain's index", digits: 3} // 1 when all workers got the same, 1/n when one got all
	starved = figure{name: "starved"}                 // workers that got less than a hundredth of their share
	// A caller of a fair queue waits for all others once.
	ofAllWaits = figure{name: "p99 ÷ (waiters × hand-off)", digits: 2}
)

// contention is one way to want one key at once.
type contention struct {
	title     string
	processes int
	workers   int // of each process
	inside    time.Duration
	oneWay    time.Duration // the way to Redis, if it is long
	locks     []string
	round     time.Duration // for each lock
	bars      []bar
}

var nearby = []string{"raw", "token", "cohort", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"}

var contentions = []contention{
	{
		title: "hot key, 1 process × 64, empty section", processes: 1, workers: 64, locks: nearby,
		round: 2 * time.Second,
		bars:  []bar{atLeast("perkey", perSecond.over(bestPeer), 25), atLeast("perkey", fair, 0.99), atMost("perkey", starved, 0)},
	},
	{
		title: "hot key, 4 processes × 16, empty section", processes: 4, workers: 16, locks: nearby,
		round: 2 * time.Second,
		bars:  []bar{atLeast("perkey", perSecond.over(bestPeer), 25), atLeast("perkey", fair, 0.95), atMost("perkey", p99, 5e6)},
	},
	{
		title: "hot key, 4 processes × 16, empty section, 2.4 ms to Redis and back", processes: 4, workers: 16,
		oneWay: 1200 * time.Microsecond, locks: nearby[2:], round: 4 * time.Second,
		bars: []bar{atLeast("perkey", perSecond.over(bestPeer), 10), atMost("perkey", p99.over(bestPeer), 0.25)},
	},
	{
		title: "hot key, 32 processes × 2, 1 ms in the section", processes: 32, workers: 2, inside: time.Millisecond,
		locks: []string{"token", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"},
		round: 3 * time.Second,
		bars:  []bar{atMost("perkey", scripts, 2.1), atMost("perkey", ofAllWaits, 1.2)},
	},
}

// hotKey is one key that many want at once, all the time. A lock that fails or hangs is out of the remaining rounds;
// that does not end the run.
func hotKey(b *bench) {
	for _, c := range contentions {
		check(b.run(c.title, c.run))
	}
}

func (c contention) run(b *bench) {
	addr := b.server.addr
	if c.oneWay > 0 {
		addr = b.farFrom(addr, c.oneWay)
	}
	all := b.startLocks(c.processes, Target{Addr: addr, Workers: c.workers, Lease: leaseTime}, c.locks...)
	b.inRounds(all, 1, func(r *row, round int, s *sample) {
		j := Contest{
			Key:    fmt.Sprintf("hot:%s:%s:%d", r.name, c.title, round),
			For:    scale(b, c.round, min(c.round/10, 300*time.Millisecond)),
			Inside: c.inside,
		}
		b.shared.check(r.name, func() {
			s.watch(b, func() {
				j.Start = monotonic() + 20*time.Millisecond + time.Duration(c.processes)*time.Millisecond
				s.addWaits(slices.Concat(must(ask[[][]time.Duration](b, r.processes, "Contend", j, j.For)())...), j.For)
			})
		})
	})
	b.report(c.title, all, []figure{
		perSecond, perSecond.over(bestPeer), p50, p99, p99.over(bestPeer), fair, starved, scripts, commands,
	}, c.bars...)
}

// addWaits adds how long workers waited in a round, each time. The end of the round cut the last wait of each worker short.
func (s *sample) addWaits(workers [][]time.Duration, d time.Duration) {
	counts, idle := make([]int, len(workers)), d
	for i, waits := range workers {
		counts[i] = len(waits) - 1
		s.ops += counts[i]
		s.took = append(s.took, waits...)
		idle = min(idle, waits[len(waits)-1])
	}
	// Redsync may sleep for a quarter of a second; nobody else has a reason to.
	if idle > d/2 && idle > 300*time.Millisecond {
		check(fmt.Errorf("stalled: none in the last %v", idle.Round(10*time.Millisecond)))
	}
	s.elapsed = d
	slices.Sort(s.took)
	p99Wait := float64(s.took[len(s.took)*99/100])
	s.also = values{ofAllWaits: p99Wait / float64(d) * float64(s.ops) / float64(len(counts))}
	s.also[fair], s.also[starved] = fairness(counts)
}

// fairness is Jain's index of counts, not a number if all are 0, and how many are under a hundredth of their share.
func fairness(counts []int) (jain, starved float64) {
	var sum, squares float64
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	share := sum / float64(len(counts))
	for _, n := range counts {
		if n == 0 || float64(n) < share/100 {
			starved++
		}
	}
	return sum * sum / squares / float64(len(counts)), starved
}

// Contest is a time in which goroutines want a key again and again.
type Contest struct {
	Key    string
	Start  time.Duration // as monotonic says
	For    time.Duration
	Inside time.Duration // how long a holder keeps the key
}

// Contend lets every worker acquire and release one key until the time is up. It answers how long each of them waited: each
// time, and until the end cut its last wait short.
func (w *Worker) Contend(c Contest, waits *[][]time.Duration) error {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	// In this process's time, and if anything too early: no process enters after the end, at which ctx may take a key
	// from its holder.
	start := time.Now().Add(c.Start - monotonic())
	time.AfterFunc(c.Start+c.For-monotonic(), cancel)
	*waits = make([][]time.Duration, w.workers)
	return together(w.workers, func(i int) error {
		time.Sleep(time.Until(start))
		return try(func() { (*waits)[i] = w.contend(ctx, c, start.Add(c.For)) })
	})
}

func (w *Worker) contend(ctx context.Context, c Contest, end time.Time) (waits []time.Duration) {
	for {
		began := time.Now()
		h, err := w.lock(ctx, c.Key)
		now := time.Now()
		waits = append(waits, now.Sub(began))
		if !now.Before(end) { // it does not count, whatever came of it
			if err == nil {
				_ = h.Release(w.ctx)
			}
			return waits
		}
		check(err)
		w.shared.enter()
		time.Sleep(c.Inside)
		w.shared.leave()
		check(h.Release(w.ctx))
	}
}

// handOff is the time from the start of a release to the return of the one call
// that waits for the key, in another process.
func handOff(b *bench) {
	all := b.startLocks(2, Target{Addr: b.server.addr, Workers: 1, Lease: leaseTime},
		"token", "message", "message+fence", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey")
	b.inRounds(all, 1, func(r *row, round int, s *sample) {
		key, giver, taker := fmt.Sprintf("handoff:%s:%d", r.name, round), r.processes[:1], r.processes[1:]
		b.shared.check(r.name, func() {
			s.watch(b, func() {
				for end := time.Now().Add(scale(b, 2*time.Second, 300*time.Millisecond)); s.ops < 100 && time.Now().Before(end); s.ops++ {
					must(ask[time.Duration](b, giver, "Take", key, 0)())
					taken := ask[time.Duration](b, taker, "Take", key, 0)
					// The taker has waited for a while that no rhythm of polling can be in step with.
					given := must(ask[time.Duration](b, giver, "Give", 2*time.Millisecond+rand.N(10*time.Millisecond), 0)())
					s.took = append(s.took, must(taken())[0]-given[0])
					must(ask[time.Duration](b, taker, "Give", 0, 0)())
				}
			})
		})
	})
	b.report("hand-off to one waiter in another process", all, []figure{p50, p99, p50.over("token"), scripts, commands},
		atMost("perkey", p50.over("token"), 1.5), atMost("perkey", p50.over(bestPeer), 1))
}

// Take acquires the key, and answers when it had it.
func (w *Worker) Take(key string, at *time.Duration) (err error) {
	if w.held, err = w.lock(w.ctx, key); err == nil {
		*at = monotonic()
		w.shared.enter()
	}
	return err
}

// Give releases the key after a while, and answers when it began to. The answer
// waits until the taker has the key, so that nothing else runs meanwhile.
func (w *Worker) Give(after time.Duration, at *time.Duration) error {
	defer time.Sleep(time.Millisecond)
	time.Sleep(after)
	w.shared.leave()
	*at = monotonic()
	return w.held.Release(w.ctx)
}
