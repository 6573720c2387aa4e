package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Also when nobody else has asked for the key yet, so that its record has no count.
func TestMinHoldKeepsAReleasedKeyTaken(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		newLocker := func() *core.Locker {
			l, err := core.New(env.Client(t), core.WithPrefix(env.Prefix))
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			return l
		}
		own, other := newLocker(), newLocker()
		for _, key := range []string{"quiet", "asked for"} {
			lease, err := own.TryAcquire(t.Context(), key, core.MinHold(time.Minute))
			require.NoError(t, err)
			if key == "asked for" {
				_, err := other.TryAcquire(t.Context(), key)
				require.ErrorIs(t, err, core.ErrConflict)
			}
			require.NoError(t, lease.Release(t.Context()))
			for name, l := range map[string]*core.Locker{"own": own, "other": other} {
				_, err := l.TryAcquire(t.Context(), key)
				assert.ErrorIs(t, err, core.ErrConflict, "%s, by the %s Locker", key, name)
			}
		}

		lease, err := own.TryAcquire(t.Context(), "brief", core.MinHold(300*time.Millisecond))
		require.NoError(t, err)
		require.NoError(t, lease.Release(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		lease, err = other.Acquire(ctx, "brief")
		require.NoError(t, err, "and not for longer")
		assert.NoError(t, lease.Release(t.Context()))
	})
}
