package main

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	fair    figure = "Jain's index" // 1 when all workers got the same, 1/n when one got all
	starved figure = "starved"      // workers that got less than a hundredth of their share
)

// contention is one way to want one key at once.
type contention struct {
	title     string
	processes int
	workers   int // of each process
	inside    time.Duration
	oneWay    time.Duration // the way to Redis, if it is long
	locks     []string
	// How long a round is, for each lock.
	full, quick time.Duration
	bars        func(b *bench, what string, perkey, peer *result)
}

var nearby = []string{"raw", "token", "cohort", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"}

var contentions = []contention{
	{
		title: "hot key, 1 process × 64, empty section", processes: 1, workers: 64, locks: nearby,
		full: 2 * time.Second, quick: 200 * time.Millisecond,
		bars: func(b *bench, what string, perkey, peer *result) {
			b.atLeast(what+", acquisitions/s × "+peer.name, perkey.ratio(peer, perSecond), 25, rates(perkey, peer))
			b.atLeast(what+", Jain's index", perkey.median(fair), 0.99)
			b.atMost(what+", goroutines starved", perkey.median(starved), 0)
		},
	},
	{
		title: "hot key, 4 processes × 16, empty section", processes: 4, workers: 16, locks: nearby,
		full: 2 * time.Second, quick: 200 * time.Millisecond,
		bars: func(b *bench, what string, perkey, peer *result) {
			b.atLeast(what+", acquisitions/s × "+peer.name, perkey.ratio(peer, perSecond), 25, rates(perkey, peer))
			b.atLeast(what+", Jain's index", perkey.median(fair), 0.95)
			b.atMost(what+", p99 wait in ms", perkey.median(p99)/1e6, 5)
		},
	},
	{
		title: "hot key, 4 processes × 16, empty section, 2.4 ms to Redis and back", processes: 4, workers: 16,
		oneWay: 1200 * time.Microsecond, locks: nearby[2:], full: 4 * time.Second, quick: 300 * time.Millisecond,
		bars: func(b *bench, what string, perkey, peer *result) {
			b.atLeast(what+", acquisitions/s × "+peer.name, perkey.ratio(peer, perSecond), 10, rates(perkey, peer))
			b.atMost(what+", p99 wait × "+peer.name, perkey.ratio(peer, p99), 0.25, durations(perkey, peer, p99))
		},
	},
	{
		title: "hot key, 32 processes × 2, 1 ms in the section", processes: 32, workers: 2, inside: time.Millisecond,
		locks: []string{"token", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"},
		full:  3 * time.Second, quick: 350 * time.Millisecond,
		bars: func(b *bench, what string, perkey, _ *result) {
			b.atMost(what+", scripts per acquisition", perkey.median(scripts), 2.1)
			// A caller of a fair queue waits for all others once.
			handOver := float64(time.Second) / perkey.median(perSecond)
			b.atMost(what+", p99 wait × (waiters × hand-off)", perkey.median(p99)/(64*handOver), 1.2,
				brief(perkey.median(p99)), "64 × "+brief(handOver))
		},
	},
}

// hotKey is one key that many want at once, all the time.
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
	all, workers := b.start(c.processes, settings{Addr: addr, Workers: c.workers, Lease: leaseTime}, c.locks...)
	var broken error
	b.inTurns(len(all), func(round, i int) {
		ps := workers[i]
		j := Job{Key: fmt.Sprintf("hot:%s:%d", c.title, round), For: scale(b, c.full, c.quick), Inside: c.inside}
		if ps.err != nil {
			return
		}
		ask[int](b, ps, ps.all[:1], "Prepare", j)
		b.contend(ps, j)
		if n := b.shared.overlaps.Load(); n > 0 {
			broken = fmt.Errorf("%s let %d in while another was inside", ps.name, n)
		}
	})
	peer := all.bestPeer(perSecond, func(a, b float64) bool { return a > b })
	all.print(c.title, col("acquisitions/s", perSecond, decimals(0)), times("", perSecond, peer),
		col("p50 wait", p50, brief), col("p99 wait", p99, brief), times("p99 ", p99, peer),
		col("Jain", fair, decimals(3)), col("starved", starved, decimals(0)),
		col("scripts/acq", scripts, decimals(2)), col("commands/acq", commands, decimals(2)))
	c.bars(b, c.title, all.find("perkey"), peer)
	check(broken)
}

// contend adds a round in which the workers of all processes want a key. A lock that fails or hangs is out of
// the remaining rounds; that does not end the run.
func (b *bench) contend(ps *processes, j Job) {
	var s sample
	var answers []Contended
	s.watch(b, func() {
		b.shared.reset()
		j.At = monotonic() + 20*time.Millisecond + time.Duration(len(ps.all))*time.Millisecond
		answers = ask[Contended](b, ps, ps.all, "Contend", j)
	})
	if ps.err != nil {
		return
	}
	s.counts.commands -= s.counts.pings // keep-alives, also of processes that rest
	var got []int
	var elapsed, last time.Duration
	var rate float64
	waits := newHistogram()
	for _, a := range answers {
		n := 0
		for _, count := range a.Counts {
			n += count
		}
		s.ops += n
		rate += float64(n) / a.Elapsed.Seconds()
		got = append(got, a.Counts...)
		waits.Merge(hdrhistogram.Import(&a.Waits))
		elapsed, last = max(elapsed, a.Elapsed), max(last, a.Last)
	}
	f := s.figures()
	f[perSecond] = rate
	f[p50], f[p99] = float64(waits.ValueAtQuantile(50)), float64(waits.ValueAtQuantile(99))
	f[fair], f[starved] = fairness(got)
	ps.rounds = append(ps.rounds, f)
	// Redsync may sleep for a quarter of a second; nobody else has a reason to.
	if idle := elapsed - last; idle > elapsed/2 && idle > 300*time.Millisecond {
		ps.remark = fmt.Sprintf("stalled: none in the last %v", idle.Round(10*time.Millisecond))
	}
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

// Contended is what the workers of a process did.
type Contended struct {
	Counts  []int                 // acquisitions of each worker
	Waits   hdrhistogram.Snapshot // of all acquisitions, and of waits that the end cut short
	Elapsed time.Duration         // until the end
	Last    time.Duration         // until the last acquisition
}

// Contend lets every worker acquire and release one key until the time is up.
func (w *Worker) Contend(j Job, a *Contended) error {
	all := make([]contender, w.Workers)
	for i := range all {
		all[i].waits = newHistogram()
		all[i].ctx, all[i].cancel = context.WithCancel(context.Background())
	}
	done := make(chan error, 1)
	go func() { done <- together(len(all), func(i int) error { return all[i].run(w, j) }) }()
	time.Sleep(j.At + j.For - monotonic())
	a.Elapsed = monotonic() - j.At // a busy process wakes up late
	for i := range all {
		all[i].stop()
	}
	select {
	case err := <-done:
		waits := newHistogram()
		for i := range all {
			all[i].cancel()
			waits.Merge(all[i].waits)
			a.Counts, a.Last = append(a.Counts, all[i].count), max(a.Last, all[i].last)
		}
		a.Waits = *waits.Export()
		return err
	case <-time.After(grace):
		// Their figures cannot be read: they may still be writing them.
		return fmt.Errorf("calls did not return within %v of their ctx's end", grace)
	}
}

// contender is one worker that wants a key again and again.
type contender struct {
	state  atomic.Int32
	ctx    context.Context // ended only while the worker waits: it never loses a key by it
	cancel context.CancelFunc

	count int
	waits *hdrhistogram.Histogram
	last  time.Duration // when it last acquired, after the beginning
}

const (
	contenderBusy int32 = iota
	contenderWaiting
	contenderStopped
)

func (c *contender) run(w *Worker, j Job) error {
	time.Sleep(j.At - monotonic())
	for c.state.CompareAndSwap(contenderBusy, contenderWaiting) {
		began := time.Now()
		h, err := w.lock.Acquire(c.ctx, j.Key)
		_ = c.waits.RecordValue(min(time.Since(began), time.Minute).Nanoseconds())
		if !c.state.CompareAndSwap(contenderWaiting, contenderBusy) { // stopped: it does not count
			if err == nil {
				_ = h.Release(context.Background())
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		w.shared.enter()
		c.count++
		c.last = monotonic() - j.At
		if j.Inside > 0 {
			time.Sleep(j.Inside)
		}
		w.shared.leave()
		if err := h.Release(context.Background()); err != nil {
			return fmt.Errorf("release: %w", err)
		}
	}
	return nil
}

func (c *contender) stop() {
	for {
		if c.state.CompareAndSwap(contenderWaiting, contenderStopped) {
			c.cancel()
			return
		}
		if c.state.CompareAndSwap(contenderBusy, contenderStopped) {
			return
		}
	}
}
