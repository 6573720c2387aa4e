package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestModes_AWaiterThatGivesUpLeavesTheMiddleOfTheQueue(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		lease, err := newLocker(t, env).Acquire(t.Context(), "k", core.Shared())
		require.NoError(t, err)
		first := acquiring(t, newLocker(t, env), "k", core.Counted(1))
		queued(t, env, "k", 1)
		ctx, cancel := context.WithCancel(t.Context())
		middle := acquiringCtx(ctx, newLocker(t, env), "k")
		queued(t, env, "k", 2)
		last := acquiring(t, newLocker(t, env), "k", core.Shared())
		queued(t, env, "k", 3)
		cancel()
		require.ErrorIs(t, outcome(t, middle).err, context.Canceled)
		queued(t, env, "k", 2)
		require.NoError(t, lease.Release(t.Context()))
		require.NoError(t, granted(t, first).Release(t.Context()))
		require.NoError(t, granted(t, last).Release(t.Context()))
	})
}

// Those behind a writer that gives up may enter at once.
func TestModes_TheWriterThatGivesUpLetsReadersIn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		reading, err := newLocker(t, env).Acquire(t.Context(), "k", core.Shared())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		writer := acquiringCtx(ctx, newLocker(t, env), "k")
		queued(t, env, "k", 1)
		reader := acquiring(t, newLocker(t, env), "k", core.Shared())
		queued(t, env, "k", 2)
		cancel()
		require.ErrorIs(t, outcome(t, writer).err, context.Canceled)
		require.NoError(t, granted(t, reader).Release(t.Context()))
		require.NoError(t, reading.Release(t.Context()))
	})
}

// beforeItsPlaceIsLost is less than the 20 s after which a waiter that is not refreshed is skipped anyway, and more than any busy
// machine adds to the claim's second.
const beforeItsPlaceIsLost = 15 * time.Second
