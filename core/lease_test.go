package core_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// inVirtualTime runs test in a bubble whose clock moves only when everybody
// sleeps, on a Redis inside it. cut makes Redis unreachable.
func inVirtualTime(t *testing.T, test func(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis, cut func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		rdb := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:1", PoolSize: bubblePool,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return m.Dial() },
		})
		var full atomic.Bool
		rdb.AddHook(fullPool(&full))
		defer func() { // also when the test fails, or the bubble never ends
			_ = rdb.Close()
			m.Close()
		}()
		test(t, rdb, m, func() { full.Store(true) })
	})
}

func TestFirstLease_AnUnconfirmedGrantFreesItselfAfterIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts  []core.Option
		first time.Duration
	}{
		"by default":           {nil, 10 * time.Second},
		"shortest":             {[]core.Option{core.WithFirstLease(core.MinTTL)}, core.MinTTL},
		"longer":               {[]core.Option{core.WithFirstLease(time.Minute)}, time.Minute},
		"longer than the TTL":  {[]core.Option{core.WithFirstLease(core.MaxTTL)}, time.Hour},
		"the latter one holds": {[]core.Option{core.WithFirstLease(time.Minute), core.WithFirstLease(time.Second)}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis, _ func()) {
				l := lockerOn(t, rdb, "perkey", append(c.opts, core.WithRenewalClient(rdb), core.WithTTL(time.Hour))...)
				set, err := l.TryAcquireAll(t.Context(), []string{"a", "b"})
				require.NoError(t, err)
				testbed.Take(t, l, "renewed")
				_, err = l.TryAcquire(t.Context(), "fixed", core.FixedLease(time.Hour))
				require.NoError(t, err)
				testbed.Take(t, l, "short", core.FixedLease(core.MinTTL))
				require.Len(t, m.Keys(), 5)
				for _, key := range m.Keys() {
					first := c.first
					if key == core.RecordName("perkey", "short") {
						first = core.MinTTL
					}
					require.LessOrEqual(t, m.TTL(key), first)
					require.Greater(t, m.TTL(key), first*9/10)
				}
				time.Sleep(c.first * 2 / 3)
				for _, key := range set.Keys() {
					require.Greater(t, m.TTL(core.RecordName("perkey", key)), time.Hour-c.first, "confirmed")
				}
				require.NoError(t, l.Close())
			})
		})
	}
}

// A fixed lease ends when it was said to, before Redis can give the key away.
func TestLease_AFixedLeaseEndsWhenItWasSaidTo(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, func(t *testing.T, rdb *redis.Client, _ *miniredis.Miniredis, _ func()) {
		l := lockerOn(t, rdb, "perkey", core.WithRenewalClient(rdb))
		for _, d := range []time.Duration{200 * time.Millisecond, 3 * time.Second, 10 * time.Second, time.Minute} {
			start := time.Now()
			lease := testbed.Take(t, l, "k", core.FixedLease(d/2))
			require.ErrorIs(t, lease.Extend(t.Context(), 0), core.ErrInvalidOption)
			require.NoError(t, lease.Extend(t.Context(), d))
			require.NoError(t, lease.Extend(t.Context(), d/2), "never shorter")
			<-lease.Context().Done()
			require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
			held := time.Since(start)
			require.Less(t, held, d)
			require.Greater(t, held, d*9/10)
			require.ErrorIs(t, lease.Extend(t.Context(), d), core.ErrLeaseLost)
			_, err := l.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, core.ErrConflict, "Redis still holds it")
			time.Sleep(d/10 + 20*time.Millisecond)
			require.NoError(t, testbed.Take(t, l, "k").Release(t.Context()))
			require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		}
	})
}

// A lease is renewed, also when its caller has left, until Redis is out of reach.
func TestLease_ContextEndsBeforeTheKeyIsFree(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, func(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis, cut func()) {
		l := lockerOn(t, rdb, "perkey", core.WithRenewalClient(rdb), core.WithTTL(10*time.Second))
		ctx, leave := context.WithCancel(t.Context())
		left, err := l.Acquire(ctx, "left")
		require.NoError(t, err)
		leave()
		lease := testbed.Take(t, l, "k")
		time.Sleep(time.Minute)
		require.NoError(t, lease.Context().Err())
		_, err = l.TryAcquire(t.Context(), "left")
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, left.Release(ctx))
		cut()
		<-lease.Context().Done()
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		require.Positive(t, m.TTL("perkey:lock{}:k"), "still held in Redis")
	})
}

