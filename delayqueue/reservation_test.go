package delayqueue_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A reservation is for work that could run now: a key is kept for no message that has ended, that waits for its next attempt, or that may not run,
// also if the release that ends the reservation did not reach Redis.
func TestReservation_WhatCannotRunNowKeepsNoFreshCallOut(t *testing.T) {
	t.Parallel()
	fails := func(context.Context, delayqueue.Message) error { return errors.New("not now") }
	for name, c := range map[string]struct {
		opts     []delayqueue.Option
		beside   func(b *bench)
		released func(b *bench, id string) // the key was, and no worker has come yet
		handler  delayqueue.Handler
		becomes  delayqueue.Outcome
		cancel   bool // it, between two workers
		loses    bool // the release that ends the reservation
		waits    bool // for its next attempt: who is parked behind it keeps its place
	}{
		"a delayed job beside it": {beside: func(b *bench) { b.enqueue(delayqueue.Job{Key: "k", Delay: 10 * time.Minute}) }, becomes: delayqueue.OutcomeDone},
		"a paused queue":          {beside: func(b *bench) { require.NoError(b.t, b.queue.Pause(b.t.Context(), time.Minute)) }},
		"its worker died, for the last time": {
			opts: []delayqueue.Option{delayqueue.WithMaxAttempts(1)},
			released: func(b *bench, id string) {
				redistest.Eventually(b.t, func() bool {
					require.NoError(b.t, b.queue.ClaimAndDie(20*time.Millisecond))
					return b.status(id).Attempts > 0
				}, "it was not waked")
				time.Sleep(50 * time.Millisecond)
			},
		},
		"retried in days":               {handler: fails, becomes: delayqueue.OutcomeRetry, waits: true},
		"retried later":                 {handler: unavailable, becomes: delayqueue.OutcomeRetry, waits: true},
		"handed back":                   {handler: handsBack, becomes: delayqueue.OutcomeReturned, waits: true},
		"cancelled, and nobody listens": {handler: fails, becomes: delayqueue.OutcomeRetry, cancel: true},
		"done, not known at once":       {becomes: delayqueue.OutcomeDone, loses: true},
		"handed back, as well":          {handler: handsBack, becomes: delayqueue.OutcomeReturned, loses: true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				rdb, failed := b.env.Client(t), atomic.Int64{}
				failing(rdb, func(cmd redis.Cmder) bool { // as often as a release is tried for a caller that waits
					return c.loses && redistest.IsScript(cmd) && len(cmd.Args()) == releaseArgs && failed.Add(1) <= 4
				})
				b.locker = b.lockerOn(rdb)
				lease := b.hold("k")
				if c.beside != nil {
					c.beside(b)
				}
				id := b.parkCall("k")
				require.NoError(t, lease.Release(t.Context()))
				if c.released != nil {
					c.released(b, id)
				}
				seen := newEvents()
				handler := c.handler
				if handler == nil {
					handler = (&ran{}).handle
				}
				w := b.start(handler, delayqueue.WithRetryBackoff(40*time.Hour, 40*time.Hour), delayqueue.WithObserver(seen))
				if c.becomes != "" {
					redistest.Eventually(t, func() bool { return next(t, seen.settled).Outcome == c.becomes }, "it does not end so")
				}
				if c.cancel {
					require.NoError(t, w.Stop(t.Context())) // a deployment
					require.NoError(t, b.queue.Cancel(t.Context(), id))
					b.start((&ran{}).handle)
				}
				if c.released != nil {
					require.Contains(t, b.reaches(id, delayqueue.StateDead).Cause, "worker died")
				}
				if c.loses {
					redistest.Eventually(t, func() bool { return failed.Load() > 4 }, "it is not sent again")
				}
				b.isNotReserved("k")
				fresh := func() {
					redistest.Eventually(t, func() bool { return b.other.Do(t.Context(), "k", func(context.Context) error { return nil }) == nil }, "a fresh call runs")
				}
				for range 14 {
					fresh()
				}
				if c.waits {
					lease = b.hold("k")
					behind := b.parkCall("k")
					require.NoError(t, lease.Release(t.Context()))
					b.isNotReserved("k")
					fresh()
					require.Equal(t, delayqueue.StateQueued, b.status(behind).State)
					require.Zero(t, b.status(behind).Attempts+b.status(behind).Conflicts, "it keeps its place")
				}
			}, append(c.opts, delayqueue.WithMaxAge(90*24*time.Hour))...)
		})
	}
}

