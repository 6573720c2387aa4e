package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Dead letters with large payloads refuse nothing, and leave what is open its whole room.
func TestHistory_LargeDeadLettersRefuseNothing(t *testing.T) {
	var warned watch
	b := setup(t, redistest.Real(t), delayqueue.WithMaxAttempts(1), delayqueue.WithMaxBytes(16<<20), delayqueue.WithQueueObserver(&warned))
	payload := make([]byte, 256<<10)
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
	require.LessOrEqual(t, b.memory(), int64(24<<20))
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
