package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// process KEY [QUEUE]: another process, with a beacon, holds a key, and works a queue.
func tellingProcess(ts *testscript.TestScript, _ bool, args []string) {
	b := of(ts)
	recorder := ops.NewRecorder()
	locker, err := core.New(b.rdb, core.WithPrefix(b.prefix), core.WithObserver(recorder.Locks(nil)))
	ts.Check(err)
	b.lockers = append(b.lockers, locker)
	key := unquote(ts, args[0])
	_, err = locker.TryAcquire(context.Background(), key, core.Named("pay", "req-17"))
	ts.Check(err)
	_, err = locker.TryAcquire(context.Background(), key, core.Named("refund", "req-18"))
	if err == nil {
		ts.Fatalf("%q is not held", key)
	}
	opts := []ops.BeaconOption{ops.WithInterval(100 * time.Millisecond), ops.WithService("example.com/shop")}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancels = append(b.cancels, cancel)
	if len(args) > 1 {
		w, err := delayqueue.NewWorker(b.queue(ts, args[1]), locker, func(context.Context, delayqueue.Message) error { return nil },
			delayqueue.WithLogger(slog.New(slog.DiscardHandler)), delayqueue.WithConcurrency(3))
		ts.Check(err)
		ts.Check(w.Start())
		opts = append(opts, ops.WithWorkers(w))
		b.calls.Go(func() {
			<-ctx.Done()
			_ = w.Stop(context.Background())
		})
	}
	beacon, err := ops.StartBeacon(b.rdb, recorder, locker, opts...)
	ts.Check(err)
	b.calls.Go(func() {
		<-ctx.Done()
		_ = beacon.Close()
	})
	for { // until it has told
		f, err := ops.ReadFleet(ctx, b.rdb, b.prefix)
		ts.Check(err)
		for _, p := range f.Processes {
			if p.ID == locker.ID() && (len(args) == 1 || !p.Workers[0].LastClaim.IsZero()) {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// busy KEY: the latest process takes and releases a key, over and over.
func busy(ts *testscript.TestScript, _ bool, args []string) {
	b := of(ts)
	locker := b.lockers[len(b.lockers)-1]
	ctx, cancel := context.WithCancel(context.Background())
	b.cancels = append(b.cancels, cancel)
	b.calls.Go(func() {
		for ctx.Err() == nil {
			_ = locker.Do(ctx, args[0], func(context.Context) error { return nil }, core.Named("pay", "req-19"))
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
}
