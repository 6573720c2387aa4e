package core_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// oneByOne hides what kind of client it is: a locker on it cannot tell that one node serves all keys.
type oneByOne struct{ *redis.Client }

// eachWay runs test on a locker that takes many keys with one script, and on one that takes them one after the other.
func eachWay(t *testing.T, test func(t *testing.T, env *redistest.Env, newLocker func(opts ...core.Option) *core.Locker)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		t.Run("together", func(t *testing.T) {
			test(t, env, func(opts ...core.Option) *core.Locker { return newLocker(t, env, opts...) })
		})
		t.Run("one by one", func(t *testing.T) {
			test(t, env, func(opts ...core.Option) *core.Locker {
				return lockerOn(t, &oneByOne{env.Client(t)}, env.Prefix, opts...)
			})
		})
	})
}

func TestAcquireAll_AllKeysOrNone(t *testing.T) {
	eachWay(t, func(t *testing.T, env *redistest.Env, newLocker func(...core.Option) *core.Locker) {
		l, other := newLocker(), newLocker()
		set, err := l.TryAcquireAll(t.Context(), []string{"c", "a", "b", "a"})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b", "c"}, set.Keys())
		require.Equal(t, `leases on ["a" "b" "c"]`, set.String())
		require.NoError(t, set.Context().Err())
		for _, key := range set.Keys() {
			_, err := other.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, core.ErrConflict)
			require.Positive(t, set.Fence(key))
		}
		require.Zero(t, set.Fence("d"))

		_, err = other.TryAcquireAll(t.Context(), []string{"x", "b", "c", "y"})
		var conflict *core.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, "b", conflict.Key)
		require.Positive(t, conflict.Remaining)
		require.Equal(t, 1, conflict.Attempts)
		for _, key := range []string{"x", "y"} {
			lease, err := l.TryAcquire(t.Context(), key)
			require.NoError(t, err, "none is held")
			require.NoError(t, lease.Release(t.Context()))
		}

		require.NoError(t, set.Extend(t.Context(), 30*time.Second))
		left, err := env.Client(t).PTTL(t.Context(), core.RecordName(env.Prefix, "b")).Result()
		require.NoError(t, err)
		require.Greater(t, left, 20*time.Second)
		require.NoError(t, set.Release(t.Context()))
		require.ErrorIs(t, set.Context().Err(), context.Canceled)
		require.NoError(t, set.Release(t.Context()), "twice")
		again, err := other.AcquireAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		for _, key := range set.Keys() {
			require.Greater(t, again.Fence(key), set.Fence(key))
		}
		require.NoError(t, again.Release(t.Context()))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

func TestAcquireAll_Mistakes(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Embedded(t))
	var many []string
	for i := range core.MaxKeys + 1 {
		many = append(many, strconv.Itoa(i))
	}
	for name, keys := range map[string][]string{"none": nil, "an empty one": {"a", ""}, "too many": many} {
		_, err := l.AcquireAll(t.Context(), keys)
		require.ErrorIs(t, err, core.ErrInvalidKey, name)
	}
	_, err := l.TryAcquireAll(t.Context(), []string{"a"}, core.LeaseTTL(-1))
	require.ErrorIs(t, err, core.ErrInvalidOption)
	set, err := l.TryAcquireAll(t.Context(), append(many[1:], many[1:]...))
	require.NoError(t, err)
	require.Len(t, set.Keys(), core.MaxKeys)
	require.NoError(t, set.Release(t.Context()))
	require.NoError(t, l.Close())
	_, err = l.AcquireAll(t.Context(), []string{"a", "b"})
	require.ErrorIs(t, err, core.ErrClosed)
}

// A set that was not taken can be released, and promises nothing.
func TestLeaseSet_NilHoldsNothing(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Embedded(t))
	held := testbed.Take(t, l, "b")
	set, err := l.TryAcquireAll(t.Context(), []string{"a", "b"})
	require.ErrorIs(t, err, core.ErrConflict)
	require.Nil(t, set)
	require.NoError(t, held.Release(t.Context()))

	require.NoError(t, set.Release(t.Context()))
	require.Empty(t, set.Keys())
	require.Zero(t, set.Fence("a"))
	require.Equal(t, "no leases", set.String())

	require.ErrorIs(t, set.Extend(t.Context(), time.Second), core.ErrLeaseLost)
	require.ErrorIs(t, set.Extend(t.Context(), 0), core.ErrInvalidOption)
	<-set.Context().Done()
	require.ErrorIs(t, context.Cause(set.Context()), core.ErrLeaseLost)
}

