package core_test

import (
	"context"
	"encoding"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

const record = "perkey:lock{}:k"

func TestLease_DoReportsALossThatCameAfterTheCallerLeft(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis, _ func()) {
		l := lockerOn(t, rdb, "perkey", core.WithRenewalClient(rdb))
		ctx, cancel := context.WithCancel(t.Context())
		err := l.Do(ctx, "k", func(context.Context) error {
			cancel()
			m.Del(record)
			time.Sleep(10 * time.Second) // a renewal finds it gone
			return nil
		})
		require.ErrorIs(t, err, core.ErrLeaseLost)
	})
}

func TestLease_ALateCopyOfAnAcquireDoesNotShortenTheLease(t *testing.T) {
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		rdb, first := nodes[0].client(t), []any(nil)
		rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
			if first == nil {
				first = redistest.Args(cmd)
				for i, arg := range first {
					if bound, ok := arg.(encoding.BinaryMarshaler); ok {
						text, _ := bound.MarshalBinary()
						first[i] = string(text)
					}
				}
			}
			return next()
		}})
		testbed.Take(t, lockerOn(t, nodes[0].client(t), "perkey"), "k")
		next := acquiring(t, lockerOn(t, rdb, "perkey"), "k", core.FixedLease(3*time.Second))
		time.Sleep(100 * time.Millisecond)
		nodes[0].Del(record)
		require.NoError(t, rdb.Do(t.Context(), first...).Err()) // what go-redis sent before it sent again
		<-granted(t, next).Context().Done()
		require.Positive(t, nodes[0].TTL(record), "its ctx ends before Redis gives the key away")
	})
}

func TestLease_NothingIsRenewedThatIsReleasedOrFixed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, rdb *redis.Client, _ *miniredis.Miniredis, _ func()) {
		var renewals atomic.Int64
		rdb.AddHook(hooks{pipeline: func(next func() error) error {
			renewals.Add(1)
			return next()
		}})
		l := lockerOn(t, rdb, "perkey", core.WithRenewalClient(rdb))
		lease := testbed.Take(t, l, "k")
		require.NoError(t, lease.Extend(t.Context(), core.MinTTL)) // loads the script
		require.NoError(t, lease.Release(t.Context()))
		time.Sleep(time.Minute)
		require.Zero(t, renewals.Load())

		lease = testbed.Take(t, l, "k", core.FixedLease(time.Minute))
		time.Sleep(2 * time.Minute)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		require.EqualValues(t, 1, renewals.Load(), "the one that confirms it")
	})
}

func TestLease_EveryCtxOfALeaseIsOverBeforeItsReleaseIsSent(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	var outer, inner *core.Lease
	var err error
	alive := 0
	l := hooked(t, env, hooks{script: func(_ redis.Cmder, next func() error) error {
		if inner != nil {
			for _, lease := range []*core.Lease{outer, inner} {
				select {
				case <-lease.Context().Done():
				default:
					alive++
				}
			}
		}
		return next()
	}})
	type name struct{}
	for range 100 {
		inner = nil
		outer = testbed.Take(t, l, "k")
		loose := context.WithValue(context.WithoutCancel(outer.Context()), name{}, "value")
		inner, err = l.TryAcquire(loose, "k")
		require.NoError(t, err)
		require.Equal(t, "value", inner.Context().Value(name{}))
		require.NoError(t, outer.Release(t.Context()))
		require.ErrorIs(t, inner.Context().Err(), context.Canceled)
	}
	require.Zero(t, alive)

	inner = nil
	outer = testbed.Take(t, l, "k")
	ctx, cancel := context.WithCancel(outer.Context())
	again, err := l.TryAcquire(ctx, "k")
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, again.Context().Err(), context.Canceled, "the end of the caller's ctx, at once")
	require.NoError(t, outer.Context().Err())
	require.NoError(t, outer.Release(t.Context()))
}

func TestLease_AGrantThatComesAsTheCallerLeavesIsGivenBack(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		rdb := nodes[0].client(t)
		var leave atomic.Pointer[context.CancelFunc]
		rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
			err := next()
			if isScript(cmd, "acquire") { // and not the release of the grant before
				(*leave.Load())()
			}
			return err
		}})
		l := lockerOn(t, rdb, "p", core.WithRenewalClient(rdb))
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			leave.Store(&cancel)
			require.ErrorIs(t, errOf(l.Acquire(ctx, "k")), context.Canceled)
			requireNothingLeft(t, nodes[0].client(t), "p")
		}
	})
}

func TestRenewalTime_FewBatchesAndNoneTooLate(t *testing.T) {
	t.Parallel()
	for ttl, most := range map[time.Duration]int{100 * time.Millisecond: 6, 3 * time.Second: 6, 10 * time.Second: 16, 30 * time.Second: 18, time.Hour: 18} {
		now, third, batches := time.Now(), ttl/3, map[time.Time]bool{}
		for range 2000 {
			sent := now.Add(rand.N(third))
			at := core.RenewalTime(sent, ttl)
			require.LessOrEqual(t, at.Sub(sent), third, ttl)
			require.GreaterOrEqual(t, at.Sub(sent), third*2/3, ttl)
			batches[at] = true
		}
		require.LessOrEqual(t, len(batches), most, "%s: batches in a third of it", ttl)
		require.Greater(t, len(batches), 3, ttl)
	}
}