// The reservation of what was parked while a message of the queue runs must not run out before that message is over.
func TestReservation_AFreshCallDoesNotOvertakeWhatWasParkedDuringALongRun(t *testing.T) {
	const window = 1500 * time.Millisecond
	each(t, func(t *testing.T, b *bench) {
		started, release := make(chan struct{}), make(chan struct{})
		order := make(chan string, 3)
		b.start(func(_ context.Context, m delayqueue.Message) error {
			if m.Name == "long" {
				close(started)
				<-release
				return nil
			}
			order <- "parked"
			return nil
		})
		b.enqueue(delayqueue.Job{Key: "k", Name: "long"})
		next(t, started)
		b.parkCall("k")
		time.Sleep(window * 3 / 2)
		waitFresh(b, b.other, order)
		close(release)
		require.Equal(t, "parked", next(t, order))
		require.Equal(t, "fresh", next(t, order))
	}, delayqueue.WithReservationWindow(window))
}

// waitFresh has a fresh call wait for the key k.
func waitFresh(b *bench, locker *core.Locker, order chan<- string) {
	b.t.Helper()
	go func() {
		lease, err := locker.Acquire(context.Background(), "k")
		order <- "fresh"
		if err == nil {
			_ = lease.Release(context.Background())
		}
	}()
	redistest.Eventually(b.t, func() bool {
		info, err := b.other.Inspect(b.t.Context(), "k")
		return err == nil && info.Waiting > 0
	}, "the fresh call does not wait")
}

// Between two tries of a parked message its reservation must not run out, however long the key is held.
func TestReservation_AShortReservationWindowHoldsWhileAWorkerTries(t *testing.T) {
	const window = time.Second
	each(t, func(t *testing.T, b *bench) {
		order := make(chan string, 2)
		lease := b.hold("k")
		id := b.parkCall("k")
		w, err := delayqueue.NewWorker(b.queue, b.locker, func(context.Context, delayqueue.Message) error {
			order <- "parked"
			return nil
		}, delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		require.NoError(t, w.Start())
		defer func() { _ = w.Stop(context.Background()) }()
		redistest.Eventually(t, func() bool { return b.status(id).Conflicts >= 3 }, "it is not tried")
		time.Sleep(window * 3 / 2)
		waitFresh(b, b.newLocker(), order)
		require.NoError(t, lease.Release(t.Context()))
		require.Equal(t, "parked", next(t, order))
		require.Equal(t, "fresh", next(t, order))
	}, delayqueue.WithReservationWindow(window))
}

// releaseArgs is how many arguments a release has that ends its key's reservation: release.lua says which.
const releaseArgs = 3 + 1 + 10

// failing has some commands of a client fail unsent.
func failing(rdb *redis.Client, fails func(redis.Cmder) bool) {
	rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if fails(cmd) {
			cmd.SetErr(errors.New("i/o timeout"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}))
}

// letsNoFreshCallPass checks for a while that a fresh call does not get a key.
func (b *bench) letsNoFreshCallPass(key string) {
	b.t.Helper()
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		require.ErrorIs(b.t, errOf(b.other.TryAcquire(b.t.Context(), key)), core.ErrConflict, "a fresh call has the key before the parked one")
	}
}

