package core_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestMinHold_ItsEndWakesWhoeverWaits(t *testing.T) {
	t.Parallel()
	const minHold, calls = 2400 * time.Millisecond, 20
	for name, waits := range map[string][]int{"in its process": {0}, "in another": {1}, "in both": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
				lockers := []*core.Locker{lockerOn(t, nodes[0].client(t), "p"), lockerOn(t, nodes[0].client(t), "p")}
				for _, l := range lockers {
					warm(t, l)
				}
				for range 3 {
					start := time.Now()
					lease := testbed.Take(t, lockers[0], "k", core.MinHold(minHold))
					time.Sleep(500 * time.Millisecond)
					var wg sync.WaitGroup
					var first time.Duration // guarded by the key
					work := func(context.Context) error {
						if first == 0 {
							first = time.Since(start)
						}
						return nil
					}
					for range calls {
						for _, i := range waits {
							wg.Go(func() { assert.NoError(t, lockers[i].Do(t.Context(), "k", work)) })
						}
					}
					time.Sleep(1300 * time.Millisecond)
					release(t, lease)
					wg.Wait()
					require.GreaterOrEqual(t, first, minHold-20*time.Millisecond)
					require.Less(t, first, minHold+30*time.Millisecond, "not only when it asks by itself")
				}
			})
		})
	}
}

// A lease with a bound that is shorter than the first lease ends there, whoever granted it, and the key is free.
func TestMaxHold_ShorterThanAFirstLease(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		const bound = 200 * time.Millisecond
		lockers := []*core.Locker{newLocker(t, env), newLocker(t, env)}
		var calls sync.WaitGroup
		for i := range 10 {
			calls.Go(func() {
				lease, err := lockers[i%2].Acquire(t.Context(), "k", core.MaxHold(bound))
				if !assert.NoError(t, err) {
					return
				}
				granted := time.Now()
				<-lease.Context().Done() // and it is never released
				assert.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
				assert.LessOrEqual(t, time.Since(granted), bound)
			})
		}
		calls.Wait()
	})
}
