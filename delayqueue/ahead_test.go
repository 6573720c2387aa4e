package delayqueue_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestClaimsAhead_NoMoreHandlersRunThanTheConcurrency(t *testing.T) {
	const concurrency, messages = 4, 2000
	b := setup(t, redistest.Real(t), delayqueue.WithMaxDepthPerKey(messages))
	var enqueued sync.WaitGroup
	for i := range messages {
		enqueued.Go(func() {
			j := delayqueue.Job{}
			if i%4 == 0 {
				j.Key = fmt.Sprint("key ", i%20)
			}
			_, err := b.queue.Enqueue(t.Context(), j)
			if err != nil {
				t.Error(err)
			}
		})
	}
	enqueued.Wait()
	var inside, most, claimed, done atomic.Int64
	var mu sync.Mutex
	note := func(most *atomic.Int64, n int64) {
		mu.Lock()
		defer mu.Unlock()
		most.Store(max(most.Load(), n))
	}
	b.start(func(ctx context.Context, _ delayqueue.Message) error {
		note(&most, inside.Add(1))
		defer inside.Add(-1)
		runtime.Gosched()
		if n := done.Add(1); n%50 == 0 {
			note(&claimed, b.rdb.ZCard(ctx, b.key("w")).Val())
		}
		return nil
	}, delayqueue.WithConcurrency(concurrency))
	redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "messages are left")
	require.EqualValues(t, messages, done.Load())
	require.LessOrEqual(t, most.Load(), int64(concurrency))
	require.Greater(t, claimed.Load(), int64(concurrency), "nothing was claimed ahead")
	require.LessOrEqual(t, claimed.Load(), int64(4*concurrency))
}

// Handlers were quick, and are not any more: what was claimed ahead is run by another Worker, as if it had not been claimed.
func TestClaimsAhead_WhatWouldWaitGoesBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const concurrency, slow = 4, 40
		b := setup(t, env)
		block := make(chan struct{})
		var blocked atomic.Int64
		for range 300 {
			b.enqueue(delayqueue.Job{})
		}
		for i := range slow {
			j := delayqueue.Job{Name: "slow"}
			if i%2 == 0 {
				j.Key = fmt.Sprint(i)
			}
			b.enqueue(j)
		}
		b.start(func(_ context.Context, m delayqueue.Message) error {
			if m.Name == "slow" {
				blocked.Add(1)
				<-block
			}
			return nil
		}, delayqueue.WithConcurrency(concurrency))
		defer close(block)
		redistest.Eventually(t, func() bool { return blocked.Load() == concurrency && b.inState()[1] == concurrency },
			"what was claimed ahead did not go back")

		var others ran
		began := time.Now()
		b.start(others.handle)
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{0, concurrency, 0} }, "the other worker has not run the rest")
		require.Less(t, time.Since(began), 3*time.Second)
		for _, m := range others.all() {
			require.Equal(t, []int{1, 0, 0}, []int{m.Attempt, m.Conflicts, m.Losses})
		}
	})
}