// A worker that cannot reach the locks puts its message off. The key stays reserved meanwhile, also
// when the worker is told that it is free.
func TestReservation_AWorkerThatCannotLockLetsNoFreshCallPass(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		rdb := b.env.Client(t)
		var sick atomic.Bool
		sick.Store(true)
		failing(rdb, func(cmd redis.Cmder) bool { // acquire, which has a token; unreserve has '', and inspect a number
			if !sick.Load() || !redistest.IsScript(cmd) {
				return false
			}
			_, number := cmd.Args()[4].(int)
			return !number && cmd.Args()[4] != ""
		})
		b.locker = b.lockerOn(rdb)
		lease := b.hold("k")
		id := b.parkCall("k")
		seen := newEvents()
		w := b.start((&ran{}).handle, delayqueue.WithObserver(seen))
		require.Equal(t, delayqueue.OutcomeReturned, next(t, seen.settled).Outcome)
		require.NoError(t, lease.Release(t.Context()))
		for range 3 {
			w.Reconsider("k")
			require.ErrorIs(t, errOf(b.other.TryAcquire(t.Context(), "k")), core.ErrConflict, "a fresh call has the key before the parked one")
			require.Equal(t, delayqueue.OutcomeReturned, next(t, seen.settled).Outcome)
			require.ErrorIs(t, errOf(b.other.TryAcquire(t.Context(), "k")), core.ErrConflict, "a fresh call has the key before the parked one")
		}
		sick.Store(false)
		b.reaches(id, delayqueue.StateDone)
		b.isNotReserved("k")
	})
}

// Redis does not answer when a message is about to run alone, in a turn that another one of its key has begun.
func TestReservation_OutlivesATurnThatCannotGoOn(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		rdb := b.env.Client(t)
		var sick atomic.Bool
		sick.Store(true)
		failing(rdb, func(cmd redis.Cmder) bool { // it is to run alone
			return sick.Load() && isScript(cmd, "extend", b.env.Prefix+":queue:{q}") && cmd.Args()[6+cmd.Args()[2].(int)] == 1
		})
		b.queue = b.newQueue(rdb)
		lease := b.hold("k")
		first, second := b.parkCall("k"), b.parkCall("k")
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), second, "-------4 0 4 0  its worker died").Err())
		seen := newEvents()
		b.start((&ran{}).handle, delayqueue.WithObserver(seen))
		require.NoError(t, lease.Release(t.Context()))
		b.reaches(first, delayqueue.StateDone)
		redistest.Eventually(t, func() bool { return next(t, seen.settled).Message.ID == second }, "the turn is over")
		b.letsNoFreshCallPass("k")
		sick.Store(false)
		b.reaches(second, delayqueue.StateDone)
		b.isNotReserved("k")
	})
}

// A key is found to have no messages; then one comes, and a worker meets the held key:
// that has reserved it, and what was found before does not count any more.
func TestReservation_AReservationThatATryRefreshedIsNotEnded(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.hold("k")
		parked := b.parkCall("k")
		rdb := b.env.Client(t)
		var found, ended atomic.Bool
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			err := next(ctx, cmd)
			if !isScript(cmd, "wake", b.env.Prefix+":queue:{q}") || cmd.Args()[5+cmd.Args()[2].(int)] != 0 { // it only looks
				return err
			}
			if n, _ := cmd.(*redis.Cmd).Int64Slice(); len(n) == 1 && n[0] == 0 && found.CompareAndSwap(false, true) {
				defer ended.Store(true)
				id := b.enqueue(delayqueue.Job{Key: "k"})
				for range 500 {
					if s, err := b.queue.Status(context.Background(), id); err == nil && s.Conflicts > 0 {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
			return err
		}))
		b.startOn(b.newQueue(rdb), (&ran{}).handle, delayqueue.WithConflictBackoff(8*time.Second, 8*time.Second))
		redistest.Eventually(t, func() bool { return b.status(parked).Conflicts > 0 }, "it is not tried")
		redistest.Eventually(t, func() bool { return b.queue.Cancel(t.Context(), parked) == nil }, "it cannot be cancelled")
		redistest.Eventually(t, ended.Load, "nobody looks at the key")
		time.Sleep(300 * time.Millisecond)
		info := of(b.other.Inspect(t.Context(), "k"))(t)
		require.NotZero(t, info.Reserved, "a fresh call that waits has the key before the message")
	})
}

// A call that could not run now, even if its key were free, keeps no fresh call out: its reservation ends while the key is still held.
func TestReservation_NothingIsKeptForWhatCouldNotRun(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		lease := b.hold("k")
		require.NoError(t, b.queue.Pause(t.Context(), time.Hour))
		b.parkCall("k")
		b.isNotReserved("k")
		require.NoError(t, b.queue.Resume(t.Context()))
		b.parkCall("k")
		info := of(b.other.Inspect(t.Context(), "k"))(t)
		require.Positive(t, info.Reserved)
		require.NoError(t, lease.Release(t.Context()))
	})
}
