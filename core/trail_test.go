package core_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestTrail_NamesTheLeasesThatACallWouldWaitFor(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		a, rdb := newLocker(t, env, core.WithTTL(time.Minute)), env.Client(t)
		var asked atomic.Int64
		rdb.AddHook(hooks{script: func(_ redis.Cmder, next func() error) error { asked.Add(1); return next() }})
		b := lockerOn(t, rdb, env.Prefix)
		on := func(key, trail string) bool {
			is, err := b.TrailHolds(t.Context(), key, trail)
			require.NoError(t, err)
			return is
		}
		require.Empty(t, core.Trail(t.Context()))
		var trail string
		require.NoError(t, a.Do(t.Context(), "order", func(ctx context.Context) error {
			return b.Do(ctx, "cart", func(ctx context.Context) error {
				return a.Do(ctx, "order", func(ctx context.Context) error {
					trail = core.Trail(ctx)
					require.True(t, on("order", trail))
					require.True(t, on("cart", trail))
					require.False(t, on("other", trail))
					require.Len(t, strings.Split(trail, ","), 2, "each once")
					require.NotContains(t, trail, "order")
					return nil
				})
			})
		}))
		require.False(t, on("order", trail), "it is free")
		lease := acquired(t, b, "order")
		require.False(t, on("order", trail), "another has it now")
		require.NoError(t, lease.Release(t.Context()))

		require.NoError(t, func() error {
			ctx := t.Context()
			for key := range strings.SplitSeq("abcdefghijkl", "") {
				lease, err := a.Acquire(ctx, key)
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = lease.Release(context.Background()) })
				ctx = lease.Context()
			}
			trail = core.Trail(ctx)
			return nil
		}())
		require.True(t, on("l", trail))
		require.True(t, on("e", trail))
		require.False(t, on("d", trail), "the outer ones are left out")
		require.Len(t, trail, 303)

		before := asked.Load()
		for _, forged := range []string{"", ",", ".", "x.y", strings.Repeat(",", 1<<20), trail[:20], "\x00"} {
			require.False(t, on("l", forged))
		}
		require.Equal(t, before, asked.Load(), "Redis is not asked")
		require.True(t, on("l", trail))
		require.Equal(t, before+1, asked.Load())
	})
}
