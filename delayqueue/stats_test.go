package delayqueue_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestStats_CountAndTellHowLateTheWorkersAre(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		require.Equal(t, delayqueue.Stats{Partitions: b.stats().Partitions}, b.stats())
		first := b.enqueue(delayqueue.Job{Key: "a"})
		b.enqueue(delayqueue.Job{Key: "a"})
		b.enqueue(delayqueue.Job{Key: "b"})
		b.enqueue(delayqueue.Job{})
		b.enqueue(delayqueue.Job{Delay: time.Minute})
		redistest.Eventually(t, func() bool { return b.stats().Lateness >= 30*time.Millisecond }, "time does not pass")
		s := b.stats()
		require.EqualValues(t, 5, s.Queued)
		require.EqualValues(t, 3, s.Due, "of each key the first")
		require.Equal(t, b.status(first).EnqueuedAt, s.OldestDue)
		require.Less(t, s.Lateness, time.Minute)
		require.Equal(t, delayqueue.Totals{Enqueued: 5}, s.Totals)
	})
}

func TestWorker_LocalTellsOfTheWorker(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		goOn := make(chan struct{})
		w, err := delayqueue.NewWorker(b.queue, b.locker, func(context.Context, delayqueue.Message) error {
			<-goOn
			return nil
		}, delayqueue.WithConcurrency(2))
		require.NoError(t, err)
		require.Equal(t, delayqueue.Local{Queue: b.queue.Name(), Service: "shop", Partitions: 3, Slots: 2, Stopped: true}, w.Local(), "it was not started")
		for range 3 {
			b.enqueue(delayqueue.Job{})
		}
		start := time.Now()
		require.NoError(t, w.Start())
		redistest.Eventually(t, func() bool { return w.Local().Running == 2 }, "both slots run")
		l := w.Local()
		require.False(t, l.Stopped)
		require.False(t, l.LastClaim.Before(start.Truncate(0)))
		redistest.Eventually(t, func() bool { return w.Local().LastClaim.After(l.LastClaim) }, "a busy worker asks too")
		w.Pause()
		require.True(t, w.Local().Paused)
		close(goOn)
		require.NoError(t, w.Stop(t.Context()))
		require.True(t, w.Local().Stopped)
		require.Zero(t, w.Local().Running)
	}, delayqueue.WithService("shop"), delayqueue.WithPartitions(3))
}

func TestStats_TellForHowLongNobodyHasClaimed(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.enqueue(delayqueue.Job{Delay: time.Minute})
		require.Zero(t, b.stats().SinceLastClaim, "nothing is due")
		b.enqueue(delayqueue.Job{})
		redistest.Eventually(t, func() bool { return b.stats().SinceLastClaim >= 100*time.Millisecond }, "since the queue was new")
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("c"), "claimed", time.Now().Add(-time.Hour).UnixMilli()).Err())
		require.InDelta(t, time.Hour, b.stats().SinceLastClaim, float64(time.Minute))
		goOn := make(chan struct{})
		w := b.start(func(context.Context, delayqueue.Message) error { <-goOn; return nil }, delayqueue.WithConcurrency(1))
		b.enqueue(delayqueue.Job{})
		redistest.Eventually(t, func() bool { s := b.stats(); return s.Due > 0 && s.SinceLastClaim < time.Minute }, "somebody has")
		close(goOn)
		require.NoError(t, w.Stop(t.Context()))
	})
}