func TestReentry_CostsNoRoundTrip(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		l := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb))
		again := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb))

		err := l.Do(t.Context(), "outer", func(ctx context.Context) error {
			return l.Do(ctx, "inner", func(ctx context.Context) error {
				lease, ok := core.LeaseFrom(ctx)
				require.True(t, ok)
				require.Equal(t, "inner", lease.Key())
				listening(t, l)
				before := env.Commands()
				for _, l := range []*core.Locker{l, again} {
					for _, key := range []string{"outer", "inner"} {
						require.NoError(t, l.Do(ctx, key, func(ctx context.Context) error {
							lease, _ := core.LeaseFrom(ctx)
							require.Equal(t, key, lease.Key())
							return nil
						}))
					}
				}
				require.Equal(t, before, env.Commands())
				_, err := l.TryAcquire(t.Context(), "outer")
				require.ErrorIs(t, err, core.ErrConflict, "another ctx, the same goroutine")
				return nil
			})
		})
		require.NoError(t, err)
		require.Empty(t, redistest.Keys(t, rdb, env.Prefix))
	})
}

func TestReentry_UnderALostLeaseDoesNotPass(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l, rdb := newLocker(t, env), env.Client(t)
		err := l.Do(t.Context(), "k", func(ctx context.Context) error {
			return l.Do(ctx, "k", func(ctx context.Context) error {
				require.NoError(t, rdb.Del(t.Context(), env.Prefix+":lock{}:k").Err())
				<-ctx.Done()
				require.ErrorIs(t, context.Cause(ctx), core.ErrLeaseLost)
				err := l.Do(ctx, "k", mustNotRun)
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, core.ErrLeaseLost)
				return nil
			})
		})
		require.ErrorIs(t, err, core.ErrLeaseLost)
	})
}

func TestLease_BadKeysAreRefusedBeforeRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Embedded(t)
	l := newLocker(t, server)
	before := server.Commands()
	for _, key := range []string{"", strings.Repeat("k", core.MaxKeyLen+1), "a\nb", "\x00", "a\x7f"} {
		_, err := l.Acquire(t.Context(), key)
		require.ErrorIs(t, err, core.ErrInvalidKey)
	}
	require.Equal(t, before, server.Commands())
	for _, key := range []string{strings.Repeat("k", core.MaxKeyLen), "{a}b", "*", "a:b", "ключ", " "} {
		lease, err := l.TryAcquire(t.Context(), key)
		require.NoError(t, err, key)
		require.NoError(t, lease.Release(t.Context()))
	}
}

func TestLease_BracesInAKeyDoNotChooseItsSlot(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t, "--cluster-enabled", "yes").Addr})
	slots := map[int64]bool{}
	for i := range 4 {
		slots[rdb.ClusterKeySlot(t.Context(), core.RecordName("perkey", fmt.Sprint("{same}", i))).Val()] = true
	}
	require.Greater(t, len(slots), 1)
}

// A handler may serve calls that need no key beside those that do.
func TestLease_NilHoldsNothing(t *testing.T) {
	t.Parallel()
	lease, ok := core.LeaseFrom(t.Context())
	require.False(t, ok)
	require.Nil(t, lease)
	require.NoError(t, lease.Release(t.Context()))
	require.Zero(t, lease.Fence())
	require.Empty(t, lease.Key())
	require.Empty(t, lease.Token())
	require.False(t, reservations.WasReserved(lease))
	require.Equal(t, "no lease", lease.String())

	require.ErrorIs(t, lease.Extend(t.Context(), time.Second), core.ErrLeaseLost)
	require.ErrorIs(t, lease.Downgrade(t.Context()), core.ErrLeaseLost)
	_, err := lease.Detach(t.Context())
	require.ErrorIs(t, err, core.ErrLeaseLost)
	<-lease.Context().Done()
	require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
}
