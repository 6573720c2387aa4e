package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// teams of one scenario, one for each contestant.
type teams []*team

func (b *bench) startTeams(list []entrant, r role, processes int) (teams, error) {
	var all teams
	for _, e := range list {
		c, err := b.startTeam(e, r, processes)
		all = append(all, c)
		if err != nil && c.down == nil {
			return all, fmt.Errorf("start %s: %w", e.name, err)
		}
	}
	return all, nil
}

func (all teams) dismiss() {
	for _, c := range all {
		c.dismiss()
	}
}

// inTurns does every cell in every round, in an order drawn anew.
func inTurns(cells int, do func(round, cell int) error) error {
	for round := range rounds {
		for _, i := range rand.Perm(cells) {
			if err := do(round, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// cell is what one team does in one crowd. A team that fails or hangs is out of
// the remaining rounds, and its row says why; that does not end the run.
type cell struct {
	team     *team
	rounds   []figures
	calls    calls
	total    int // acquisitions
	overlaps int64
	remark   string
}

func (c *cell) run(b *bench, j job) error {
	if !c.team.works() {
		return nil
	}
	_, _ = c.team.some(b.ctx, c.team.members[:1], job{Do: "start", Key: j.Key})
	before, err := b.server.calls(b.ctx)
	if err != nil {
		return err
	}
	b.board.reset()
	j.At = monotonic() + 20*time.Millisecond + time.Duration(len(c.team.members))*time.Millisecond
	answers, _ := c.team.all(b.ctx, j)
	if !c.team.works() {
		return nil
	}
	after, err := b.server.calls(b.ctx)
	if err != nil {
		return err
	}
	c.calls.add(before, after)
	delete(c.calls, "ping") // keep-alives, also of the teams that rest
	c.overlaps += b.board.overlaps.Load()
	c.add(answers)
	return nil
}

func (c *cell) add(answers []answer) {
	var (
		f             figures
		counts        []int
		waits         = histogram{}
		elapsed, last time.Duration
	)
	for _, a := range answers {
		n := 0
		for _, count := range a.Counts {
			n += count
		}
		c.total += n
		f.perSecond += float64(n) / a.Elapsed.Seconds()
		counts = append(counts, a.Counts...)
		waits.add(a.Waits)
		elapsed, last = max(elapsed, a.Elapsed), max(last, a.Last)
	}
	f.p50, f.p99 = waits.quantile(0.5), waits.quantile(0.99)
	f.jain, f.starved = fairness(counts)
	c.rounds = append(c.rounds, f)
	// Redsync may sleep for a quarter of a second; nobody else has a reason to.
	if idle := elapsed - last; idle > elapsed/2 && idle > 300*time.Millisecond {
		c.remark = fmt.Sprintf("stalled: none in the last %v", idle.Round(10*time.Millisecond))
	}
}

func (c *cell) result() result {
	r := result{name: c.team.name, rounds: c.rounds, remark: c.remark}
	if c.team.down != nil {
		r.remark = c.team.down.Error()
	}
	if c.overlaps > 0 {
		r.remark = fmt.Sprintf("BROKEN: %d overlaps", c.overlaps)
	}
	r.calls = c.calls.per(max(1, c.total))
	return r
}
