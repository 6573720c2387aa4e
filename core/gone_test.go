package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// beforeItsPlaceIsLost is less than the 20 s after which a waiter that is not refreshed is skipped anyway, and more than any busy
// machine adds to the claim's second.
const beforeItsPlaceIsLost = 15 * time.Second

// A call that gives up leaves the queue, also from its middle. Those behind a writer that gives up may enter at once.
func TestModes_AWaiterThatGivesUpLetsThoseBehindItIn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		reading := acquire(t, newLocker(t, env), "k", core.Shared())
		var calls []<-chan got
		var leave []context.CancelFunc
		for i, opt := range []core.AcquireOption{core.Counted(1), core.FixedLease(time.Second), core.Shared()} {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			calls, leave = append(calls, acquiringCtx(ctx, newLocker(t, env), "k", opt)), append(leave, cancel)
			queued(t, env, "k", i+1)
		}
		for _, i := range []int{1, 0} {
			waiting(t, calls[2], "a writer is before it")
			leave[i]()
			require.ErrorIs(t, outcome(t, calls[i]).err, context.Canceled)
			queued(t, env, "k", 2*i)
		}
		require.NoError(t, granted(t, calls[2]).Release(t.Context()))
		require.NoError(t, reading.Release(t.Context()))
	})
}
