package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

const (
	rounds = 5
	// turnLimit is for implementations that hang: a turn takes a fraction of a second.
	turnLimit = 10 * time.Second
)

// figure is something that is measured in each round. Times are in nanoseconds.
type figure string

const (
	p50       figure = "p50"
	p99       figure = "p99"
	most      figure = "max"
	perSecond figure = "per second"
	allocs    figure = "allocations" // of the whole process, per operation
	clientCPU figure = "client CPU"  // likewise
	redisCPU  figure = "Redis CPU"   // of its main thread, per operation
	scripts   figure = "scripts"     // per operation
	commands  figure = "commands"    // per operation, those that scripts call among them
)

// result is what one implementation did.
type result struct {
	name   string
	rounds []map[figure]float64
	remark string // what a reader of the row must know; with one, measure leaves it out of the remaining rounds
}

// each lists a figure of every round.
func (r *result) each(f figure) []float64 {
	values := make([]float64, len(r.rounds))
	for i, round := range r.rounds {
		values[i] = round[f]
	}
	return values
}

func (r *result) median(f figure) float64 { return median(r.each(f)) }

// ratio compares r with another, round by round, and takes the median: what slowed a round down slowed both.
func (r *result) ratio(other *result, f figure) float64 {
	mine, theirs := r.each(f), other.each(f)
	n := min(len(mine), len(theirs))
	for i := range n {
		mine[i] /= theirs[i]
	}
	return median(mine[:n])
}

// median is not a number if there is no value: an implementation that fell out.
func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return values[len(values)/2]
}

type results []*result

func (all results) find(name string) *result {
	return all[slices.IndexFunc(all, func(r *result) bool { return r.name == name })]
}

// bestPeer is the peer whose figure is the best as better says. If all fell out, it has no rounds.
func (all results) bestPeer(f figure, better func(a, b float64) bool) *result {
	best := &result{}
	for _, r := range all {
		if isPeer(r.name) && len(r.rounds) > 0 && (len(best.rounds) == 0 || better(r.median(f), best.median(f))) {
			best = r
		}
	}
	return best
}

// sample is what was seen of one implementation in one round.
type sample struct {
	took       []time.Duration // of each operation, where that is known
	ops        int
	elapsed    time.Duration
	counts     counts
	redis, cpu time.Duration
	mallocs    uint64
}

// watch adds what Redis and this process do while f runs.
func (s *sample) watch(b *bench, f func()) {
	calls := b.server.counts(b.ctx)
	redis, cpu, mallocs := b.server.cpu(b.ctx), cpuTime(), countMallocs()
	f()
	s.mallocs += countMallocs() - mallocs
	s.cpu += cpuTime() - cpu
	s.redis += b.server.cpu(b.ctx) - redis
	s.counts.add(calls, b.server.counts(b.ctx))
}

func countMallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// figures are not of a sample without an operation.
func (s *sample) figures() map[figure]float64 {
	n := float64(s.ops)
	f := map[figure]float64{
		perSecond: n / s.elapsed.Seconds(), allocs: float64(s.mallocs) / n,
		clientCPU: float64(s.cpu) / n, redisCPU: float64(s.redis) / n,
		scripts: float64(s.counts.scripts) / n, commands: float64(s.counts.commands) / n,
	}
	if len(s.took) > 0 {
		slices.Sort(s.took)
		f[p50], f[p99] = float64(s.took[len(s.took)/2]), float64(s.took[len(s.took)*99/100])
		f[most] = float64(s.took[len(s.took)-1])
	}
	return f
}

// inTurns calls do for each of n in every round, in an order drawn anew each time: what one leaves behind, such as which
// CPU runs what, must not always meet the same next.
func (b *bench) inTurns(n int, do func(round, i int)) {
	for round := range rounds {
		for _, i := range rand.Perm(n) {
			check(b.ctx.Err())
			do(round, i)
		}
	}
}

// entry is one row of a table: an operation, done again and again.
type entry struct {
	name string
	// op does it once. worker counts from 0; one worker's calls do not overlap.
	op func(ctx context.Context, worker int) error
}

// sizes say how much is measured: in each round so many turns of operations per worker.
type sizes struct{ workers, turns, ops int }

// measure lets the entries take turns. One that hangs is out, and its row says so.
func (b *bench) measure(entries []entry, size sizes) results {
	all := make(results, len(entries))
	for i, e := range entries {
		all[i] = &result{name: e.name}
		b.turn(all[i], e, size, &sample{}) // connections, scripts, caches
	}
	for range rounds {
		samples := make([]sample, len(entries))
		for range size.turns {
			for _, i := range rand.Perm(len(entries)) {
				b.turn(all[i], entries[i], size, &samples[i])
			}
		}
		for i := range samples {
			if all[i].remark == "" {
				all[i].rounds = append(all[i].rounds, samples[i].figures())
			}
		}
	}
	return all
}

func (b *bench) turn(r *result, e entry, size sizes, s *sample) {
	if r.remark != "" {
		return
	}
	took := make([]time.Duration, size.workers*size.ops)
	s.watch(b, func() {
		done := make(chan error, 1)
		start := time.Now()
		go func() {
			done <- together(size.workers, func(w int) error {
				for i := range size.ops {
					began := time.Now()
					if err := e.op(b.ctx, w); err != nil {
						return fmt.Errorf("%s: %w", e.name, err)
					}
					took[w*size.ops+i] = time.Since(began)
				}
				return nil
			})
		}()
		select {
		case err := <-done:
			check(err)
			s.elapsed += time.Since(start)
		case <-time.After(turnLimit):
			r.remark = fmt.Sprintf("hangs: a turn takes longer than %v", turnLimit) // its workers are left behind
		}
	})
	if r.remark == "" {
		s.took = append(s.took, took...)
		s.ops += len(took)
	}
}
