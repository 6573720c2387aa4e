package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// wake is the time from the start of a release to the start of the handler of the
// one call that was parked because the key was held. The holder and the worker
// share a process, and nothing else: each has a locker and a client of its own.
func wake(b *bench) {
	const name = "bench-wake"
	worker := b.openQueue("perkey", name, claimLease)
	requests := b.openQueue("perkey", name, claimLease).(*perkeyQueue)
	started := make(chan time.Time, 1)
	stop := must(worker.Work(func(int) { started <- time.Now() }))
	b.cleanup(func() { _ = stop() })
	guard := requests.locker.Guard(delayqueue.Policy(requests.queue))
	call := core.Call{Key: "wake", Encode: func() ([]byte, error) { return queued{}.payload(), nil }}
	s := sample{ops: scale(b, 500, 50)}
	for range s.ops {
		lease := must(requests.locker.Acquire(b.ctx, call.Key))
		err := guard.Do(b.ctx, call, func(context.Context) error { return errors.New("ran under a held key") })
		if !errors.Is(err, core.ErrDeferred) {
			check(fmt.Errorf("the call was not parked: %w", err))
		}
		// The worker has met the held key by then.
		time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
		released := time.Now()
		check(lease.Release(b.ctx))
		select {
		case at := <-started:
			s.took = append(s.took, at.Sub(released))
		case <-time.After(10 * time.Second):
			check(errors.New("hangs: the parked call did not start within 10s of the release"))
		case <-b.ctx.Done():
			check(b.ctx.Err())
		}
	}
	perkey := &result{name: "perkey", rounds: []map[figure]float64{s.figures()}}
	const title = "queue, release to the start of the parked call"
	results{perkey}.print(fmt.Sprintf("%s, %d times", title, s.ops), col("p50", p50, brief), col("p99", p99, brief), col("max", most, brief))
	b.atMost(title+", p99 in ms", perkey.median(p99)/1e6, 20)
}
