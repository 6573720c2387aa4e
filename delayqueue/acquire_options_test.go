package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Calls of a guard with MinHold, fresh and parked, come no closer than that, of each key, whichever of two workers runs them.
func TestWithAcquireOptions_MinHold(t *testing.T) {
	const keys, calls, apart = 3, 5, 200 * time.Millisecond
	each(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		fences := map[string][]int64{} // times of Redis, in µs
		run := func(ctx context.Context, key string) error {
			lease, _ := core.LeaseFrom(ctx)
			mu.Lock()
			defer mu.Unlock()
			fences[key] = append(fences[key], lease.Fence())
			return nil
		}
		for range 2 {
			b.start(func(ctx context.Context, m delayqueue.Message) error { return run(ctx, m.Key) }, delayqueue.WithAcquireOptions(core.MinHold(apart)))
		}
		guard := b.other.Guard(delayqueue.Policy(b.queue), core.MinHold(apart))
		var all sync.WaitGroup
		for i := range keys * calls {
			key := fmt.Sprint("k", i%keys)
			all.Go(func() {
				call := core.Call{Key: key, Encode: func() ([]byte, error) { return nil, nil }}
				err := guard.Do(t.Context(), call, func(ctx context.Context) error { return run(ctx, key) })
				if !errors.Is(err, core.ErrDeferred) {
					assert.NoError(t, err)
				}
			})
		}
		all.Wait()
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "all have run")
		mu.Lock()
		defer mu.Unlock()
		for key, granted := range fences {
			require.Len(t, granted, calls, key)
			slices.Sort(granted)
			for i := 1; i < calls; i++ { // Redis counts in ms
				require.Greater(t, granted[i]-granted[i-1], (apart - 2*time.Millisecond).Microseconds(), key)
			}
		}
		require.Len(t, fences, keys)
	})
}

func TestWithAcquireOptions_MaxHold(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		causes := make(chan error, 10)
		b.start(func(ctx context.Context, _ delayqueue.Message) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}, delayqueue.WithAcquireOptions(core.MaxHold(100*time.Millisecond)))
		id := b.enqueue(delayqueue.Job{Key: "k"})
		for range 2 {
			require.ErrorIs(t, next(t, causes), core.ErrLeaseLost)
		}
		require.Equal(t, 2, b.reaches(id, delayqueue.StateDead).Losses)
	}, delayqueue.WithMaxAttempts(2))
}

// A grant that no replica has does not count: the message is not run.
func TestWithAcquireOptions_WaitReplicas(t *testing.T) {
	env := redistest.Real(t)
	b := setup(t, env)
	b.start(func(context.Context, delayqueue.Message) error {
		t.Error("it ran")
		return nil
	}, delayqueue.WithAcquireOptions(core.WaitReplicas(1, time.Millisecond)))
	id := b.enqueue(delayqueue.Job{Key: "k"})
	redistest.Eventually(t, func() bool { return strings.Contains(b.rdb.Info(t.Context(), "commandstats").Val(), "cmdstat_wait:") }, "it is asked for replicas")
	b.reaches(id, delayqueue.StateQueued)
}

func TestWithAcquireOptions_AreChecked(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	handler := func(context.Context, delayqueue.Message) error { return nil }
	for name, opts := range map[string][]core.AcquireOption{
		"nil": {nil}, "too short": {core.MinHold(0)}, "shared": {core.Shared()}, "counted": {core.Counted(2)},
	} {
		_, err := delayqueue.NewWorker(b.queue, b.locker, handler, delayqueue.WithAcquireOptions(opts...))
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		require.ErrorContains(t, err, "WithAcquireOptions", name)
	}
	_, err := delayqueue.NewWorker(b.queue, b.locker, handler, delayqueue.WithAcquireOptions(), delayqueue.WithAcquireOptions(core.Counted(1), core.Named("n", "")))
	require.NoError(t, err)
}
