package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"text/tabwriter"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// wake is the time from the start of a release to the start of the handler of the
// one call that was parked because the key was held. The holder and the worker
// share a process, and nothing else: each has a locker and a client of its own.
func wake(b *bench) error {
	n := b.scale(500, 50)
	t := target{addr: b.server.addr, lease: claimLease}
	parked, err := openPerkeyQueue(t, "bench-wake")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(b.server.clear(b.ctx, parked.Keys()), parked.Close()) }()
	if err := b.server.clear(b.ctx, parked.Keys()); err != nil {
		return err
	}
	requests, err := openPerkeyQueue(t, "bench-wake")
	if err != nil {
		return err
	}
	defer func() { _ = requests.Close() }()
	started := make(chan time.Time, 1)
	stop, err := parked.Work(func(int) { started <- time.Now() })
	if err != nil {
		return err
	}
	guard := requests.locker.Guard(delayqueue.Policy(requests.queue))
	var took []time.Duration
	for len(took) < n && err == nil {
		var d time.Duration
		if d, err = parkAndRelease(b.ctx, requests.locker, guard, started); err == nil {
			took = append(took, d)
		}
	}
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	var l delays
	l.add(took)
	const title = "queue, release to the start of the parked call"
	_, _ = fmt.Fprintf(b.out.w, "\n%s, %d times\n", title, n)
	w := tabwriter.NewWriter(b.out.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(w, "\tp50\tp99\tmax\t\nperkey\t%s\t%s\t%s\t\n",
		brief(l.result.median(p50)), brief(l.result.median(p99)), brief(float64(l.most)))
	b.out.bar(bar{what: title + ", p99 in ms", got: l.result.median(p99) / 1e6, want: 20})
	return w.Flush()
}

func parkAndRelease(ctx context.Context, locker *core.Locker, guard *core.Guard, started <-chan time.Time) (time.Duration, error) {
	lease, err := locker.Acquire(ctx, "wake")
	if err != nil {
		return 0, err
	}
	call := core.Call{Key: "wake", Encode: func() ([]byte, error) { return message{}.payload(), nil }}
	err = guard.Do(ctx, call, func(context.Context) error { return errors.New("ran under a held key") })
	if !errors.Is(err, core.ErrDeferred) {
		return 0, fmt.Errorf("the call was not parked: %w", err)
	}
	// The worker has met the held key by then.
	time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
	released := time.Now()
	if err := lease.Release(ctx); err != nil {
		return 0, err
	}
	select {
	case at := <-started:
		return at.Sub(released), nil
	case <-time.After(10 * time.Second):
		return 0, errors.New("hangs: the parked call did not start within 10s of the release")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