func TestAcquireAll_ManyKeysCostOneScript(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	var scripts, pipelines atomic.Int64
	rdb.AddHook(hooks{
		script:   func(_ redis.Cmder, next func() error) error { scripts.Add(1); return next() },
		pipeline: func(next func() error) error { pipelines.Add(1); return next() },
	})
	l := lockerOn(t, rdb, env.Prefix)
	var keys []string
	for i := range 100 {
		keys = append(keys, strconv.Itoa(i))
	}
	for range 2 { // the second time Redis knows the scripts
		scripts.Store(0)
		pipelines.Store(0)
		set, err := l.AcquireAll(t.Context(), keys)
		require.NoError(t, err)
		require.LessOrEqual(t, scripts.Load(), int64(2))
		require.NoError(t, set.Release(t.Context()))
	}
	require.LessOrEqual(t, scripts.Load(), int64(1+8), "one, and those of the release that went alone")
	require.Less(t, pipelines.Load(), int64(16), "the rest of the release went together")
}

func TestAcquireAll_HoldsNothingWhileItWaits(t *testing.T) {
	eachWay(t, func(t *testing.T, env *redistest.Env, newLocker func(...core.Option) *core.Locker) {
		l, other := newLocker(), newLocker()
		busy, err := other.Acquire(t.Context(), "b")
		require.NoError(t, err)
		done := make(chan *core.LeaseSet, 1)
		go func() {
			set, err := l.AcquireAll(t.Context(), []string{"a", "b", "c"})
			if err != nil {
				t.Error(err)
			}
			done <- set
		}()
		queued(t, env, "b", 1)
		for _, key := range []string{"a", "c"} {
			lease := testbed.Take(t, other, key)
			require.NoError(t, lease.Release(t.Context()))
		}
		later, err := other.TryAcquire(t.Context(), "c") // busy too, when b is free
		require.NoError(t, err)
		require.NoError(t, busy.Release(t.Context()))
		queued(t, env, "c", 1)
		redistest.Eventually(t, func() bool {
			lease, err := other.TryAcquire(t.Context(), "b")
			if err == nil {
				err = lease.Release(t.Context())
			}
			return err == nil
		}, "it gave the other key back")
		require.NoError(t, later.Release(t.Context()))
		set := <-done
		require.Equal(t, []string{"a", "b", "c"}, set.Keys())
		require.NoError(t, set.Release(t.Context()))
	})
}

