package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// observed is what it costs to be watched: by a Recorder, and by somebody who lists all keys; and how fast a key's queue is shown.
func observed(b *bench) {
	check(b.run("recorded", recorded))
	check(b.run("listed", listed))
	check(b.run("line", line))
}

// openPerkey opens it with options until the scenario ends.
func (b *bench) openPerkey(opts ...core.Option) perkeyLock {
	l := must(openPerkey(target{Addr: b.server.addr, Lease: leaseTime}, opts...))
	b.cleanup(func() { _ = l.Close() })
	return l
}

// recorded is 64 goroutines with a key each, counted by a Recorder and not.
func recorded(b *bench) {
	const workers, title = 64, "uncontended, 64 goroutines, distinct keys, counted by a Recorder"
	all := table{
		pairs("perkey", b.openPerkey(), workers),
		pairs("perkey+Recorder", b.openPerkey(core.WithObserver(ops.NewRecorder().Locks(nil))), workers),
	}
	b.measure(all, size{workers, scale(b, 40, 4), 50})
	all.printOps(title, "perkey")
	b.require(title, all, atLeast("perkey+Recorder", perSecond.over("perkey"), 0.98))
}

// listed is one goroutine with a key, on a Redis with a million keys of others, while somebody lists all keys
// and while nobody does.
func listed(b *bench) {
	const foreign, title = "foreign:", "uncontended, beside a million keys of others, while List goes through them"
	const fill = `for i = 1, 1000 do redis.call('SET', KEYS[1] .. i, '') end return 1`
	b.cleanup(func() { _ = b.server.clear(foreign + "*") })
	for i := range scale(b, 1000, 200) {
		check(b.server.admin.Eval(b.ctx, fill, []string{fmt.Sprint(foreign, i, ":")}).Err())
	}
	l := b.openPerkey()

	var on atomic.Bool
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(b.ctx)
	b.cleanup(cancel)
	go func() { // lists all keys, again and again, while on
		page, err := &core.KeyPage{}, error(nil)
		for err == nil {
			if !on.Load() {
				err = pause(ctx, time.Millisecond)
			} else if page, err = l.List(ctx, page.Next, 100); ctx.Err() != nil {
				err = ctx.Err()
			}
		}
		ended <- err
	}()
	while := func(name string, listing bool) *row {
		r := pairs(name, l, 1)
		pair := r.op
		r.op = func(ctx context.Context, worker int) error {
			on.Store(listing)
			return pair(ctx, worker)
		}
		return r
	}
	all := table{while("alone", false), while("beside List", true)}
	b.measure(all, size{1, scale(b, 20, 4), 1000})
	select {
	case err := <-ended:
		check(err)
	default:
	}
	all.printOps(title, "alone")
	b.require(title, all, atMost("beside List", p99.over("alone"), 1.3))
}

// line is one goroutine that looks at the first 100 of the 1,000 messages of a key, among 100,000.
func line(b *bench) {
	const lined, key, deep = "lined", "deep", 1000
	rdb := target{Addr: b.server.addr}.client()
	b.cleanup(func() { _ = rdb.Close() })
	b.cleanup(func() { _ = b.server.clear(lined + ":*") })
	q := must(delayqueue.New(rdb, "line", delayqueue.WithPrefix(lined), delayqueue.WithMaxDepth(1<<20), delayqueue.WithMaxBytes(1<<30)))
	n := scale(b, 100_000, 20_000)
	const producers = 64
	check(together(producers, func(p int) error {
		for i := p; i < n; i += producers {
			job := delayqueue.Job{Key: fmt.Sprint("order:", i)}
			if i%(n/deep) == 0 {
				job.Key = key
			}
			if _, err := q.Enqueue(b.ctx, job); err != nil {
				return err
			}
		}
		return nil
	}))
	all := table{{name: "Line", op: func(ctx context.Context, _ int) error {
		line, _, err := q.Line(ctx, key, "", 100)
		if err == nil && len(line) != 100 {
			err = fmt.Errorf("a page of %d", len(line))
		}
		return err
	}}}
	b.measure(all, size{1, scale(b, 20, 4), 100})
	title := fmt.Sprintf("100 of the %d messages of a key, among %d", deep, n)
	all.printOps(title, "Line")
	b.require(title, all, atMost("Line", p50, 2e6))
}
