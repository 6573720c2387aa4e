package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

// observed is what it costs to be watched: by a Recorder, and by somebody who lists all keys.
func observed(b *bench) error {
	return errors.Join(recorded(b), listed(b))
}

// recorded is 64 goroutines with a key each, counted by a Recorder and not.
func recorded(b *bench) error {
	const workers = 64
	var all field
	defer func() { all.close() }()
	var entries []entry
	for _, watched := range []struct {
		name string
		opts []core.Option
	}{
		{"perkey", nil},
		{"perkey+Recorder", []core.Option{core.WithObserver(ops.NewRecorder().Locks(nil))}},
	} {
		rdb := target{addr: b.server.addr}.client()
		l, err := core.New(rdb, watched.opts...)
		if err != nil {
			return errors.Join(err, rdb.Close())
		}
		c := ownClient{perkey{l}, rdb}
		all = append(all, named{c, watched.name})
		slots := newSlots(workers, "recorded")
		entries = append(entries, entry{watched.name, func(ctx context.Context, worker int) error { return pair(ctx, c, &slots[worker]) }})
	}
	results, err := b.measure(entries, sizes{workers: workers, turns: b.scale(40, 4), ops: 50})
	if err != nil {
		return err
	}
	b.out.table("uncontended, 64 goroutines, distinct keys, counted by a Recorder", "perkey", results)
	b.out.bar(bar{
		what: "with a Recorder, 64 goroutines, throughput × without",
		got:  find(results, "perkey+Recorder").ratio(find(results, "perkey"), perSecond), want: 0.98, atLeast: true,
	})
	return nil
}

// listed is one goroutine with a key, on a Redis with a million keys of others, while somebody lists all keys
// and while nobody does.
func listed(b *bench) error {
	const foreign = "foreign:"
	const fill = `for i = 1, 1000 do redis.call('SET', KEYS[1] .. i, '') end return 1`
	for i := range b.scale(1_000_000, 200_000) / 1000 {
		if err := b.server.admin.Eval(b.ctx, fill, []string{fmt.Sprint(foreign, i, ":")}).Err(); err != nil {
			return fmt.Errorf("fill Redis: %w", err)
		}
	}
	defer func() { _ = b.server.clear(b.ctx, foreign+"*") }()
	rdb := target{addr: b.server.addr}.client()
	l, err := core.New(rdb)
	if err != nil {
		return errors.Join(err, rdb.Close())
	}
	c := ownClient{perkey{l}, rdb}
	defer func() { _ = c.Close() }()

	var on atomic.Bool
	var sweeper sync.WaitGroup
	var failed error
	ctx, cancel := context.WithCancel(b.ctx)
	sweeper.Go(func() {
		for cursor := ""; ctx.Err() == nil; {
			if !on.Load() {
				_ = pause(ctx, time.Millisecond)
				continue
			}
			page, err := l.List(ctx, cursor, 100)
			if err != nil {
				if ctx.Err() == nil {
					failed = err
				}
				return
			}
			cursor = page.Next
		}
	})
	slots := newSlots(1, "listed")
	var entries []entry
	for name, listing := range map[string]bool{"alone": false, "beside List": true} {
		entries = append(entries, entry{name, func(ctx context.Context, _ int) error {
			on.Store(listing)
			return pair(ctx, c, &slots[0])
		}})
	}
	results, err := b.measure(entries, sizes{workers: 1, turns: b.scale(20, 4), ops: 1000})
	cancel()
	sweeper.Wait()
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	b.out.table("uncontended, beside a million keys of others, while List goes through them", "alone", results)
	b.out.bar(bar{what: "beside List, p99 × alone", got: find(results, "beside List").ratio(find(results, "alone"), p99), want: 1.3})
	return nil
}
