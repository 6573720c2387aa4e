package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
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
		for way, client := range map[string]func() redis.UniversalClient{
			"together":   func() redis.UniversalClient { return env.Client(t) },
			"one by one": func() redis.UniversalClient { return &oneByOne{env.Client(t)} },
		} {
			t.Run(way, func(t *testing.T) {
				test(t, env, func(opts ...core.Option) *core.Locker { return lockerOn(t, client(), env.Prefix, opts...) })
			})
		}
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
			refused(t, other, key)
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
			lease := testbed.Take(t, l, key) // none is held
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
	many := keyNames(core.MaxKeys + 1)
	for name, keys := range map[string][]string{"none": nil, "an empty one": {"a", ""}, "too many": many} {
		require.ErrorIs(t, errOf(l.AcquireAll(t.Context(), keys)), core.ErrInvalidKey, name)
	}
	_, err := l.TryAcquireAll(t.Context(), []string{"a"}, core.LeaseTTL(-1))
	require.ErrorIs(t, err, core.ErrInvalidOption)
	set, err := l.TryAcquireAll(t.Context(), append(many[1:], many[1:]...))
	require.NoError(t, err)
	require.Len(t, set.Keys(), core.MaxKeys)
	require.NoError(t, set.Release(t.Context()))
	require.NoError(t, l.Close())
	require.ErrorIs(t, errOf(l.AcquireAll(t.Context(), []string{"a", "b"})), core.ErrClosed)
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
	endsLost(t, set)
}

func TestAcquireAll_ManyKeysCostOneScript(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	sends := countSends(rdb)
	l := lockerOn(t, rdb, env.Prefix)
	for range 2 { // the second time Redis knows the scripts
		sends.Store(0)
		set, err := l.AcquireAll(t.Context(), keyNames(100))
		require.NoError(t, err)
		require.LessOrEqual(t, sends.Load(), int64(2))
		release(t, set)
	}
	require.Less(t, sends.Load(), int64(60), "the release of 100 goes in batches, which are smaller on a busy machine")
}

func TestAcquireAll_HoldsNothingWhileItWaits(t *testing.T) {
	eachWay(t, func(t *testing.T, env *redistest.Env, newLocker func(...core.Option) *core.Locker) {
		l, other := newLocker(), newLocker()
		busy := acquired(t, other, "b")
		done := make(chan *core.LeaseSet, 1)
		go func() {
			set, err := l.AcquireAll(t.Context(), []string{"a", "b", "c"})
			assert.NoError(t, err)
			done <- set
		}()
		queued(t, env, "b", 1)
		for _, key := range []string{"a", "c"} {
			release(t, testbed.Take(t, other, key))
		}
		later := testbed.Take(t, other, "c") // busy too, when b is free
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

func TestAcquireAll_ASetEndsWithItsFirstLease(t *testing.T) {
	eachWay(t, func(t *testing.T, env *redistest.Env, newLocker func(...core.Option) *core.Locker) {
		var seen recorder
		l := newLocker(core.WithTTL(9*time.Second), core.WithObserver(&seen))
		set, err := l.AcquireAll(t.Context(), []string{"a", "b", "c"})
		require.NoError(t, err)
		seen.awaitRenewal(t)
		require.NoError(t, context.Cause(set.Context()))
		require.NoError(t, env.Client(t).Del(t.Context(), core.RecordName(env.Prefix, "b")).Err())
		endsLost(t, set)
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
		outer := acquired(t, l, "b")
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
		refused(t, l, "b")

		set, err = l.AcquireAll(outer.Context(), []string{"a", "b"})
		require.NoError(t, err)
		require.NoError(t, outer.Release(t.Context()))
		require.Error(t, set.Context().Err(), "one of its keys is free")
		require.ErrorIs(t, set.Release(t.Context()), core.ErrLeaseLost)

		read := acquired(t, l, "b", core.Shared())
		require.ErrorIs(t, errOf(l.AcquireAll(read.Context(), []string{"a", "b"})), core.ErrUpgrade)
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
			require.ErrorIs(t, errOf(other.TryAcquireAll(t.Context(), keys, core.Counted(2))), core.ErrConflict)
			release(t, first, second)
		}
		set, err := l.AcquireAll(t.Context(), keys, core.FixedLease(200*time.Millisecond))
		require.NoError(t, err)
		endsLost(t, set)
		require.ErrorIs(t, set.Release(t.Context()), core.ErrLeaseLost)

		gone, err := other.AcquireAll(t.Context(), keys) // once the lost ones were released
		require.NoError(t, err)
		require.NoError(t, gone.Release(t.Context()))
		busy := acquired(t, other, "b")
		freed := make(chan string, 1)
		listened := func() bool {
			require.ErrorIs(t, errOf(l.TryAcquireAll(t.Context(), keys, core.NotifyRelease(freed))), core.ErrConflict)
			return l.Listening()
		}
		redistest.Eventually(t, listened, "a subscription")
		require.True(t, listened())
		require.NoError(t, busy.Release(t.Context()))
		require.Equal(t, "b", <-freed)
	})
}
