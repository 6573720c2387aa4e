package core_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func newLocker(t testing.TB, env *redistest.Env, opts ...core.Option) *core.Locker {
	t.Helper()
	return lockerOn(t, env.Client(t), env.Prefix, opts...)
}

// acquire waits for a key that is free, or soon will be.
func acquire(t *testing.T, l *core.Locker, key string, opts ...core.AcquireOption) *core.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), key, opts...)
	require.NoError(t, err)
	return lease
}

func TestLocker_OneHolderPerKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		a, b := newLocker(t, env), newLocker(t, env)

		first, err := a.TryAcquire(ctx, "k")
		require.NoError(t, err)
		for _, l := range []*core.Locker{a, b} {
			_, err = l.TryAcquire(ctx, "k")
			var conflict *core.ConflictError
			require.ErrorAs(t, err, &conflict)
			require.ErrorIs(t, err, core.ErrConflict)
			require.Greater(t, conflict.Remaining, time.Duration(0))
		}
		other := testbed.Take(t, b, "other")
		require.NoError(t, other.Release(ctx))

		require.NoError(t, first.Release(ctx))
		require.NoError(t, first.Release(ctx), "twice")
		require.ErrorIs(t, first.Context().Err(), context.Canceled)

		second := testbed.Take(t, b, "k")
		require.Greater(t, second.Fence(), first.Fence())
		require.NoError(t, second.Release(ctx))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

// alone is work of many calls for one key: it fails the test if two are inside, and if a fence is not greater than the one before.
type alone struct {
	t           *testing.T
	inside, ran atomic.Int64
	fence       int64
}

func (a *alone) work(ctx context.Context) error {
	if a.inside.Add(1) != 1 {
		a.t.Error("two calls inside")
	}
	lease, _ := core.LeaseFrom(ctx)
	if lease.Fence() <= a.fence {
		a.t.Errorf("fence went from %d to %d", a.fence, lease.Fence())
	}
	a.fence = lease.Fence()
	a.ran.Add(1)
	a.inside.Add(-1)
	return nil
}

func TestLocker_CallsNeverOverlap(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const lockers, each, rounds = 3, 8, 10
		calls := alone{t: t}
		var wg sync.WaitGroup
		for range lockers {
			l := newLocker(t, env)
			for range each {
				wg.Go(func() {
					for range rounds {
						if err := l.Do(t.Context(), "k", calls.work); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		require.EqualValues(t, lockers*each*rounds, calls.ran.Load())
	})
}

// For the race detector: a connection that go-redis opens may change the client's options.
func TestLocker_ALockerCanBeMadeOnAClientThatIsInUse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for range 20 {
			rdb := env.Client(t)
			var use sync.WaitGroup
			use.Go(func() { assert.NoError(t, rdb.Ping(t.Context()).Err()) })
			l, err := core.New(rdb, core.WithPrefix(env.Prefix))
			require.NoError(t, err)
			use.Wait()
			require.NoError(t, l.Do(t.Context(), "k", func(context.Context) error { return nil }))
			require.NoError(t, l.Close())
		}
	})
}
