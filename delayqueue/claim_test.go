package delayqueue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
)

func TestClaim_AHandlerMayTakeFarLongerThanItsClaim(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		for _, lease := range []time.Duration{600 * time.Millisecond, 5 * time.Second} {
			var runs atomic.Int64
			slow := func(ctx context.Context, _ delayqueue.Message) error {
				runs.Add(1)
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(5 * lease): // the promise is about time
					return nil
				}
			}
			keyed, keyless := b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{})
			var workers []*delayqueue.Worker
			for range 2 {
				workers = append(workers, b.start(slow, delayqueue.WithClaimLease(lease)))
			}
			time.Sleep(6 * lease)
			for _, id := range []string{keyed, keyless} {
				s := b.status(id)
				require.Equal(t, delayqueue.StateDone, s.State)
				require.Equal(t, []int{1, 0}, []int{s.Attempts, s.Losses})
			}
			require.EqualValues(t, 2, runs.Load())
			for _, w := range workers {
				require.NoError(t, w.Stop(t.Context()))
			}
		}
	})
}

func TestClaim_ALateResultIsRefused(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ev := newEvents()
		started, block := make(chan struct{}), make(chan struct{})
		b.start(func(context.Context, delayqueue.Message) error {
			close(started)
			<-block
			return delayqueue.SkipRetry(context.Canceled)
		}, delayqueue.WithObserver(ev), delayqueue.WithClaimLease(20*time.Minute), delayqueue.WithConcurrency(1))
		id := b.enqueue(delayqueue.Job{})
		next(t, started)

		// The claim ends, and another worker runs the message.
		require.NoError(t, b.rdb.ZAdd(t.Context(), b.key("w"), redisZ(0, id+" ")).Err())
		var r ran
		b.start(r.handle)
		s := b.reaches(id, delayqueue.StateDone)
		require.Equal(t, []int{2, 1}, []int{s.Attempts, s.Losses})
		require.Equal(t, 2, r.all()[0].Attempt)
		require.Equal(t, 1, r.all()[0].Losses)

		close(block)
		e := next(t, ev.settled)
		require.Equal(t, delayqueue.OutcomeLate, e.Outcome)
		require.ErrorIs(t, e.Err, delayqueue.ErrClaimLost)
		require.Equal(t, s, b.status(id), "the late result changed nothing")
	})
}

func TestClaim_AHandlerIsToldThatItsClaimWasLost(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		started, cause := make(chan struct{}), make(chan error, 1)
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Attempt == 1 {
				close(started)
				<-ctx.Done()
				cause <- context.Cause(ctx)
			}
			return nil
		}, delayqueue.WithClaimLease(3*time.Second))
		id := b.enqueue(delayqueue.Job{Key: "k"})
		next(t, started)
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), id, "r------1 0 0 0 another ").Err())
		require.ErrorIs(t, next(t, cause), delayqueue.ErrClaimLost)
	})
}

func TestClaim_AWorkerClaimsNoMoreThanItHasSlots(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		started, block := make(chan string, 10), make(chan struct{})
		defer close(block)
		for range 10 {
			b.enqueue(delayqueue.Job{})
		}
		b.start(func(_ context.Context, m delayqueue.Message) error {
			started <- m.ID
			<-block
			return nil
		}, delayqueue.WithConcurrency(3))
		for range 3 {
			next(t, started)
		}
		require.Equal(t, [3]int64{7, 3, 0}, b.inState())
		block <- struct{}{}
		next(t, started)
	})
}

func TestClaim_AnAttemptThatKillsItsWorkerIsNotRepeatedForEver(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		id := b.enqueue(delayqueue.Job{Key: "k"})
		after := b.enqueue(delayqueue.Job{Key: "k"})
		var r ran
		// Two claims by workers that said nothing more; the second had nothing else.
		require.NoError(t, b.rdb.ZRem(t.Context(), b.key("z"), id+" k").Err())
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), id, "ralone!2 0 1 0 dead ").Err())
		require.NoError(t, b.rdb.ZAdd(t.Context(), b.key("w"), redisZ(1, id+" k")).Err())
		b.start(r.handle)
		b.reaches(after, delayqueue.StateDone)
		s := b.status(id)
		require.Equal(t, delayqueue.StateDead, s.State)
		require.Equal(t, []int{2, 2}, []int{s.Attempts, s.Losses})
		require.Contains(t, s.Cause, "worker died")
		require.Equal(t, []string{after}, r.ids())
	}, delayqueue.WithMaxAttempts(2))
}
