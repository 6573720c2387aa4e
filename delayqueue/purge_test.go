package delayqueue_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
)

func TestPurge_APurgedDeadLetterIsForgotten(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		dead := b.bury(delayqueue.Job{ID: "id", Key: "k", Payload: []byte("secret")})[0]
		queued := b.enqueue(delayqueue.Job{Key: "k"})
		require.ErrorIs(t, b.queue.Purge(ctx, queued), delayqueue.ErrNotDead)
		require.NoError(t, b.queue.Purge(ctx, dead))
		require.ErrorIs(t, b.queue.Purge(ctx, dead), delayqueue.ErrNotFound)
		_, err := b.queue.Status(ctx, dead)
		require.ErrorIs(t, err, delayqueue.ErrNotFound)
		require.Equal(t, [3]int64{1, 0, 0}, b.inState())
		require.Equal(t, dead, b.enqueue(delayqueue.Job{ID: "id", Key: "k"}), "its id is free")
		var r ran
		b.work(r.handle, delayqueue.StateDone, queued, dead)
		require.Equal(t, []string{queued, dead}, r.ids())
	})
}

func TestPurgeAll_GoesThroughMoreThanAPage(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		pipe := b.rdb.Pipeline()
		now := time.Now().UnixMilli()
		for i := range 1300 { // of one time, as after an outage
			id := fmt.Sprint(i)
			pipe.ZAdd(ctx, b.key("x"), redisZ(float64(now-1000), id))
			pipe.HSet(ctx, b.key("m"), id, "")
			pipe.HSet(ctx, b.key("y"), id, fmt.Sprintf("x%011x------1 0 0 0 0 0 0 1 0 %d", now-1000, i%2))
		}
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
		n, err := b.queue.PurgeAll(ctx, delayqueue.Filter{Name: "1"})
		require.NoError(t, err)
		require.Equal(t, 650, n)
		require.Len(t, b.pages(delayqueue.StateDead, 100), 650)
		n, err = b.queue.PurgeAll(ctx, delayqueue.Filter{})
		require.NoError(t, err)
		require.Equal(t, 650, n)
		require.EqualValues(t, 1300, b.stats().Totals.Purged)
		require.Zero(t, b.inState())
	})
}

func TestCancelAll_FindsAKeyBehindMoreThanAPage(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		var enqueues sync.WaitGroup
		for i := range 1100 {
			enqueues.Go(func() {
				if _, err := b.queue.Enqueue(ctx, delayqueue.Job{Key: fmt.Sprint(i % 7)}); err != nil {
					t.Error(err)
				}
			})
		}
		enqueues.Wait()
		want := []string{b.enqueue(delayqueue.Job{Key: "k", MaxAge: time.Minute}), b.enqueue(delayqueue.Job{Key: "k", MaxAge: time.Hour})}
		n, err := b.queue.CancelAll(ctx, delayqueue.Filter{Key: "k"})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		for _, id := range want {
			require.Equal(t, delayqueue.StateCancelled, b.status(id).State)
		}
		require.EqualValues(t, 1100, b.stats().Queued)
		n, err = b.queue.CancelAll(ctx, delayqueue.Filter{})
		require.NoError(t, err)
		require.Equal(t, 1100, n)
		require.Zero(t, b.inState())
	})
}

func TestCancelAll_LeavesRunningMessagesAlone(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		started, block := make(chan struct{}), make(chan struct{})
		w := b.start(func(context.Context, delayqueue.Message) error {
			close(started)
			<-block
			return nil
		})
		running := b.enqueue(delayqueue.Job{Key: "k"})
		next(t, started)
		behind := b.enqueue(delayqueue.Job{Key: "k"})
		require.NoError(t, b.queue.Pause(ctx, time.Hour))
		other, keyless := b.enqueue(delayqueue.Job{Key: "l"}), b.enqueue(delayqueue.Job{Delay: time.Minute})

		n, err := b.queue.CancelAll(ctx, delayqueue.Filter{Key: "k"})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, delayqueue.StateCancelled, b.status(behind).State)
		require.Equal(t, delayqueue.StateQueued, b.status(other).State)
		n, err = b.queue.CancelAll(ctx, delayqueue.Filter{})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, delayqueue.StateCancelled, b.status(keyless).State)
		n, err = b.queue.CancelAll(ctx, delayqueue.Filter{})
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, delayqueue.StateRunning, b.status(running).State)
		close(block)
		b.reaches(running, delayqueue.StateDone)
		require.NoError(t, w.Stop(ctx))
	})
}
