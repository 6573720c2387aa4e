package delayqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// By the default bounds: what ended, with results of 60 KiB, refuses no job of 1,500 that run one after the other.
func TestHistory_ResultsOfAMinuteRefuseNothing(t *testing.T) {
	b := setup(t, redistest.Real(t))
	result := bytes.Repeat([]byte("x"), 60<<10)
	b.start(func(ctx context.Context, _ delayqueue.Message) error { return delayqueue.SetResult(ctx, result) }, delayqueue.WithConcurrency(8))
	for n := int64(1); n <= 5; n++ {
		ids := b.full(300, func(int) delayqueue.Job { return delayqueue.Job{} })
		redistest.Eventually(t, func() bool { return b.stats().Totals.Done == 300*n }, "all run")
		for _, id := range ids {
			require.Equal(t, delayqueue.StateDone, b.status(id).State)
		}
	}
	last := b.enqueue(delayqueue.Job{})
	b.reaches(last, delayqueue.StateDone)
	got, err := b.queue.Result(t.Context(), last)
	require.NoError(t, err)
	require.Equal(t, result, got)
	t.Logf("counted %d MiB, of Redis %d MiB", b.stats().Bytes>>20, b.memory()>>20)
	require.Zero(t, b.stats().Queued)
	require.LessOrEqual(t, b.memory(), int64(32<<20))
}

// By the default bounds: dead letters with payloads of 1 MiB refuse nothing, and leave what is open its whole room.
func TestHistory_LargeDeadLettersRefuseNothing(t *testing.T) {
	var warned watch
	b := setup(t, redistest.Real(t), delayqueue.WithMaxAttempts(1), delayqueue.WithQueueObserver(&warned))
	payload := make([]byte, 1<<20)
	w := b.start(func(context.Context, delayqueue.Message) error { return errors.New("no") }, delayqueue.WithConcurrency(4))
	var ids []string
	for n := int64(1); n <= 3; n++ { // there is room for 51 that are open at once
		ids = append(ids, b.full(20, func(i int) delayqueue.Job {
			return delayqueue.Job{Key: fmt.Sprint(i), Principal: fmt.Sprint("p", i), Payload: payload}
		})...)
		redistest.Eventually(t, func() bool { return b.stats().Totals.Died == 20*n }, "all are dead")
	}
	require.NoError(t, w.Stop(t.Context()))
	last := 0
	for _, id := range ids {
		require.Equal(t, delayqueue.StateDead, b.status(id).State)
		if _, err := b.queue.Payload(t.Context(), id); err == nil {
			last++
		}
	}
	t.Logf("%d are kept, counted %d MiB, of Redis %d MiB", last, b.stats().Bytes>>20, b.memory()>>20)
	require.GreaterOrEqual(t, last, 24)
	require.EqualValues(t, last, b.stats().Dead)
	redistest.Eventually(t, func() bool { return len(redistest.Keys(t, b.rdb, b.key("b:"))) == last }, "payloads go with them")
	require.Len(t, warned.warnings(), 1)
	require.Equal(t, delayqueue.WarnForgotten, warned.warnings()[0].Kind)
	b.full(50, func(i int) delayqueue.Job { return delayqueue.Job{Payload: payload} })
	require.EqualValues(t, 50, b.stats().Queued)
	require.LessOrEqual(t, b.memory(), int64(96<<20))
}

// full enqueues from many callers at once, and wants all stored.
func (b *bench) full(n int, job func(i int) delayqueue.Job) (ids []string) {
	b.t.Helper()
	ids = make([]string, n)
	var all sync.WaitGroup
	for c := range 8 {
		all.Go(func() {
			for i := c; i < n; i += 8 {
				ticket, err := b.queue.Enqueue(b.t.Context(), job(i))
				assert.NoError(b.t, err)
				ids[i] = ticket.ID
			}
		})
	}
	all.Wait()
	return ids
}

// More ids than there is room for: none is forgotten within a minute.
func TestQueueBounds_IdsGoAfterTheirMinute(t *testing.T) {
	b := setup(t, redistest.Real(t), bounded()...)
	b.start(func(context.Context, delayqueue.Message) error { return nil }, delayqueue.WithConcurrency(16))
	const n = 5000
	begun := time.Now()
	early := func() bool { return time.Since(begun) < 50*time.Second } // a busy machine may take longer than the minute
	kind := func(i int) delayqueue.Job {
		if i%2 == 0 {
			return delayqueue.Job{ID: fmt.Sprint("order-", i)}
		}
		return delayqueue.Job{}
	}
	ids := b.full(n, kind)
	redistest.Eventually(t, func() bool { return b.stats().Totals.Done == n }, "all run")
	for _, id := range ids {
		_, err := b.queue.Status(t.Context(), id)
		require.True(t, err == nil || !early(), err)
	}

	require.NoError(t, b.queue.PassEnded(61*time.Second))
	begun = time.Now()
	b.full(n, func(i int) delayqueue.Job { return delayqueue.Job{ID: fmt.Sprint("later-", i)} })
	redistest.Eventually(t, func() bool { return b.stats().Totals.Done == 2*n }, "all run")
	for _, id := range ids[:2] {
		_, err := b.queue.Status(t.Context(), id)
		require.ErrorIs(t, err, delayqueue.ErrNotFound, "they go when the minute is over")
	}
	for i := range n {
		_, err := b.queue.Status(t.Context(), fmt.Sprint("later-", i))
		require.True(t, err == nil || !early(), err)
	}
	require.LessOrEqual(t, b.stats().Bytes, int64(2<<20))
	require.LessOrEqual(t, b.memory(), int64(2<<20))
}
