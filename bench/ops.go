package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// observed is what it costs to be watched: by a Recorder, and by somebody who lists all keys; and how fast a key's line is shown.
func observed(b *bench) error {
	return errors.Join(recorded(b), listed(b), lined(b))
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

// lined is one goroutine that looks at the first 100 of the 1,000 messages of a key, among 100,000.
func lined(b *bench) error {
	const prefix, key, deep = "lined", "deep", 1000
	rdb := target{addr: b.server.addr}.client()
	defer func() { _ = rdb.Close() }()
	defer func() { _ = b.server.clear(b.ctx, prefix+":*") }()
	q, err := delayqueue.New(rdb, "line", delayqueue.WithPrefix(prefix), delayqueue.WithMaxBytes(1<<30))
	if err != nil {
		return err
	}
	n := b.scale(100_000, 20_000)
	var producers sync.WaitGroup
	errs := make([]error, 64)
	for p := range errs {
		producers.Go(func() {
			for i := p; i < n && errs[p] == nil; i += len(errs) {
				job := delayqueue.Job{Key: fmt.Sprint("order:", i)}
				if i%(n/deep) == 0 {
					job.Key = key
				}
				_, errs[p] = q.Enqueue(b.ctx, job)
			}
		})
	}
	producers.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	results, err := b.measure([]entry{{"Line", func(ctx context.Context, _ int) error {
		line, _, err := q.Line(ctx, key, "", 100)
		if err == nil && len(line) != 100 {
			err = fmt.Errorf("a page of %d", len(line))
		}
		return err
	}}}, sizes{workers: 1, turns: b.scale(20, 4), ops: 100})
	if err != nil {
		return err
	}
	title := fmt.Sprintf("100 of the %d messages of a key, among %d", deep, n)
	b.out.table(title, "Line", results)
	b.out.bar(bar{what: title + ", p50 in ms", got: find(results, "Line").median(p50) / 1e6, want: 2})
	return nil
}
