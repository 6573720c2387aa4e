package main

import (
	"context"
	"fmt"
	"math"
	"time"
)

// uncontended is the price of a lock that nobody else wants: one goroutine takes
// a free key and releases it. Under a ctx that can be cancelled the same must
// hold, since that is what every request handler has.
func uncontended(b *bench) error {
	cancellable, cancel := context.WithCancel(b.ctx)
	defer cancel()
	for _, place := range b.placements() {
		err := b.placed(place, func() error {
			if err := b.pairs(context.Background(), place, "background ctx"); err != nil {
				return err
			}
			return b.pairs(cancellable, place, "cancellable ctx")
		})
		if err != nil {
			return err
		}
	}
	acquire, release, err := b.scriptsEachWay()
	if err != nil {
		return err
	}
	b.out.bar(bar{what: "uncontended, scripts to acquire", got: acquire, want: 1})
	b.out.bar(bar{what: "uncontended, scripts to release", got: release, want: 1})
	return nil
}

// pairs measures every contestant's pair under ctx.
func (b *bench) pairs(ctx context.Context, place placement, variant string) error {
	all, err := b.openAll(enter("raw", "redislock", "redsync", "rueidislock", "rueidislock-1key", "perkey", "perkey-try"), 1)
	defer all.close()
	if err != nil {
		return err
	}
	entries := make([]entry, len(all))
	for i, c := range all {
		slots := newSlots(64, "uncontended")
		n := 0
		entries[i] = entry{c.name, func(context.Context, int) error {
			n++
			return pair(ctx, c, &slots[n%len(slots)])
		}}
	}
	results, err := b.measure(entries, sizes{workers: 1, turns: b.scale(20, 4), ops: b.scale(250, 100)})
	if err != nil {
		return err
	}
	b.out.table("uncontended acquire+release pair, 1 goroutine, "+place.name+", "+variant, "raw", results)
	if place.limit > 0 {
		what := "uncontended, " + place.name + ", " + variant
		perkey, raw := find(results, "perkey"), find(results, "raw")
		b.out.bar(bar{
			what: what + ", p50 × raw", got: perkey.ratio(raw, p50), want: place.limit,
			figure: fmt.Sprintf("%s, raw %s", brief(perkey.median(p50)), brief(raw.median(p50))),
		})
		// What is left over is the turn's own.
		b.out.bar(bar{what: what + ", allocations", got: math.Round(perkey.allocs), want: 22})
	}
	return nil
}

// scriptsEachWay counts perkey's scripts for one acquire and one release.
func (b *bench) scriptsEachWay() (acquire, release float64, err error) {
	all, err := b.openAll(enter("perkey"), 1)
	defer all.close()
	if err != nil {
		return 0, 0, err
	}
	slots := newSlots(100, "each-way")
	taken := make([]held, len(slots))
	// The first lease starts the subscription, whose checks are scripts: one or two, then one in 2.5 s.
	if err := pair(b.ctx, all[0], &slots[0]); err != nil {
		return 0, 0, err
	}
	if err := pause(b.ctx, 200*time.Millisecond); err != nil {
		return 0, 0, err
	}
	each := func(do func(i int) error) (float64, error) {
		before, err := b.server.calls(b.ctx)
		if err != nil {
			return 0, err
		}
		for i := range slots {
			if err := do(i); err != nil {
				return 0, fmt.Errorf("%q: %w", slots[i].key, err)
			}
		}
		after, err := b.server.calls(b.ctx)
		if err != nil {
			return 0, err
		}
		n := calls{}
		n.add(before, after)
		return n.per(len(slots)).scripts(), nil
	}
	acquire, err = each(func(i int) (err error) {
		taken[i], err = all[0].Acquire(b.ctx, slots[i].key)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	release, err = each(func(i int) error { return taken[i].Release(b.ctx) })
	return acquire, release, err
}
