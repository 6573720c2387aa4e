package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/redistest"
)

func TestAReservedKeyIsForParkedWorkAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, worker := newLocker(t, env), newLocker(t, env)
		require.NoError(t, l.Reserve(ctx, "k", time.Minute))
		info, err := l.Inspect(ctx, "k")
		require.NoError(t, err)
		require.True(t, info.Free())
		require.InDelta(t, time.Minute, info.Reserved, float64(5*time.Second))

		for _, opts := range [][]core.AcquireOption{nil, {core.Shared()}, {core.Counted(3)}} {
			var conflict *core.ConflictError
			_, err = l.TryAcquire(ctx, "k", opts...)
			require.ErrorAs(t, err, &conflict)
			require.Zero(t, conflict.Remaining)
			_, err = l.TryAcquireAll(ctx, []string{"j", "k"}, opts...)
			require.ErrorAs(t, err, &conflict)
			require.Equal(t, "k", conflict.Key)
		}
		next := waitFor(t, l, "k")

		lease, err := worker.TryAcquire(ctx, "k", core.Reserved(time.Minute))
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
		_, err = l.TryAcquire(ctx, "k")
		require.ErrorIs(t, err, core.ErrConflict, "it is reserved still")
		require.Empty(t, next)

		require.NoError(t, lease.Unreserve(ctx))
		fresh := <-next
		require.Greater(t, fresh.Fence(), lease.Fence())
		require.NoError(t, fresh.Release(ctx))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}
