package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// handOff is the time from the start of a release to the return of the one call
// that waits for the key, in another process.
func handOff(b *bench) {
	all, workers := b.start(2, settings{Addr: b.server.addr, Workers: 1, Lease: leaseTime},
		"token", "message", "message+fence", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey")
	b.inTurns(len(all), func(round, i int) {
		ps := workers[i]
		if ps.err != nil {
			return
		}
		j := Job{Key: fmt.Sprintf("handoff:%d", round), Count: 100, For: scale(b, 2*time.Second, 300*time.Millisecond)}
		var s sample
		s.watch(b, func() {
			b.shared.reset()
			giver, taker := ps.all[:1], ps.all[1:]
			if ask[int](b, ps, giver, "Prepare", j); ps.err == nil {
				gives := begin[int](ps, giver, "Give", j)
				s.took = ask[[]time.Duration](b, ps, taker, "Take", j)[0]
				gives.wait(b)
			}
		})
		if n := b.shared.overlaps.Load(); n > 0 {
			check(fmt.Errorf("%s let %d in while another was inside", ps.name, n))
		}
		if s.ops = len(s.took); ps.err == nil && s.ops > 0 {
			ps.rounds = append(ps.rounds, s.figures())
		}
	})
	perkey, token := all.find("perkey"), all.find("token")
	all.print("hand-off to one waiter in another process", col("p50", p50, brief), col("p99", p99, brief),
		times("p50 ", p50, token), col("scripts each", scripts, decimals(2)), col("commands each", commands, decimals(2)))
	peer := all.bestPeer(p50, func(a, b float64) bool { return a < b })
	b.atMost("hand-off to another process, p50 × token", perkey.ratio(token, p50), 1.5, durations(perkey, token, p50))
	b.atMost("hand-off to another process, p50 × "+peer.name, perkey.ratio(peer, p50), 1, durations(perkey, peer, p50))
}

// ended is a hand-off that does not come.
const ended = -1

// Give acquires the key, and releases it when the taker has waited for a while
// that no rhythm of polling can be in step with.
func (w *Worker) Give(j Job, _ *int) error {
	ctx := context.Background()
	defer w.shared.held.Store(ended)
	end := time.Now().Add(j.For)
	for i := int64(1); i <= int64(j.Count) && time.Now().Before(end); i++ {
		h, err := w.lock.Acquire(ctx, j.Key)
		if err != nil {
			return err
		}
		w.shared.enter()
		w.shared.held.Store(i)
		if err := until(func() bool { return w.shared.waiting.Load() >= i }); err != nil {
			return err
		}
		time.Sleep(2*time.Millisecond + rand.N(10*time.Millisecond))
		w.shared.leave()
		w.shared.released.Store(int64(monotonic()))
		if err := h.Release(ctx); err != nil {
			return err
		}
		if err := until(func() bool { return w.shared.taken.Load() >= i }); err != nil {
			return err
		}
	}
	return nil
}

// Take waits for each key that Give holds.
func (w *Worker) Take(j Job, took *[]time.Duration) error {
	ctx := context.Background()
	for i := int64(1); ; i++ {
		err := until(func() bool { held := w.shared.held.Load(); return held >= i || held == ended })
		if err != nil || w.shared.held.Load() == ended {
			return err
		}
		w.shared.waiting.Store(i)
		h, err := w.lock.Acquire(ctx, j.Key)
		if err != nil {
			return err
		}
		*took = append(*took, monotonic()-time.Duration(w.shared.released.Load()))
		w.shared.enter()
		w.shared.leave()
		if err := h.Release(ctx); err != nil {
			return err
		}
		w.shared.taken.Store(i)
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
