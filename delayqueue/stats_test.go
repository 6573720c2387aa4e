package delayqueue_test

import (
	"context"
	"errors"
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

func TestTotals_CountHowMessagesEnded(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		cancelled := b.enqueue(delayqueue.Job{Key: "c"})
		require.NoError(t, b.queue.Cancel(t.Context(), cancelled))
		expires := b.enqueue(delayqueue.Job{MaxAge: 20 * time.Millisecond, Delay: 19 * time.Millisecond})
		redistest.Eventually(t, func() bool {
			now, err := b.rdb.Time(t.Context()).Result()
			return err == nil && now.After(b.status(expires).ExpiresAt)
		}, "time does not pass")
		once := b.enqueue(delayqueue.Job{Key: "x"})
		dies := b.enqueue(delayqueue.Job{Key: "y", Name: "dies"})
		w := b.start(func(_ context.Context, m delayqueue.Message) error {
			switch {
			case m.Name == "dies":
				return delayqueue.SkipRetry(errors.New("no"))
			case m.Attempt == 1:
				return errors.New("once more")
			}
			return nil
		})
		b.reaches(once, delayqueue.StateDone)
		b.reaches(dies, delayqueue.StateDead)
		b.reaches(expires, delayqueue.StateExpired)
		require.NoError(t, w.Stop(t.Context()))
		want := delayqueue.Stats{Dead: 1, Partitions: 3, Totals: delayqueue.Totals{Enqueued: 4, Retried: 1, Done: 1, Expired: 1, Cancelled: 1, Died: 1}}
		is := b.stats()
		is.Bytes = 0 // bounds_test.go
		require.Equal(t, want, is)
	}, delayqueue.WithPartitions(3))
}
