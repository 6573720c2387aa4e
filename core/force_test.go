package core_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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

func TestForceRelease_KnowsAGrantThatWasHandedOverByItsLaterFences(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, admin := newLocker(t, env), newLocker(t, env)
		for _, later := range []bool{false, true} {
			var passed, first *core.Lease
			for passed == nil { // until a grant is handed over: that is a matter of milliseconds
				var err error
				first, err = l.Acquire(ctx, "k", core.Named("first", ""))
				require.NoError(t, err)
				next := acquiring(t, l, "k", core.Named("second", ""))
				time.Sleep(2 * time.Millisecond)
				require.NoError(t, first.Release(ctx))
				if second := granted(t, next); second.Fence() == first.Fence()+1 {
					passed = second
				} else {
					require.NoError(t, second.Release(ctx))
				}
			}
			info, err := admin.Inspect(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, "first", info.Holders[0].Name)
			require.Equal(t, first.Fence(), info.Holders[0].Fence)
			fence := info.Holders[0].Fence
			if later {
				fence = passed.Fence()
			}
			require.True(t, force(t, admin, "k", fence))
			<-passed.Context().Done()
			require.ErrorIs(t, passed.Release(ctx), core.ErrLeaseLost)
			again, err := admin.Acquire(ctx, "k")
			require.NoError(t, err)
			require.Greater(t, again.Fence(), passed.Fence())
			require.False(t, force(t, l, "k", fence))
			require.NoError(t, again.Release(ctx))
		}
	})
}

// handedOver returns a lease of key that was handed over at least twice since its grant, and the
// fences that were used before it, the grant's first.
func handedOver(t *testing.T, l, admin *core.Locker, key string) (lease *core.Lease, before []int64) {
	const calls = 4
	for {
		leases := make(chan *core.Lease, calls)
		for range calls {
			go func() {
				lease, err := l.Acquire(t.Context(), key)
				assert.NoError(t, err)
				leases <- lease
			}()
		}
		var fences []int64
		for i := range calls {
			if lease = <-leases; lease == nil {
				return nil, nil
			}
			fences = append(fences, lease.Fence())
			if i < calls-1 {
				assert.NoError(t, lease.Release(t.Context()))
			}
		}
		info, err := admin.Inspect(t.Context(), key)
		if !assert.NoError(t, err) || !assert.Len(t, info.Holders, 1) {
			return nil, nil
		}
		if granted := slices.Index(fences, info.Holders[0].Fence); granted >= 0 && granted < calls-2 {
			return lease, fences[granted : calls-1]
		}
		assert.NoError(t, lease.Release(t.Context())) // it was not handed over: that is a matter of milliseconds
	}
}

func TestForceRelease_KnowsADowngradedGrantByAllOfItsFences(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		l, admin := newLocker(t, env), newLocker(t, env)
		warm(t, l)
		listening(t, l)
		force := func(key string, fence int64) bool {
			done, err := admin.ForceRelease(ctx, key, fence)
			assert.NoError(t, err)
			return done
		}
		var keys sync.WaitGroup
		for i := range 16 {
			key := fmt.Sprintf("k%d", i)
			keys.Go(func() {
				lease, before := handedOver(t, l, admin, key)
				if lease == nil || !assert.NoError(t, lease.Downgrade(ctx)) {
					return
				}
				reader, err := admin.TryAcquire(ctx, key, core.Shared())
				if !assert.NoError(t, err) {
					return
				}
				fences := append(slices.Clone(before), lease.Fence())
				assert.False(t, force(key, before[0]-1))
				assert.False(t, force(key, lease.Fence()+1), "the rest of the block went back")
				info, err := admin.Inspect(ctx, key)
				assert.NoError(t, err)
				if assert.Len(t, info.Holders, 2) {
					assert.Equal(t, before[0], info.Holders[0].Fence, "of the grant")
					assert.Equal(t, core.ModeShared, info.Holders[0].Mode)
				}
				if fence := fences[(i+len(fences)-1)%len(fences)]; !assert.True(t, force(key, fence), "%d of %v", fence, fences) {
					return
				}
				<-lease.Context().Done()
				assert.ErrorIs(t, lease.Release(ctx), core.ErrLeaseLost)
				for _, fence := range fences {
					assert.False(t, force(key, fence), "no later holder has it")
				}
				assert.NoError(t, reader.Extend(ctx, time.Minute), "it is not touched")
				assert.True(t, force(key, reader.Fence()))
			})
		}
		keys.Wait()
	})
}

func TestForceRelease_TakesOneOfManyHolders(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		holder, waiting, admin := newLocker(t, env), newSleeper(t, env), newLocker(t, env)
		for name, opt := range map[string]core.AcquireOption{"shared": core.Shared(), "counted": core.Counted(3)} {
			var leases []*core.Lease
			for range 3 {
				lease := testbed.Take(t, holder, name, opt)
				leases = append(leases, lease)
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
