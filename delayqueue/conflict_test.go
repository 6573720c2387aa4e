package delayqueue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestConflict_AHeldKeySpendsNoAttemptAndNoPlace(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		lease := b.hold("k")
		first, second := b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{Key: "k"})
		var r ran
		b.start(r.handle, delayqueue.WithConcurrency(1))
		redistest.Eventually(t, func() bool { return b.status(first).Conflicts >= 20 }, "the message does not try")
		require.Zero(t, b.status(second).Conflicts, "only the head of a line tries")
		others := []string{}
		for _, key := range []string{"other", "", "other", ""} { // it keeps no slot meanwhile
			others = append(others, b.enqueue(delayqueue.Job{Key: key}))
			b.reaches(others[len(others)-1], delayqueue.StateDone)
		}

		require.NoError(t, lease.Release(t.Context()))
		b.reaches(second, delayqueue.StateDone)
		require.Equal(t, append(others, first, second), r.ids())
		s := b.status(first)
		require.Equal(t, []int{1, 0}, []int{s.Attempts, s.Losses})
		require.Equal(t, s.Conflicts, r.all()[len(others)].Conflicts)
	}, delayqueue.WithMaxAttempts(1))
}

func TestConflict_TheReleaseOfAKeyWakesItsHead(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ev := newEvents()
		var r ran
		// Nothing but the wake-up runs these messages during the test.
		b.start(r.handle, delayqueue.WithConflictBackoff(time.Hour, time.Hour), delayqueue.WithObserver(ev))
		for i := range 5 {
			lease := b.hold("k")
			id := b.enqueue(delayqueue.Job{Key: "k"})
			e := next(t, ev.settled)
			require.Equal(t, delayqueue.OutcomeConflict, e.Outcome)
			require.Greater(t, e.Delay, 30*time.Minute)
			require.NoError(t, lease.Release(t.Context()))
			// The first subscription makes the worker ask once more.
			for e = next(t, ev.settled); e.Outcome == delayqueue.OutcomeConflict; {
				e = next(t, ev.settled)
			}
			require.Equal(t, delayqueue.OutcomeDone, e.Outcome)
			require.Len(t, r.ids(), i+1)
			require.Equal(t, id, r.ids()[i])
		}
	})
}

func TestConflict_AConflictInsideAHandlerSpendsNoAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		lease := b.hold("other")
		var runs atomic.Int64
		guard := b.locker.Guard(core.RejectConflicts)
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			runs.Add(1)
			// Its own key it has already; the other one is held.
			return guard.Do(ctx, core.Call{Key: m.Key}, func(ctx context.Context) error {
				return guard.Do(ctx, core.Call{Key: "other"}, func(context.Context) error { return nil })
			})
		})
		id := b.enqueue(delayqueue.Job{Key: "k"})
		redistest.Eventually(t, func() bool { return runs.Load() >= 3 }, "the handler is not tried again")
		require.NoError(t, lease.Release(t.Context()))
		s := b.reaches(id, delayqueue.StateDone)
		require.Equal(t, 1, s.Attempts)
		require.GreaterOrEqual(t, s.Conflicts, 2)
	}, delayqueue.WithMaxAttempts(1))
}

// For a Redis of locks that is away: TestTwoRedises_TheLocksIsAway.
func TestConflict_AClosedLockerSpendsNoAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		require.NoError(t, b.locker.Close())
		id := b.enqueue(delayqueue.Job{Key: "k"})
		ev := newEvents()
		var r ran
		w := b.start(r.handle, delayqueue.WithObserver(ev))
		e := next(t, ev.settled)
		require.Equal(t, delayqueue.OutcomeReturned, e.Outcome)
		require.ErrorIs(t, e.Err, core.ErrClosed)
		require.NoError(t, w.Stop(t.Context()))
		require.Empty(t, r.ids())
		s := b.status(id)
		require.Equal(t, delayqueue.StateQueued, s.State)
		require.Equal(t, []int{0, 0, 0}, []int{s.Attempts, s.Conflicts, s.Losses})
	}, delayqueue.WithMaxAttempts(1))
}
