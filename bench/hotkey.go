package main

import (
	"fmt"
	"time"
)

// crowd is one way to want one key at once.
type crowd struct {
	title     string
	processes int
	workers   int // of each process
	inside    time.Duration
	oneWay    time.Duration // the way to Redis, if it is long
	field     []string
	// How long a round is, for each contestant.
	full, quick time.Duration
	bars        func(*report, contest)
}

// contest is what came of a crowd.
type contest struct {
	crowd
	results          []result
	perkey, bestPeer result
}

var crowds = []crowd{
	{
		title: "hot key, 1 process × 64, empty section", processes: 1, workers: 64,
		field: []string{"raw", "token", "cohort", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"},
		full:  2 * time.Second, quick: 200 * time.Millisecond,
		bars: func(r *report, c contest) {
			c.throughputBar(r, 25)
			c.fairnessBar(r, 0.99)
			r.bar(bar{what: c.title + ", goroutines starved", got: c.perkey.median(starved), want: 0})
		},
	},
	{
		title: "hot key, 4 processes × 16, empty section", processes: 4, workers: 16,
		field: []string{"raw", "token", "cohort", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"},
		full:  2 * time.Second, quick: 200 * time.Millisecond,
		bars: func(r *report, c contest) {
			c.throughputBar(r, 25)
			c.fairnessBar(r, 0.95)
			r.bar(bar{what: c.title + ", p99 wait in ms", got: c.perkey.median(p99) / 1e6, want: 5})
		},
	},
	{
		title: "hot key, 4 processes × 16, empty section, 2.4 ms to Redis and back", processes: 4, workers: 16,
		oneWay: 1200 * time.Microsecond,
		field:  []string{"cohort", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"},
		full:   4 * time.Second, quick: 300 * time.Millisecond,
		bars: func(r *report, c contest) {
			c.throughputBar(r, 10)
			r.bar(bar{
				what: c.title + ", p99 wait × " + c.bestPeer.name, got: c.perkey.ratio(c.bestPeer, p99), want: 0.25,
				figure: c.p99Figure(),
			})
		},
	},
	{
		title: "hot key, 32 processes × 2, 1 ms in the section", processes: 32, workers: 2, inside: time.Millisecond,
		field: []string{"token", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey"},
		full:  3 * time.Second, quick: 350 * time.Millisecond,
		bars: func(r *report, c contest) {
			r.bar(bar{what: c.title + ", scripts per acquisition", got: c.perkey.calls.scripts(), want: 2.1})
			// A fair line is gone through once while a caller waits.
			turn := time.Duration(float64(time.Second) / c.perkey.median(perSecond))
			line := float64(c.processes*c.workers) * float64(turn)
			r.bar(bar{
				what: c.title + ", p99 wait × (waiters × hand-off)", got: c.perkey.median(p99) / line, want: 1.2,
				figure: fmt.Sprintf("%s, %d × %s", brief(c.perkey.median(p99)), c.processes*c.workers, brief(float64(turn))),
			})
		},
	},
}

// hotKey is one key that many want at once, all the time.
func hotKey(b *bench) error {
	for _, c := range crowds {
		if err := b.contend(c); err != nil {
			return fmt.Errorf("%s: %w", c.title, err)
		}
	}
	return nil
}

func (b *bench) contend(c crowd) error {
	r := role{Workers: c.workers}
	if c.oneWay > 0 {
		d, err := newDistance(b.server.addr, c.oneWay)
		if err != nil {
			return err
		}
		defer d.close()
		r.Addr = d.addr
	}
	teams, err := b.startTeams(enter(c.field...), r, c.processes)
	defer teams.dismiss()
	if err != nil {
		return err
	}
	cells := make([]cell, len(teams))
	for i, team := range teams {
		cells[i] = cell{team: team, calls: calls{}}
	}
	err = inTurns(len(cells), func(round, i int) error {
		return cells[i].run(b, job{
			Do: "contend", Key: fmt.Sprintf("hot:%s:%d", c.title, round), For: b.pick(c.full, c.quick), Inside: c.inside,
		})
	})
	if err != nil {
		return err
	}
	out := contest{crowd: c}
	for i := range cells {
		out.results = append(out.results, cells[i].result())
	}
	out.perkey = find(out.results, "perkey")
	out.bestPeer = bestOf(out.results)
	b.out.contended(c.title, out.bestPeer, out.results)
	c.bars(b.out, out)
	return overlapped(cells)
}

func overlapped(cells []cell) error {
	for _, c := range cells {
		if c.overlaps > 0 {
			return fmt.Errorf("%s let %d in while another was inside", c.team.name, c.overlaps)
		}
	}
	return nil
}

// bestOf is the peer with the most acquisitions per second.
func bestOf(results []result) (best result) {
	for _, r := range results {
		if isPeer(r.name) && len(r.rounds) > 0 && (len(best.rounds) == 0 || r.median(perSecond) > best.median(perSecond)) {
			best = r
		}
	}
	return best
}

func (c contest) throughputBar(r *report, want float64) {
	r.bar(bar{
		what: c.title + ", acquisitions/s × " + c.bestPeer.name, got: c.perkey.ratio(c.bestPeer, perSecond), want: want, atLeast: true,
		figure: fmt.Sprintf("%.0f/s, %s %.0f/s", c.perkey.median(perSecond), c.bestPeer.name, c.bestPeer.median(perSecond)),
	})
}

func (c contest) fairnessBar(r *report, want float64) {
	r.bar(bar{what: c.title + ", Jain's index", got: c.perkey.median(jain), want: want, atLeast: true})
}

func (c contest) p99Figure() string {
	return fmt.Sprintf("%s, %s %s", brief(c.perkey.median(p99)), c.bestPeer.name, brief(c.bestPeer.median(p99)))
}
