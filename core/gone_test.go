package core_test

import (
	"context"
	"strings"
	"syscall"
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

// The one behind whom a grant was lost has no more to wait for than the claim.
func TestModes_AGrantToAStoppedProcessCostsTheNextOneTheClaimSecond(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	lease, err := newLocker(t, env).Acquire(t.Context(), "k")
	require.NoError(t, err)
	stopped := launchHolder(t, env, "k", time.Second)
	redistest.Eventually(t, func() bool {
		queue, _ := env.Client(t).HGet(t.Context(), core.RecordName(env.Prefix, "k"), "queue").Result()
		return strings.Contains(queue, "@")
	}, "it listens")
	next := acquiring(t, newLocker(t, env), "k")
	queued(t, env, "k", 2)
	stopped.signal(syscall.SIGSTOP)
	start := time.Now()
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, granted(t, next).Release(t.Context()))
	require.Less(t, time.Since(start), beforeItsPlaceIsLost)
}

func TestModes_AKilledWaiterIsSkipped(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	l := newLocker(t, env)
	lease, err := l.Acquire(t.Context(), "k")
	require.NoError(t, err)
	killed := launchHolder(t, env, "k", time.Second, "shared")
	queued(t, env, "k", 1)
	next := acquiring(t, newLocker(t, env), "k")
	queued(t, env, "k", 2)
	killed.signal(syscall.SIGKILL)
	_ = killed.cmd.Wait()

	start := time.Now()
	require.NoError(t, lease.Release(t.Context()))
	require.NoError(t, granted(t, next).Release(t.Context()))
	require.Less(t, time.Since(start), beforeItsPlaceIsLost)
}
