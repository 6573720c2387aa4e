package core_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func newLocker(t testing.TB, env *redistest.Env, opts ...core.Option) *core.Locker {
	t.Helper()
	l, err := core.New(env.Client(t), append([]core.Option{core.WithPrefix(env.Prefix)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestOneHolderPerKey(t *testing.T) {
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
		other, err := b.TryAcquire(ctx, "other")
		require.NoError(t, err)
		require.NoError(t, other.Release(ctx))

		require.NoError(t, first.Release(ctx))
		require.NoError(t, first.Release(ctx), "twice")
		require.ErrorIs(t, first.Context().Err(), context.Canceled)

		second, err := b.TryAcquire(ctx, "k")
		require.NoError(t, err)
		require.Greater(t, second.Fence(), first.Fence())
		require.NoError(t, second.Release(ctx))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

func TestCallsNeverOverlap(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const lockers, calls, rounds = 3, 8, 10
		var inside, ran atomic.Int64
		var fence int64
		var wg sync.WaitGroup
		for range lockers {
			l := newLocker(t, env)
			for range calls {
				wg.Go(func() {
					for range rounds {
						err := l.Do(t.Context(), "k", func(ctx context.Context) error {
							if inside.Add(1) != 1 {
								t.Error("two calls inside")
							}
							lease, _ := core.LeaseFrom(ctx)
							if lease.Fence() <= fence {
								t.Errorf("fence went from %d to %d", fence, lease.Fence())
							}
							fence = lease.Fence()
							ran.Add(1)
							inside.Add(-1)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		require.EqualValues(t, lockers*calls*rounds, ran.Load())
	})
}