func TestAcquireAll_EndsWithItsCtx(t *testing.T) {
	eachWay(t, func(t *testing.T, env *redistest.Env, newLocker func(...core.Option) *core.Locker) {
		l, other := newLocker(), newLocker()
		busy, err := other.Acquire(t.Context(), "b")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = l.AcquireAll(ctx, []string{"a", "b"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, core.ErrConflict)
		require.NoError(t, busy.Release(t.Context()))
		requireNothingLeft(t, env.Client(t), env.Prefix)
	})
}

func TestAcquireAll_ASetEndsWithItsFirstLease(t *testing.T) {
	eachWay(t, func(t *testing.T, env *redistest.Env, newLocker func(...core.Option) *core.Locker) {
		var seen recorder
		l := newLocker(core.WithTTL(9*time.Second), core.WithObserver(&seen))
		set, err := l.AcquireAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		seen.awaitRenewal(t)
		require.NoError(t, context.Cause(set.Context()))
		require.NoError(t, env.Client(t).Del(t.Context(), core.RecordName(env.Prefix, "b")).Err())
		<-set.Context().Done()
		require.ErrorIs(t, context.Cause(set.Context()), core.ErrLeaseLost)
		err = set.Release(t.Context())
		require.ErrorIs(t, err, core.ErrLeaseLost)
		require.ErrorContains(t, err, `"b"`)
		require.NotContains(t, err.Error(), `"a"`)
		requireNothingLeft(t, env.Client(t), env.Prefix)
	})
}

func TestAcquireAll_ASetIsReentrant(t *testing.T) {
	eachWay(t, func(t *testing.T, env *redistest.Env, newLocker func(...core.Option) *core.Locker) {
		l := newLocker()
		outer, err := l.Acquire(t.Context(), "b")
		require.NoError(t, err)
		set, err := l.AcquireAll(outer.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		require.Equal(t, outer.Fence(), set.Fence("b"))
		for _, key := range set.Keys() {
			lease, err := l.TryAcquire(set.Context(), key)
			require.NoError(t, err)
			require.Equal(t, set.Fence(key), lease.Fence())
			require.NoError(t, lease.Release(t.Context()))
		}
		inner, err := l.AcquireAll(set.Context(), []string{"c", "a"}, core.Shared())
		require.NoError(t, err)
		require.NoError(t, inner.Context().Err())
		require.NoError(t, inner.Release(t.Context()))
		require.Error(t, inner.Context().Err())
		require.NoError(t, set.Context().Err())
		require.NoError(t, set.Release(t.Context()))
		require.NoError(t, outer.Context().Err(), "only who took a key releases it")
		_, err = l.TryAcquire(t.Context(), "b")
		require.ErrorIs(t, err, core.ErrConflict)

		set, err = l.AcquireAll(outer.Context(), []string{"a", "b"})
		require.NoError(t, err)
		require.NoError(t, outer.Release(t.Context()))
		require.Error(t, set.Context().Err(), "one of its keys is free")
		require.ErrorIs(t, set.Release(t.Context()), core.ErrLeaseLost)

		read, err := l.Acquire(t.Context(), "b", core.Shared())
		require.NoError(t, err)
		_, err = l.AcquireAll(read.Context(), []string{"a", "b"})
		require.ErrorIs(t, err, core.ErrUpgrade)
		require.NoError(t, read.Release(t.Context()))
		requireNothingLeft(t, env.Client(t), env.Prefix)
	})
}

func TestAcquireAll_SetsTakeOptions(t *testing.T) {
	eachWay(t, func(t *testing.T, env *redistest.Env, newLocker func(...core.Option) *core.Locker) {
		l, other := newLocker(), newLocker()
		keys := []string{"a", "b"}
		for _, opt := range []core.AcquireOption{core.Shared(), core.Counted(2)} {
			first, err := l.AcquireAll(t.Context(), keys, opt, core.LeaseTTL(time.Minute))
			require.NoError(t, err)
			second, err := other.TryAcquireAll(t.Context(), keys, opt)
			require.NoError(t, err)
			_, err = other.TryAcquireAll(t.Context(), keys)
			require.ErrorIs(t, err, core.ErrConflict)
			_, err = other.TryAcquireAll(t.Context(), keys, core.Counted(2))
			require.ErrorIs(t, err, core.ErrConflict)
			require.NoError(t, first.Release(t.Context()))
			require.NoError(t, second.Release(t.Context()))
		}
		set, err := l.AcquireAll(t.Context(), keys, core.FixedLease(200*time.Millisecond))
		require.NoError(t, err)
		<-set.Context().Done()
		require.ErrorIs(t, context.Cause(set.Context()), core.ErrLeaseLost)
		require.ErrorIs(t, set.Release(t.Context()), core.ErrLeaseLost)

		gone, err := other.AcquireAll(t.Context(), keys) // once the lost ones were released
		require.NoError(t, err)
		require.NoError(t, gone.Release(t.Context()))
		busy, err := other.Acquire(t.Context(), "b")
		require.NoError(t, err)
		freed := make(chan string, 1)
		listened := func() bool {
			_, err = l.TryAcquireAll(t.Context(), keys, core.NotifyRelease(freed))
			require.ErrorIs(t, err, core.ErrConflict)
			return l.Listening()
		}
		redistest.Eventually(t, listened, "a subscription")
		require.True(t, listened())
		require.NoError(t, busy.Release(t.Context()))
		require.Equal(t, "b", <-freed)
	})
}

// A queue of the dead, and a record that only remembers, do not keep a set out.
func TestAcquireAll_SetsServeTheQueueFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, other := newLocker(t, env), newLocker(t, env)
		busy, err := other.Acquire(t.Context(), "b", core.FixedLease(3*time.Second))
		require.NoError(t, err)
		waiter := acquiring(t, newLocker(t, env), "b")
		queued(t, env, "b", 1)
		<-busy.Context().Done()
		time.Sleep(30 * time.Millisecond)
		_, err = l.TryAcquireAll(t.Context(), []string{"a", "b"})
		require.ErrorIs(t, err, core.ErrConflict, "it is the waiter's turn")
		lease := granted(t, waiter)
		require.NoError(t, lease.Release(t.Context()))
		set, err := l.TryAcquireAll(t.Context(), []string{"a", "b"})
		require.NoError(t, err)
		require.Greater(t, set.Fence("b"), lease.Fence(), fmt.Sprint(set))
		require.NoError(t, set.Release(t.Context()))
	})
}
