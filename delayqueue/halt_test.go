package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// haltBench is a queue whose messages named "bad" die until they are mended.
type haltBench struct {
	*bench
	ran
	mended atomic.Bool
}

func halting(t *testing.T, env *redistest.Env, h delayqueue.Halt, opts ...delayqueue.Option) *haltBench {
	t.Helper()
	b := &haltBench{bench: setup(t, env, append([]delayqueue.Option{delayqueue.WithHaltOnDeath(h), delayqueue.WithMaxAttempts(1)}, opts...)...)}
	return b
}

func (b *haltBench) work() *delayqueue.Worker {
	return b.start(func(ctx context.Context, m delayqueue.Message) error {
		_ = b.handle(ctx, m)
		if m.Name == "bad" && !b.mended.Load() {
			return errors.New("no")
		}
		return nil
	})
}

func (b *haltBench) requireFresh(key string, runs bool) {
	b.t.Helper()
	redistest.Eventually(b.t, func() bool {
		err := b.other.Guard(core.RejectConflicts).Do(b.t.Context(), core.Call{Key: key}, func(context.Context) error { return nil })
		return (err == nil) == runs && (runs || errors.Is(err, core.ErrConflict))
	}, fmt.Sprint("a fresh call runs: ", runs))
}

func TestHaltOnDeath_ADeadLetterHaltsItsKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, end := range map[string]func(ctx context.Context, b *haltBench, id string) error{
			"redriven": func(ctx context.Context, b *haltBench, id string) error {
				b.mended.Store(true)
				return b.queue.Redrive(ctx, id, 0)
			},
			"purged": func(ctx context.Context, b *haltBench, id string) error { return b.queue.Purge(ctx, id) },
		} {
			own := *env
			own.Prefix += name
			b := halting(t, &own, delayqueue.HaltParked)
			bad := b.enqueue(delayqueue.Job{ID: "bad", Key: "k", Name: "bad"})
			var ids []string
			for i := range 3 {
				ids = append(ids, b.enqueue(delayqueue.Job{ID: fmt.Sprint(i), Key: "k"}))
			}
			b.work()
			b.reaches(bad, delayqueue.StateDead)
			ids = append(ids, b.enqueue(delayqueue.Job{ID: "3", Key: "k"})) // it comes later, and waits too
			b.reaches(b.enqueue(delayqueue.Job{ID: "free", Key: "l"}), delayqueue.StateDone)
			time.Sleep(100 * time.Millisecond)
			require.Equal(t, []string{"bad", "free"}, b.ids(), "others run")
			require.EqualValues(t, 1, b.stats().Halted)
			require.EqualValues(t, 4, b.stats().Queued)
			b.requireFresh("k", true)
			require.NoError(t, end(t.Context(), b, bad))
			for _, id := range ids {
				b.reaches(id, delayqueue.StateDone)
			}
			want := []string{"bad", "free", "bad", "0", "1", "2", "3"}
			if name == "purged" {
				want = append(want[:2], want[3:]...)
			}
			require.Equal(t, want, b.ids(), "a letter that is redriven goes before those that it halted")
			require.Zero(t, b.stats().Halted)
		}
	})
}

func TestHaltOnDeath_CanKeepFreshCallsOut(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := halting(t, env, delayqueue.HaltKey)
		b.work()
		for _, behind := range []bool{false, true} {
			b.mended.Store(false)
			bad := b.enqueue(delayqueue.Job{Key: "k", Name: "bad"})
			b.reaches(bad, delayqueue.StateDead)
			if behind {
				b.enqueue(delayqueue.Job{Key: "k"})
			}
			time.Sleep(50 * time.Millisecond)
			b.requireFresh("k", false)
			if behind {
				b.mended.Store(true)
				require.NoError(t, b.queue.Redrive(t.Context(), bad, 0))
			} else {
				require.NoError(t, b.queue.Purge(t.Context(), bad))
			}
			b.requireFresh("k", true)
		}
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "all is through")
	})
}

// A letter that goes while no worker is connected keeps fresh calls out until one starts, and not for a day.
func TestHaltOnDeath_EndsWithoutAWorker(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, end := range map[string]func(ctx context.Context, b *haltBench, bad string) error{
			"purged": func(ctx context.Context, b *haltBench, bad string) error { return b.queue.Purge(ctx, bad) },
			"all purged": func(ctx context.Context, b *haltBench, _ string) error {
				_, err := b.queue.PurgeAll(ctx, delayqueue.Filter{})
				return err
			},
			"redriven and cancelled": func(ctx context.Context, b *haltBench, bad string) error {
				return errors.Join(b.queue.Redrive(ctx, bad, 0), b.queue.Cancel(ctx, bad))
			},
			"redriven": func(ctx context.Context, b *haltBench, bad string) error {
				b.mended.Store(true)
				return b.queue.Redrive(ctx, bad, 0)
			},
			"purged before what is delayed": func(ctx context.Context, b *haltBench, bad string) error {
				b.enqueue(delayqueue.Job{Key: "k", Delay: time.Minute})
				return b.queue.Purge(ctx, bad)
			},
			"purged before others": func(ctx context.Context, b *haltBench, bad string) error {
				b.enqueue(delayqueue.Job{Key: "k"})
				return b.queue.Purge(ctx, bad)
			},
		} {
			own := *env
			own.Prefix += strings.ReplaceAll(name, " ", "-")
			b := halting(t, &own, delayqueue.HaltKey)
			w := b.work()
			bad := b.enqueue(delayqueue.Job{Key: "k", Name: "bad"})
			b.reaches(bad, delayqueue.StateDead)
			b.requireFresh("k", false)
			require.NoError(t, w.Stop(t.Context()))
			require.NoError(t, end(t.Context(), b, bad), name)
			time.Sleep(50 * time.Millisecond)
			b.requireFresh("k", false)
			b.work()
			b.requireFresh("k", true)
		}
	})
}

// What is halted expires as ever, and is cancelled; and the halt ends with the letter's retention.
func TestHaltOnDeath_WhatIsHaltedEndsAsEver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := halting(t, env, delayqueue.HaltParked, delayqueue.WithDeadRetention(3*time.Second))
		bad := b.enqueue(delayqueue.Job{Key: "k", Name: "bad"})
		old := b.enqueue(delayqueue.Job{Key: "k", MaxAge: 500 * time.Millisecond})
		cancelled := b.enqueue(delayqueue.Job{Key: "k"})
		last := b.enqueue(delayqueue.Job{Key: "k"})
		b.work()
		b.reaches(bad, delayqueue.StateDead)
		died := time.Now()
		require.NoError(t, b.queue.Cancel(t.Context(), cancelled))
		b.reaches(old, delayqueue.StateExpired)
		require.Equal(t, delayqueue.StateQueued, b.status(last).State)
		time.Sleep(time.Until(died.Add(3100 * time.Millisecond)))
		b.enqueue(delayqueue.Job{ID: "wakes-the-worker"})
		b.reaches(last, delayqueue.StateDone)
		require.Contains(t, b.ids(), last)
		require.Zero(t, b.stats().Halted)
	})
}

func TestHaltOnDeath_IsAnOption(t *testing.T) {
	env := redistest.Embedded(t)
	b := halting(t, env, delayqueue.HaltNothing)
	b.enqueue(delayqueue.Job{Key: "k", Name: "bad"})
	next := b.enqueue(delayqueue.Job{Key: "k"})
	b.work()
	b.reaches(next, delayqueue.StateDone)
	for _, h := range []delayqueue.Halt{-1, 3} {
		_, err := delayqueue.New(b.rdb, "q", delayqueue.WithHaltOnDeath(h))
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
}
