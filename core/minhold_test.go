package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/redistest"
)

func TestMinHoldKeepsAReleasedKeyTaken(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		holder, other := newLocker(t, env), newLocker(t, env)
		for name, wanted := range map[string]bool{"nobody waits": false, "another process waits": true} {
			lease, err := holder.TryAcquire(t.Context(), name, core.MinHold(time.Minute))
			require.NoError(t, err)
			if wanted {
				waited := make(chan struct{})
				go func() {
					defer close(waited)
					_, err := other.Acquire(ctx, name)
					assert.ErrorIs(t, err, context.Canceled)
				}()
				redistest.Eventually(t, func() bool {
					info, err := holder.Inspect(ctx, name)
					return err == nil && info.Waiting == 1
				}, "it waits")
				defer func() { leave(); <-waited }()
			}
			require.NoError(t, lease.Release(t.Context()))
			for _, l := range []*core.Locker{holder, other} {
				_, err = l.TryAcquire(t.Context(), name)
				require.ErrorIs(t, err, core.ErrConflict, name)
			}
			info, err := other.Inspect(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, 1, info.Held)
			require.Greater(t, info.Holders[0].Remaining, 30*time.Second)
		}
		lease, err := holder.TryAcquire(t.Context(), "soon", core.MinHold(300*time.Millisecond))
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
		next, err := other.Acquire(t.Context(), "soon")
		require.NoError(t, err)
		require.Greater(t, next.Fence()-lease.Fence(), int64(290_000), "not before MinHold was over")
		require.NoError(t, next.Release(t.Context()))
	})
}
