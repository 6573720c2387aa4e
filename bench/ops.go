package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

// recorded is 64 goroutines with a key each, counted by a Recorder and not.
func recorded(b *bench) {
	const workers = 64
	all := table{
		pairs("perkey", acquire(b.openPerkey()), workers),
		pairs("perkey+Recorder", acquire(b.openPerkey(core.WithObserver(ops.NewRecorder().Locks(nil)))), workers),
	}
	b.compare("uncontended, 64 goroutines, distinct keys, counted by a Recorder", all, "perkey", size{workers, scale(b, 40, 4), 50},
		atLeast("perkey+Recorder", perSecond.over("perkey"), 0.98))
}

// listed is one goroutine with a key, on a Redis with a million keys of others, while somebody lists all keys
// and while nobody does.
func listed(b *bench) {
	const foreign = "foreign:"
	const fill = `for i = 1, 1000 do redis.call('SET', KEYS[1] .. i, '') end return 1`
	b.cleanup(func() error { return b.server.clear(foreign + "*") })
	for i := range scale(b, 1000, 200) {
		check(b.server.admin.Eval(b.ctx, fill, []string{fmt.Sprint(foreign, i, ":")}).Err())
	}
	l := b.openPerkey()

	var on atomic.Bool
	var lister errgroup.Group
	lister.Go(func() error { // lists all keys, again and again, while on
		page, err := &core.KeyPage{}, error(nil)
		for err == nil {
			if on.Load() {
				page, err = l.List(b.ctx, page.Next, 100)
			} else {
				err = pause(b.ctx, time.Millisecond)
			}
		}
		if b.ctx.Err() != nil {
			err = nil
		}
		return err
	})
	b.cleanup(lister.Wait)
	while := func(name string, listing bool) *row {
		r := pairs(name, acquire(l), 1)
		pair := r.op
		r.op = func(ctx context.Context, worker int) error {
			on.Store(listing)
			return pair(ctx, worker)
		}
		return r
	}
	all := table{while("alone", false), while("beside List", true)}
	b.compare("uncontended, beside a million keys of others, while List goes through them", all, "alone",
		size{1, scale(b, 20, 4), 1000}, atMost("beside List", p99.over("alone"), 1.3))
}

// line is one goroutine that looks at the first 100 of the 1,000 messages of a key, among 100,000.
func line(b *bench) {
	const key, deep = "deep", 1000
	n := scale(b, 100_000, 20_000)
	q := b.openQueue("perkey", "line", claimLease)
	check(b.fill(q, n, func(number int) string {
		if number%(n/deep) == 0 {
			return key
		}
		return fmt.Sprint("order:", number)
	}))
	all := table{{name: "Line", op: func(ctx context.Context, _ int) error {
		line, _, err := q.perkey.Line(ctx, key, "", 100)
		if err == nil && len(line) != 100 {
			err = fmt.Errorf("a page of %d", len(line))
		}
		return err
	}}}
	b.compare(fmt.Sprintf("100 of the %d messages of a key, among %d", deep, n), all, "Line", size{1, scale(b, 20, 4), 100},
		atMost("Line", p50, 2e6))
}
