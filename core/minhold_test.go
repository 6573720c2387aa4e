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
)

// Also when nobody else has asked for the key yet, so that its record has no count.
func TestMinHold_KeepsAReleasedKeyTaken(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		newLocker := func() *core.Locker {
			return newLocker(t, env)
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

func TestMinHold_ItsEndWakesWhoeverWaits(t *testing.T) {
	t.Parallel()
	const minHold, calls = 2400 * time.Millisecond, 20
	for name, waits := range map[string]struct{ own, other bool }{
		"in its process": {own: true}, "in another": {other: true}, "in both": {own: true, other: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
				own, other := lockerOn(t, nodes[0].client(t), "p"), lockerOn(t, nodes[0].client(t), "p")
				warm(t, own)
				warm(t, other)
				for range 10 {
					start := time.Now()
					lease, err := own.TryAcquire(t.Context(), "k", core.MinHold(minHold))
					require.NoError(t, err)
					time.Sleep(500 * time.Millisecond)
					var wg sync.WaitGroup
					var first time.Duration // guarded by the key
					for range calls {
						for l, some := range map[*core.Locker]bool{own: waits.own, other: waits.other} {
							if some {
								wg.Go(func() {
									assert.NoError(t, l.Do(t.Context(), "k", func(context.Context) error {
										if first == 0 {
											first = time.Since(start)
										}
										return nil
									}))
								})
							}
						}
					}
					time.Sleep(1300 * time.Millisecond)
					require.NoError(t, lease.Release(t.Context()))
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
