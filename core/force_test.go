package core_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// force takes the key from the holder with this fence.
func force(t *testing.T, l *core.Locker, key string, fence int64) bool {
	t.Helper()
	done, err := l.ForceRelease(t.Context(), key, fence)
	require.NoError(t, err)
	return done
}

func TestForceRelease_TakesAKeyFromItsHolderAndServesTheNext(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, waiting, admin := newLocker(t, env), newSleeper(t, env), newLocker(t, env)
		lease := testbed.Take(t, holder, "k", core.LeaseTTL(time.Hour))
		require.NoError(t, lease.Extend(ctx, time.Hour))
		listening(t, holder)
		next := waitFor(t, waiting, "k")

		require.False(t, force(t, admin, "k", lease.Fence()-1))
		require.False(t, force(t, admin, "k", lease.Fence()+65536))
		require.False(t, force(t, admin, "other", lease.Fence()))
		require.NoError(t, lease.Context().Err())
		require.True(t, force(t, admin, "k", lease.Fence()))
		<-lease.Context().Done() // its next renewal is far away
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		require.ErrorContains(t, context.Cause(lease.Context()), "ForceRelease")

		newer := <-next
		require.Greater(t, newer.Fence(), lease.Fence())
		require.False(t, force(t, admin, "k", lease.Fence()), "an old fence does not hit a newer holder")
		require.NoError(t, newer.Extend(ctx, time.Minute))
		require.ErrorIs(t, lease.Release(ctx), core.ErrLeaseLost)
		require.NoError(t, newer.Extend(ctx, time.Minute))
		require.NoError(t, newer.Release(ctx))
		require.False(t, force(t, admin, "k", newer.Fence()))
		requireExpires(t, env.Client(t), env.Prefix)
	})
}

func TestForceRelease_OfItsOwnLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		for range 100 { // the next fence is close to the last one
			err := l.Do(t.Context(), "k", func(ctx context.Context) error {
				lease, _ := core.LeaseFrom(ctx)
				require.True(t, force(t, l, "k", lease.Fence()))
				require.ErrorIs(t, context.Cause(ctx), core.ErrLeaseLost)
				require.False(t, force(t, l, "k", lease.Fence()))
				return nil
			})
			require.ErrorIs(t, err, core.ErrLeaseLost)
		}
	})
}

// handedOver returns a lease of key that was handed over three times since its grant, and the
// fences that were used before it, the grant's first. In a bubble no time passes, for which grants are not handed over.
func handedOver(t *testing.T, l *core.Locker, key string) (lease *core.Lease, before []int64) {
	t.Helper()
	lease = acquire(t, l, key, core.Named("first", ""))
	next := merged([]<-chan got{acquiring(t, l, key), acquiring(t, l, key), acquiring(t, l, key)})
	synctest.Wait()
	for range 3 {
		before = append(before, lease.Fence())
		require.NoError(t, lease.Release(t.Context()))
		lease = granted(t, next)
		require.Equal(t, before[0]+int64(len(before)), lease.Fence())
	}
	return lease, before
}

func TestForceRelease_TakesOneOfManyHolders(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, waiting, admin := newLocker(t, env), newSleeper(t, env), newLocker(t, env)
		for name, opt := range map[string]core.AcquireOption{"shared": core.Shared(), "counted": core.Counted(3)} {
			var leases []*core.Lease
			for range 3 {
				leases = append(leases, testbed.Take(t, holder, name, opt))
			}
			listening(t, holder)
			require.False(t, force(t, admin, name, leases[2].Fence()+1), "a shared fence is no block")
			require.True(t, force(t, admin, name, leases[1].Fence()))
			<-leases[1].Context().Done()
			require.NoError(t, leases[0].Extend(ctx, time.Minute))
			require.NoError(t, leases[2].Extend(ctx, time.Minute))
			require.ErrorIs(t, leases[1].Release(ctx), core.ErrLeaseLost)

			if name == "counted" {
				fourth := testbed.Take(t, waiting, name, opt)
				fifth := waitFor(t, waiting, name, opt)
				require.True(t, force(t, admin, name, leases[2].Fence()))
				require.NoError(t, (<-fifth).Release(ctx), "the place goes to who waits for it")
				require.NoError(t, fourth.Release(ctx))
			} else {
				exclusive := waitFor(t, waiting, name)
				require.True(t, force(t, admin, name, leases[2].Fence()))
				require.Empty(t, exclusive)
				require.True(t, force(t, admin, name, leases[0].Fence()))
				require.NoError(t, (<-exclusive).Release(ctx))
			}
		}
	})
}

func TestForceRelease_OfAnExpiredHolderFindsNone(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		other := testbed.Take(t, l, "k", core.Shared())
		lease := testbed.Take(t, l, "k", core.Shared(), core.FixedLease(100*time.Millisecond))
		time.Sleep(150 * time.Millisecond)
		require.False(t, force(t, l, "k", lease.Fence()))
		require.NoError(t, other.Release(t.Context()))
	})
}

// A grant is known by the fence of each lease that it was handed over to, also once it is shared.
func TestForceRelease_KnowsAGrantThatWasHandedOverByAllOfItsFences(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		ctx := t.Context()
		l, admin := lockerOn(t, nodes[0].client(t), "p"), lockerOn(t, nodes[0].client(t), "p")
		for i := range 8 {
			key, shared := fmt.Sprint("k", i), i >= 4
			lease, before := handedOver(t, l, key)
			fences := append(slices.Clone(before), lease.Fence())
			holders := 1
			var reader *core.Lease
			if shared {
				require.NoError(t, lease.Downgrade(ctx))
				require.False(t, force(t, admin, key, lease.Fence()+1), "the rest of the block went back")
				reader = testbed.Take(t, admin, key, core.Shared())
				holders++
			}
			require.False(t, force(t, admin, key, before[0]-1))
			info, err := admin.Inspect(ctx, key)
			require.NoError(t, err)
			require.Len(t, info.Holders, holders)
			require.Equal(t, before[0], info.Holders[0].Fence, "of the grant")
			require.Equal(t, shared, info.Holders[0].Mode == core.ModeShared)
			require.True(t, force(t, admin, key, fences[i%4]))
			<-lease.Context().Done()
			require.ErrorIs(t, lease.Release(ctx), core.ErrLeaseLost)
			if shared {
				require.NoError(t, reader.Extend(ctx, time.Minute), "it is not touched")
			} else {
				reader = acquire(t, admin, key)
				require.Greater(t, reader.Fence(), lease.Fence())
			}
			for _, fence := range fences {
				require.False(t, force(t, l, key, fence), "no later holder has it")
			}
			require.True(t, force(t, admin, key, reader.Fence()))
		}
	})
}
