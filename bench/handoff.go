package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// handOff is the time from the start of a release to the return of the one call
// that waits for the key, in another process.
func handOff(b *bench) error {
	field := enter("token", "message", "message+fence", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey")
	teams, err := b.startTeams(field, role{Workers: 1}, 2)
	defer teams.dismiss()
	if err != nil {
		return err
	}
	results := make([]result, len(teams))
	counted := make([]calls, len(teams))
	handoffs := make([]int, len(teams))
	for i, c := range teams {
		results[i].name = c.name
		counted[i] = calls{}
	}
	err = inTurns(len(teams), func(round, i int) error {
		c := teams[i]
		if !c.works() {
			return nil
		}
		j := job{Key: fmt.Sprintf("handoff:%d", round), Count: 100, For: b.pick(2*time.Second, 300*time.Millisecond)}
		before, err := b.server.calls(b.ctx)
		if err != nil {
			return err
		}
		took, _ := b.handOffs(c, j)
		if !c.works() {
			return nil
		}
		after, err := b.server.calls(b.ctx)
		if err != nil {
			return err
		}
		if n := b.board.overlaps.Load(); n > 0 {
			return fmt.Errorf("%s let %d in while another was inside", c.name, n)
		}
		counted[i].add(before, after)
		handoffs[i] += len(took)
		if len(took) == 0 {
			return nil
		}
		slices.Sort(took)
		results[i].rounds = append(results[i].rounds, figures{p50: took[len(took)/2], p99: took[len(took)*99/100]})
		return nil
	})
	if err != nil {
		return err
	}
	for i, c := range teams {
		results[i].calls = counted[i].per(max(1, handoffs[i]))
		if c.down != nil {
			results[i].remark = c.down.Error()
		}
	}
	perkey, token, peer := find(results, "perkey"), find(results, "token"), result{}
	b.out.handOffs("hand-off to one waiter in another process", token, results)
	b.out.bar(bar{
		what: "hand-off to another process, p50 × token", got: perkey.ratio(token, p50), want: 1.5,
		figure: fmt.Sprintf("%s, token %s", brief(perkey.median(p50)), brief(token.median(p50))),
	})
	for _, r := range results {
		if isPeer(r.name) && len(r.rounds) > 0 && (len(peer.rounds) == 0 || r.median(p50) < peer.median(p50)) {
			peer = r
		}
	}
	b.out.bar(bar{
		what: "hand-off to another process, p50 × " + peer.name, got: perkey.ratio(peer, p50), want: 1,
		figure: fmt.Sprintf("%s, %s %s", brief(perkey.median(p50)), peer.name, brief(peer.median(p50))),
	})
	return nil
}

// handOffs lets the first of the team's two processes give and the other take.
func (b *bench) handOffs(c *team, j job) ([]time.Duration, error) {
	b.board.reset()
	giver, taker := c.members[:1], c.members[1:2]
	j.Do = "start"
	if _, err := c.some(b.ctx, giver, j); err != nil {
		return nil, err
	}
	j.Do = "give"
	if err := c.tell(giver, j); err != nil {
		return nil, err
	}
	j.Do = "take"
	answers, err := c.some(b.ctx, taker, j)
	if err != nil {
		return nil, err
	}
	if _, err := c.collect(b.ctx, giver, 2*grace); err != nil {
		return nil, err
	}
	return answers[0].Handoffs, nil
}

// ended is a hand-off that does not come.
const ended = -1

// give acquires the key, and releases it when the taker has waited for a while
// that no rhythm of polling can be in step with.
func (c *child) give(j job) error {
	ctx := context.Background()
	defer c.board.held.Store(ended)
	end := time.Now().Add(j.For)
	for i := int64(1); i <= int64(j.Count) && time.Now().Before(end); i++ {
		h, err := c.contestant.Acquire(ctx, j.Key)
		if err != nil {
			return err
		}
		c.board.enter()
		c.board.held.Store(i)
		if err := until(func() bool { return c.board.waiting.Load() >= i }); err != nil {
			return err
		}
		time.Sleep(2*time.Millisecond + rand.N(10*time.Millisecond))
		c.board.leave()
		c.board.released.Store(int64(monotonic()))
		if err := h.Release(ctx); err != nil {
			return err
		}
		if err := until(func() bool { return c.board.taken.Load() >= i }); err != nil {
			return err
		}
	}
	return nil
}

func (c *child) take(j job) (took []time.Duration, err error) {
	ctx := context.Background()
	for i := int64(1); ; i++ {
		err := until(func() bool { held := c.board.held.Load(); return held >= i || held == ended })
		if err != nil || c.board.held.Load() == ended {
			return took, err
		}
		c.board.waiting.Store(i)
		h, err := c.contestant.Acquire(ctx, j.Key)
		if err != nil {
			return took, err
		}
		took = append(took, monotonic()-time.Duration(c.board.released.Load()))
		c.board.enter()
		c.board.leave()
		if err := h.Release(ctx); err != nil {
			return took, err
		}
		c.board.taken.Store(i)
	}
}

// until looks every now and then whether the other process is ready.
func until(ready func() bool) error {
	for end := time.Now().Add(grace); !ready(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			return errors.New("hangs: the other process is not ready within 3s")
		}
	}
	return nil
}
