package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
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
	all := b.startLocks(c.processes, target{addr, c.workers, leaseTime}, c.locks...)
	b.inRounds(all, 1, func(r *row, round int, s *sample) (err error) {
		j := Job{Key: fmt.Sprintf("hot:%s:%d", c.title, round), For: scale(b, c.round, min(c.round/10, 300*time.Millisecond)), Inside: c.inside}
		var answers []Answer
		s.watch(b, func() {
			b.shared.reset()
			j.Start = monotonic() + 20*time.Millisecond + time.Duration(c.processes)*time.Millisecond
			answers, err = b.ask(r.processes, "Contend", j)()
		})
		b.shared.checkOverlaps(r.name)
		if err != nil {
			return err
		}
		last := s.addContended(answers, j.For)
		// Redsync may sleep for a quarter of a second; nobody else has a reason to.
		if idle := j.For - last; idle > j.For/2 && idle > 300*time.Millisecond {
			return fmt.Errorf("stalled: none in the last %v", idle.Round(10*time.Millisecond))
		}
		return nil
	})
	all.print(c.title, perSecond, perSecond.over(bestPeer), p50, p99, p99.over(bestPeer), fair, starved, scripts, commands)
	b.require(c.title, all, c.bars...)
}

// addContended adds what the workers of all processes got in a round. It returns when the last one got the key.
func (s *sample) addContended(answers []Answer, d time.Duration) (last time.Duration) {
	var counts []int
	waits := newHistogram()
	for _, a := range answers {
		for _, c := range a.Contended {
			counts, s.ops, last = append(counts, c.Count), s.ops+c.Count, max(last, c.Last)
			waits.Merge(hdrhistogram.Import(c.Waits))
		}
	}
	s.elapsed = d
	p99Wait := float64(waits.ValueAtQuantile(99))
	s.also = values{
		p50: float64(waits.ValueAtQuantile(50)), p99: p99Wait,
		ofAllWaits: p99Wait / float64(d) * float64(s.ops) / float64(len(counts)),
	}
	s.also[fair], s.also[starved] = fairness(counts)
	return last
}

// fairness is Jain's index of counts, and how many are under a hundredth of their share.
func fairness(counts []int) (jain, starved float64) {
	var sum, squares float64
	for _, n := range counts {
		sum += float64(n)
		squares += float64(n) * float64(n)
	}
	if sum == 0 {
		return math.NaN(), float64(len(counts))
	}
	share := sum / float64(len(counts))
	for _, n := range counts {
		if float64(n) < share/100 {
			starved++
		}
	}
	return sum * sum / squares / float64(len(counts)), starved
}

// newHistogram is of times up to a minute, to a hundredth.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Nanoseconds(), 2)
}

// Contend lets every worker acquire and release one key until the time is up.
func (w *Worker) Contend(j Job, a *Answer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// In this process's time, and if anything too early: no process enters after the end, at which ctx may take a key
	// from its holder.
	start := time.Now().Add(j.Start - monotonic())
	time.AfterFunc(j.Start+j.For-monotonic(), cancel)
	a.Contended = make([]Contended, w.workers)
	return together(w.workers, func(i int) (err error) {
		a.Contended[i], err = w.contend(ctx, j, start)
		return err
	})
}

func (w *Worker) contend(ctx context.Context, j Job, start time.Time) (c Contended, err error) {
	waits := newHistogram()
	defer func() { c.Waits = waits.Export() }()
	time.Sleep(time.Until(start))
	for {
		began := time.Now()
		h, err := w.lock.Acquire(ctx, j.Key)
		now := time.Now()
		_ = waits.RecordValue(min(now.Sub(began), time.Minute).Nanoseconds())
		if now.Sub(start) >= j.For { // it does not count, whatever came of it
			if err == nil {
				_ = h.Release(context.Background())
			}
			return c, nil
		}
		if err != nil {
			return c, fmt.Errorf("acquire: %w", err)
		}
		w.shared.enter()
		c.Count, c.Last = c.Count+1, now.Sub(start)
		if j.Inside > 0 {
			time.Sleep(j.Inside)
		}
		w.shared.leave()
		if err := h.Release(context.Background()); err != nil {
			return c, fmt.Errorf("release: %w", err)
		}
	}
}

// handOff is the time from the start of a release to the return of the one call
// that waits for the key, in another process.
func handOff(b *bench) {
	all := b.startLocks(2, target{b.server.addr, 1, leaseTime},
		"token", "message", "message+fence", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey")
	b.inRounds(all, 1, func(r *row, round int, s *sample) (err error) {
		j := Job{Key: fmt.Sprintf("handoff:%d", round), Count: 100, For: scale(b, 2*time.Second, 300*time.Millisecond)}
		giver, taker := r.processes[:1], r.processes[1:]
		s.watch(b, func() {
			b.shared.reset()
			given := b.ask(giver, "Give", j)
			var taken []Answer
			if taken, err = b.ask(taker, "Take", j)(); err == nil {
				s.took = taken[0].Took
				_, err = given()
			}
		})
		b.shared.checkOverlaps(r.name)
		s.ops = len(s.took)
		return err
	})
	const title = "hand-off to one waiter in another process"
	all.print(title, p50, p99, p50.over("token"), scripts, commands)
	b.require(title, all, atMost("perkey", p50.over("token"), 1.5), atMost("perkey", p50.over(bestPeer), 1))
}

// ended is a hand-off that does not come.
const ended = -1

// Give acquires the key, and releases it when the taker has waited for a while
// that no rhythm of polling can be in step with.
func (w *Worker) Give(j Job, _ *Answer) (err error) {
	defer func() { rescue(recover(), &err) }()
	ctx, s := context.Background(), w.shared
	defer s.held.Store(ended)
	end := time.Now().Add(j.For)
	for i := int64(1); i <= int64(j.Count) && time.Now().Before(end); i++ {
		h := must(w.lock.Acquire(ctx, j.Key))
		s.enter()
		s.held.Store(i)
		until(func() bool { return s.waiting.Load() >= i })
		time.Sleep(2*time.Millisecond + rand.N(10*time.Millisecond))
		s.leave()
		s.released.Store(int64(monotonic()))
		check(h.Release(ctx))
		until(func() bool { return s.taken.Load() >= i })
	}
	return nil
}

// Take waits for each key that Give holds.
func (w *Worker) Take(j Job, a *Answer) (err error) {
	defer func() { rescue(recover(), &err) }()
	ctx, s := context.Background(), w.shared
	for i := int64(1); ; i++ {
		until(func() bool { held := s.held.Load(); return held >= i || held == ended })
		if s.held.Load() == ended {
			return nil
		}
		s.waiting.Store(i)
		h := must(w.lock.Acquire(ctx, j.Key))
		a.Took = append(a.Took, monotonic()-time.Duration(s.released.Load()))
		s.enter()
		s.leave()
		check(h.Release(ctx))
		s.taken.Store(i)
	}
}
