package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"
)

// entry is one row of a table: an operation, done again and again.
type entry struct {
	name string
	// op does it once. worker counts from 0; one worker's calls do not overlap.
	op func(ctx context.Context, worker int) error
}

// sizes say how much is measured: rounds of turns of operations per worker.
type sizes struct {
	workers int
	turns   int
	ops     int
}

const (
	rounds = 5
	// turnLimit is for contestants that hang: a turn takes a fraction of a second.
	turnLimit = 10 * time.Second
)

var errHangs = fmt.Errorf("hangs: a turn takes longer than %v", turnLimit)

// figures are what one entry did in one round.
type figures struct {
	p50, p99  time.Duration
	perSecond float64
	// Of those who contend for one key.
	jain    float64 // fairness: 1 when all got the same, 1/n when one got all
	starved float64 // workers that got less than a hundredth of their share
}

// result is what one entry did.
type result struct {
	name   string
	rounds []figures
	allocs float64       // per operation, of the whole process
	redis  time.Duration // CPU time of the server's main thread, per operation
	calls  perOp
	remark string // what a reader of the row must know
}

// median is the median over the rounds of what f says of each.
func (r result) median(f func(figures) float64) float64 {
	values := make([]float64, len(r.rounds))
	for i, round := range r.rounds {
		values[i] = f(round)
	}
	return medianOf(values)
}

// ratio compares r with the floor, round by round, and takes the median: what
// slowed a round down slowed both.
func (r result) ratio(floor result, f func(figures) float64) float64 {
	values := make([]float64, min(len(r.rounds), len(floor.rounds)))
	for i := range values {
		values[i] = f(r.rounds[i]) / f(floor.rounds[i])
	}
	return medianOf(values)
}

// medianOf is not a number if there is no value: a contestant that fell out.
func medianOf(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func p50(f figures) float64       { return float64(f.p50) }
func p99(f figures) float64       { return float64(f.p99) }
func perSecond(f figures) float64 { return f.perSecond }
func jain(f figures) float64      { return f.jain }
func starved(f figures) float64   { return f.starved }

// find returns the row of that name.
func find(results []result, name string) result {
	for _, r := range results {
		if r.name == name {
			return r
		}
	}
	panic("bench: no contestant is named " + name)
}

// measure lets the entries take turns, in an order drawn anew each time: what one
// leaves behind, such as which CPU runs what, must not always meet the same next.
// An entry that hangs is out, and its row says so.
func (b *bench) measure(entries []entry, size sizes) ([]result, error) {
	tallies := make([]tally, len(entries))
	for i, e := range entries {
		tallies[i] = tally{result: result{name: e.name}, calls: calls{}}
		_, err := takeTurn(b.ctx, e, size) // connections, scripts, caches
		if err := tallies[i].excuse(err); err != nil {
			return nil, err
		}
	}
	for range rounds {
		for range size.turns {
			for _, i := range rand.Perm(len(entries)) {
				if err := tallies[i].excuse(tallies[i].add(b, entries[i], size)); err != nil {
					return nil, err
				}
			}
		}
		for i := range tallies {
			tallies[i].endRound()
		}
	}
	results := make([]result, len(entries))
	for i := range tallies {
		results[i] = tallies[i].end()
	}
	return results, nil
}

// turn is what one entry did in one turn.
type turn struct {
	latencies []time.Duration
	elapsed   time.Duration
	mallocs   uint64
}

func takeTurn(ctx context.Context, e entry, size sizes) (turn, error) {
	t := turn{latencies: make([]time.Duration, size.workers*size.ops)}
	errs := make([]error, size.workers)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	var wg sync.WaitGroup
	for w := range size.workers {
		wg.Go(func() {
			for i := range size.ops {
				began := time.Now()
				if errs[w] = e.op(ctx, w); errs[w] != nil {
					return
				}
				t.latencies[w*size.ops+i] = time.Since(began)
			}
		})
	}
	back := make(chan struct{})
	go func() {
		wg.Wait()
		close(back)
	}()
	select {
	case <-back:
	case <-time.After(turnLimit):
		return turn{}, errHangs // its workers are left behind
	}
	t.elapsed = time.Since(start)
	runtime.ReadMemStats(&after)
	t.mallocs = after.Mallocs - before.Mallocs
	return t, cmp.Or(errs...)
}

// tally sums up the turns of one entry.
type tally struct {
	result result
	calls  calls
	allocs uint64
	redis  time.Duration
	ops    int
	// Of the round under way.
	latencies []time.Duration
	elapsed   time.Duration
}

// excuse records that an entry hangs. Any other error is the scenario's.
func (t *tally) excuse(err error) error {
	if errors.Is(err, errHangs) {
		t.result.remark = err.Error()
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.result.name, err)
	}
	return nil
}

func (t *tally) add(b *bench, e entry, size sizes) error {
	if t.result.remark != "" {
		return nil
	}
	before, err := b.server.calls(b.ctx)
	if err != nil {
		return err
	}
	cpuBefore, err := b.server.cpu(b.ctx)
	if err != nil {
		return err
	}
	turn, err := takeTurn(b.ctx, e, size)
	if err != nil {
		return err
	}
	cpuAfter, err := b.server.cpu(b.ctx)
	if err != nil {
		return err
	}
	after, err := b.server.calls(b.ctx)
	if err != nil {
		return err
	}
	t.calls.add(before, after)
	t.allocs += turn.mallocs
	t.redis += cpuAfter - cpuBefore
	t.ops += len(turn.latencies)
	t.latencies = append(t.latencies, turn.latencies...)
	t.elapsed += turn.elapsed
	return nil
}

func (t *tally) endRound() {
	slices.Sort(t.latencies)
	n := len(t.latencies)
	if n == 0 {
		return
	}
	t.result.rounds = append(t.result.rounds, figures{
		p50: t.latencies[n/2], p99: t.latencies[n*99/100], perSecond: float64(n) / t.elapsed.Seconds(),
	})
	t.latencies, t.elapsed = t.latencies[:0], 0
}

func (t *tally) end() result {
	t.result.allocs = float64(t.allocs) / float64(t.ops)
	t.result.redis = t.redis / time.Duration(max(1, t.ops))
	t.result.calls = t.calls.per(t.ops)
	return t.result
}
