package main

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

const rounds = 5

// figure is something that is measured in each round.
type figure struct {
	name   string
	digits int    // after the point when it is printed; or one of the units below
	worst  bool   // of several rounds the largest, and not the median
	more   bool   // is better
	base   string // it is a ratio to what this row has of it
}

const (
	nanoseconds = -1
	bestPeer    = "best peer" // the row that is the best at a figure
)

var (
	p50       = figure{name: "p50", digits: nanoseconds}
	p99       = figure{name: "p99", digits: nanoseconds}
	longest   = figure{name: "max", digits: nanoseconds, worst: true}
	perSecond = figure{name: "per second", more: true}
	// The rest is of each operation.
	allocs    = figure{name: "allocations", digits: 1} // of the whole process
	clientCPU = figure{name: "client CPU", digits: nanoseconds}
	redisCPU  = figure{name: "Redis CPU", digits: nanoseconds} // of its main thread
	scripts   = figure{name: "scripts", digits: 2}
	commands  = figure{name: "commands", digits: 2} // those that scripts call among them
)

// over is the ratio to what another row has of f; without a name of one it is f itself.
func (f figure) over(base string) figure {
	f.base = base
	return f
}

type values map[figure]float64

// row is an implementation in a table.
type row struct {
	name   string
	rounds []values
	remark string // why it is out: it is not measured again

	// What a scenario works with:
	op        func(ctx context.Context, worker int) error // for compare; one worker's calls do not overlap
	processes []process
	server    *server
}

type table []*row

func newTable(names ...string) (all table) {
	for _, name := range names {
		all = append(all, &row{name: name})
	}
	return all
}

func (all table) find(name string) *row {
	return all[slices.IndexFunc(all, func(r *row) bool { return r.name == name })]
}

// base is the row that f is a ratio to. It has no rounds if all peers are out.
func (all table) base(f figure) *row {
	if f.base != bestPeer {
		return all.find(f.base)
	}
	best, f := &row{name: bestPeer}, f.over("")
	for _, r := range all {
		if slices.Contains(peers, r.name) && len(r.rounds) > 0 &&
			(len(best.rounds) == 0 || all.value(r, f) > all.value(best, f) == f.more) {
			best = r
		}
	}
	return best
}

// value is the median over the rounds, and not a number if there is none. Rows are compared round by round: what slowed
// a round down slowed both.
func (all table) value(r *row, f figure) float64 {
	var base *row
	if f.base != "" {
		base = all.base(f)
	}
	var each []float64
	for i, round := range r.rounds {
		if base == nil {
			each = append(each, round[f])
		} else if i < len(base.rounds) {
			each = append(each, round[f.over("")]/base.rounds[i][f.over("")])
		}
	}
	slices.Sort(each)
	switch {
	case len(each) == 0:
		return math.NaN()
	case f.worst:
		return each[len(each)-1]
	}
	return each[len(each)/2]
}

// sample is what was seen of one row in one round.
type sample struct {
	took    []time.Duration // of each operation, where that is known
	ops     int
	elapsed time.Duration
	used    values // by all operations
	also    values // what a scenario measures itself
}

// watch adds what Redis and this process do while f runs.
func (s *sample) watch(b *bench, f func()) {
	calls := b.server.calls(b.ctx)
	redis, cpu, mallocs := b.server.cpu(b.ctx), cpuTime(0), countMallocs()
	f()
	used := values{allocs: countMallocs() - mallocs, clientCPU: float64(cpuTime(0) - cpu)}
	used[redisCPU] = float64(b.server.cpu(b.ctx) - redis)
	for f, n := range b.server.calls(b.ctx) {
		used[f] = n - calls[f]
	}
	if s.used == nil {
		s.used = values{}
	}
	for f, n := range used {
		s.used[f] += n
	}
}

func countMallocs() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Mallocs)
}

// values are not of a sample without an operation.
func (s *sample) values() values {
	all := values{perSecond: float64(s.ops) / s.elapsed.Seconds()}
	for f, n := range s.used {
		all[f] = n / float64(s.ops)
	}
	if n := len(s.took); n > 0 {
		slices.Sort(s.took)
		all[p50], all[p99], all[longest] = float64(s.took[n/2]), float64(s.took[n*99/100]), float64(s.took[n-1])
	}
	maps.Copy(all, s.also)
	return all
}

// try runs f unless the row is out. If f fails the row is out, and the table says why.
func (r *row) try(f func()) {
	if r.remark != "" {
		return
	}
	if err := try(f); errors.Is(err, errBroken) {
		check(err)
	} else if err != nil {
		r.remark = err.Error()
	}
}

// inRounds lets the rows take turns, so many in each round, in an order drawn anew each time: what one leaves behind,
// such as which CPU runs what, must not always meet the same next.
func (b *bench) inRounds(all table, turns int, do func(r *row, round int, s *sample)) {
	for round := range rounds {
		samples := make([]sample, len(all))
		for range turns {
			for _, i := range rand.Perm(len(all)) {
				check(b.ctx.Err())
				all[i].try(func() { do(all[i], round, &samples[i]) })
			}
		}
		for i, r := range all {
			if r.remark == "" {
				r.rounds = append(r.rounds, samples[i].values())
			}
		}
	}
}

// size says how much is measured: in each round so many turns of operations per worker.
type size struct{ workers, turns, ops int }

// compare has the rows do their operations in turns, and reports what is known of those, with ratios to the row base.
func (b *bench) compare(title string, all table, base string, n size, bars ...bar) {
	for _, r := range all { // connections, scripts, caches
		r.try(func() { b.turn(r, n, &sample{}) })
	}
	b.inRounds(all, n.turns, func(r *row, _ int, s *sample) { b.turn(r, n, s) })
	b.report(title, all, []figure{
		p50, p99, perSecond, p50.over(base), p99.over(base), perSecond.over(base), allocs, redisCPU, scripts, commands,
	}, bars...)
}

func (b *bench) turn(r *row, n size, s *sample) {
	took := make([]time.Duration, n.workers*n.ops)
	done := make(chan error, 1)
	s.watch(b, func() {
		start := time.Now()
		go func() {
			done <- together(n.workers, func(w int) error {
				for i := range n.ops {
					began := time.Now()
					if err := r.op(b.ctx, w); err != nil {
						return err
					}
					took[w*n.ops+i] = time.Since(began)
				}
				return nil
			})
		}()
		// It takes a fraction of a second, unless an implementation hangs: then its workers are left behind.
		check(must(receive(b.ctx, done, 10*time.Second, "a turn does not end")))
		s.elapsed += time.Since(start)
	})
	s.took, s.ops = append(s.took, took...), s.ops+len(took)
}
