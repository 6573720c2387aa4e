package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/throttle"
)

const (
	// overloadRate is how many commands the server runs in a second; one that a script calls is one too.
	overloadRate = 10_000
	// timeout is how long a caller waits for its key.
	timeout = 400 * time.Millisecond
)

var (
	goodput = figure{name: "granted in time/s", more: true}
	ofPeak  = figure{name: "of its peak", digits: 2, more: true}
	taken   = figure{name: "of grants taken", digits: 2, more: true}
	after   = figure{name: "granted after 2 s of rest", digits: 2, more: true}
)

// overloaded is a lock on a server that can do no more than overloadRate.
type overloaded struct {
	core.NopObserver
	name     string
	slow     *throttle.Server
	lock     lock
	commands float64      // of a call
	keys     atomic.Int64 // asked for so far
	wasted   atomic.Int64 // grants that came too late, of perkey alone
}

func (o *overloaded) OnUnclaimed(context.Context, core.Unclaimed) { o.wasted.Add(1) }

// overload is what becomes of calls with deadlines, each for a key of its own, when there are 1, 2 and 4 times as many as Redis can
// serve of perkey's. A plain SET NX with its caller's ctx, which leaves its key behind if that ends, stands beside.
func overload(b *bench) {
	plain, perkey := b.throttled("SET NX", func(_ *overloaded, rdb *redis.Client) lock {
		return func(ctx context.Context, key string) (lease, error) {
			_, err := rdb.SetArgs(ctx, key, key, redis.SetArgs{Mode: "NX", TTL: leaseTime}).Result()
			return releaseFunc(func(ctx context.Context) error {
				return releaseScript.EvalSha(ctx, rdb, []string{key}, key).Err()
			}), err
		}
	}), b.throttled("perkey", func(o *overloaded, rdb *redis.Client) lock {
		return acquire(b.locker(rdb, leaseTime, core.WithObserver(o)))
	})
	check(releaseScript.Load(b.ctx, b.server.admin).Err())
	for _, o := range []*overloaded{plain, perkey} {
		o.measure(b)
	}
	type turn struct {
		*overloaded
		calls float64 // a second
	}
	capacity := overloadRate / perkey.commands
	all, turns := table{}, map[*row]turn{}
	for _, load := range []float64{1, 2, 4} {
		for _, o := range []*overloaded{plain, perkey} {
			r := &row{name: fmt.Sprintf("%s, load %g", o.name, load)}
			all, turns[r] = append(all, r), turn{o, load * capacity}
		}
	}
	d := scale(b, 10*time.Second, 3*time.Second)
	b.inRounds(all, 1, func(r *row, _ int, s *sample) {
		o, before := turns[r], turns[r].wasted.Load()
		done := o.offer(b.ctx, o.calls, d)
		late := o.wasted.Load() - before
		s.ops, s.elapsed = int(done), d
		s.also = values{goodput: float64(done) / d.Seconds(), taken: float64(done) / float64(done+late)}
		check(pause(b.ctx, 2*time.Second))
		s.also[after] = float64(o.offer(b.ctx, capacity/2, time.Second)) / (capacity / 2)
	})
	for r, t := range turns {
		peak := 0.0
		for other, o := range turns {
			if o.overloaded == t.overloaded {
				peak = max(peak, all.value(other, goodput))
			}
		}
		for _, round := range r.rounds {
			round[ofPeak] = round[goodput] / peak
		}
	}
	b.report(fmt.Sprintf("overload: a server of %d commands/s, deadlines of %v", overloadRate, timeout), all,
		[]figure{goodput, ofPeak, taken, after}, atLeast("perkey, load 4", ofPeak, 0.8), atLeast("perkey, load 4", taken, 0.7),
		atLeast("perkey, load 4", goodput.over("SET NX, load 4"), 1), atLeast("perkey, load 4", after, 0.99))
}

func (b *bench) throttled(name string, open func(*overloaded, *redis.Client) lock) *overloaded {
	o := &overloaded{name: name, slow: &throttle.Server{}}
	opt := redis.Options{Addr: b.server.addr}
	opt.Dialer = o.slow.Dialer(redis.NewDialer(&opt))
	rdb := redis.NewClient(&opt)
	b.cleanup(rdb.Close)
	o.lock = open(o, rdb)
	return o
}

// measure counts the commands of a call, and has the server take their time from now on: an acquire is one request, and a release is.
func (o *overloaded) measure(b *bench) {
	const ops = 1000
	var s sample
	check(o.call(b.ctx))
	s.watch(b, func() {
		for range ops {
			check(o.call(b.ctx))
		}
	})
	n := s.used[commands] / ops
	o.commands = n
	o.slow.Takes(time.Duration(n / 2 / overloadRate * float64(time.Second)))
	fmt.Printf("%s: %.3g commands a call\n", o.name, n)
}

// call reports whether it had its key in time.
func (o *overloaded) call(ctx context.Context) error {
	held, err := o.lock(ctx, fmt.Sprintf("overload:%s:%d", o.name, o.keys.Add(1)))
	if err != nil {
		return err
	}
	err = ctx.Err()
	return errors.Join(err, held.Release(context.WithoutCancel(ctx)))
}

// offer makes so many calls a second, and returns how many of them had their keys in time.
func (o *overloaded) offer(ctx context.Context, rate float64, d time.Duration) int64 {
	var done atomic.Int64
	var calls sync.WaitGroup
	began, n := time.Now(), 0
	for time.Since(began) < d {
		for due := int(rate * time.Since(began).Seconds()); n < due; n++ {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				if o.call(ctx) == nil {
					done.Add(1)
				}
			})
		}
		time.Sleep(time.Millisecond)
	}
	calls.Wait()
	return done.Load()
}
