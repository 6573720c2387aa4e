package core_test

import (
	"context"
	"encoding"
	"errors"
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
		l, err := core.New(rdb, core.WithRenewalClient(rdb))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		err = l.Do(ctx, "k", func(context.Context) error {
			cancel()
			m.Del(record)
			time.Sleep(10 * time.Second) // a renewal finds it gone
			return nil
		})
		require.ErrorIs(t, err, core.ErrLeaseLost)
		require.NoError(t, l.Close())
	})
}

func TestLease_ALateCopyOfAnAcquireDoesNotShortenTheLease(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis, _ func()) {
		holder, err := core.New(rdb, core.WithRenewalClient(rdb))
		require.NoError(t, err)
		_, err = holder.TryAcquire(t.Context(), "k")
		require.NoError(t, err)

		client := redis.NewClient(rdb.Options())
		var first []any
		client.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
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
		waiting, err := core.New(client)
		require.NoError(t, err)
		granted := make(chan *core.Lease)
		go func() {
			lease, err := waiting.Acquire(t.Context(), "k", core.FixedLease(3*time.Second))
			if err != nil {
				t.Error(err)
			}
			granted <- lease
		}()
		time.Sleep(100 * time.Millisecond)
		m.Del(record)
		require.NoError(t, rdb.Do(t.Context(), first...).Err()) // what go-redis sent before it sent again
		lease := <-granted
		<-lease.Context().Done()
		require.Positive(t, m.TTL(record), "its ctx ends before Redis gives the key away")
		_ = client.Close()
		require.NoError(t, waiting.Close())
		require.NoError(t, holder.Close())
	})
}

func TestLease_AReleaseThatRedisRefusedIsNotTakenForDone(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	var loading atomic.Bool
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		if loading.CompareAndSwap(true, false) {
			return refuse(cmd, redisError("LOADING Redis is loading the dataset in memory"))
		}
		return next()
	}})
	l := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb))
	lease, err := l.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.NoError(t, env.Client(t).Del(t.Context(), core.RecordName(env.Prefix, "k")).Err())
	_, err = newLocker(t, env).TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	loading.Store(true)
	require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
}

func TestShutdown_EndsWithItsCtxWhenRedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := newLocker(t, &redistest.Env{Addr: server.Addr, Prefix: "p"})
	warm(t, l)
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := l.Acquire(ctx, "k")
		done <- err
	}()
	time.Sleep(20 * time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.ErrorIs(t, l.Shutdown(ctx), context.Canceled) // Redis does not answer before Resume
}

func TestLease_RenewalsThatHangOrFailAreSentAgain(t *testing.T) {
	for name, trouble := range map[string]func(next func() error) error{
		"a dead connection": func(next func() error) error {
			time.Sleep(3 * time.Second) // go-redis's read time-out, then the command again
			return next()
		},
		"an error": func(func() error) error { return errors.New("broken pipe") },
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, rdb *redis.Client, _ *miniredis.Miniredis, _ func()) {
				var n atomic.Int64
				rdb.AddHook(hooks{pipeline: func(next func() error) error {
					if n.Add(1)%3 == 1 {
						return trouble(next)
					}
					return next()
				}})
				l, err := core.New(rdb, core.WithRenewalClient(rdb))
				require.NoError(t, err)
				lease := testbed.Take(t, l, "k")
				time.Sleep(2 * time.Minute)
				require.NoError(t, lease.Context().Err())
				require.NoError(t, lease.Release(t.Context()))
				time.Sleep(3 * time.Second) // Close does not wait so long for a renewal that hangs
				require.NoError(t, l.Close())
			})
		})
	}
}

func TestLease_TrustCountsFromTheSendNotFromTheReply(t *testing.T) {
	const late = time.Second
	t.Run("acquire", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis, _ func()) {
			rdb.AddHook(hooks{script: func(_ redis.Cmder, next func() error) error {
				defer time.Sleep(late)
				return next()
			}})
			l, err := core.New(rdb, core.WithRenewalClient(rdb))
			require.NoError(t, err)
			lease := testbed.Take(t, l, "k", core.FixedLease(3*time.Second))
			<-lease.Context().Done()
			require.Positive(t, m.TTL(record))
			require.NoError(t, l.Close())
		})
	})
	t.Run("renew", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis, cut func()) {
			rdb.AddHook(hooks{pipeline: func(next func() error) error {
				err := next()
				time.Sleep(late)
				cut()
				return err
			}})
			l, err := core.New(rdb, core.WithRenewalClient(rdb), core.WithTTL(10*time.Second))
			require.NoError(t, err)
			lease := testbed.Take(t, l, "k")
			require.NoError(t, lease.Extend(t.Context(), core.MinTTL)) // loads the script
			<-lease.Context().Done()
			require.Positive(t, m.TTL(record))
			require.NoError(t, l.Close())
		})
	})
}

func TestLease_NothingIsRenewedThatIsReleasedOrFixed(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, rdb *redis.Client, _ *miniredis.Miniredis, _ func()) {
		var renewals atomic.Int64
		rdb.AddHook(hooks{pipeline: func(next func() error) error {
			renewals.Add(1)
			return next()
		}})
		l, err := core.New(rdb, core.WithRenewalClient(rdb))
		require.NoError(t, err)
		lease := testbed.Take(t, l, "k")
		require.NoError(t, lease.Extend(t.Context(), core.MinTTL)) // loads the script
		require.NoError(t, lease.Release(t.Context()))
		time.Sleep(time.Minute)
		require.Zero(t, renewals.Load())

		lease, err = l.TryAcquire(t.Context(), "k", core.FixedLease(time.Minute))
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		require.EqualValues(t, 1, renewals.Load(), "the one that confirms it")
		require.NoError(t, l.Close())
	})
}

func TestLease_EveryCtxOfALeaseIsOverBeforeItsReleaseIsSent(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	var outer, inner *core.Lease
	var err error
	alive := 0
	rdb.AddHook(hooks{script: func(_ redis.Cmder, next func() error) error {
		if inner != nil {
			for _, ctx := range []context.Context{outer.Context(), inner.Context()} {
				select {
				case <-ctx.Done():
				default:
					alive++
				}
			}
		}
		return next()
	}})
	l := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb))
	type name struct{}
	for range 100 {
		inner = nil
		outer, err = l.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		loose := context.WithValue(context.WithoutCancel(outer.Context()), name{}, "value")
		inner, err = l.TryAcquire(loose, "k")
		require.NoError(t, err)
		require.Equal(t, "value", inner.Context().Value(name{}))
		require.NoError(t, outer.Release(t.Context()))
		require.ErrorIs(t, inner.Context().Err(), context.Canceled)
	}
	require.Zero(t, alive)

	inner = nil
	outer, err = l.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(outer.Context())
	again, err := l.TryAcquire(ctx, "k")
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, again.Context().Err(), context.Canceled, "the end of the caller's ctx, at once")
	require.NoError(t, outer.Context().Err())
	require.NoError(t, outer.Release(t.Context()))
}

func TestRelease_WorksWithoutChannelRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	env := &redistest.Env{Addr: server.Addr, Prefix: "p"}
	require.NoError(t, env.Client(t).Do(t.Context(), "ACL", "SETUSER", "svc", "on", ">pw", "~p:*", "+@all", "resetchannels").Err())
	var scripts atomic.Int64
	locker := func() *core.Locker {
		rdb := redistest.Client(t, &redis.Options{Addr: server.Addr, Username: "svc", Password: "pw"})
		first := scripts.Load() == 0
		rdb.AddHook(hooks{script: func(_ redis.Cmder, next func() error) error {
			if first {
				scripts.Add(1)
			}
			return next()
		}})
		return lockerOn(t, rdb, "p", core.WithRenewalClient(rdb))
	}
	holder := locker()
	warm(t, holder)
	waiting := locker()
	lease, err := holder.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = waiting.Acquire(ctx, "k") // names itself in the record
	require.ErrorIs(t, err, context.DeadlineExceeded)
	scripts.Store(0)
	require.NoError(t, lease.Release(t.Context()))
	require.EqualValues(t, 1, scripts.Load())
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
		for range 50 {
			ctx, cancel := context.WithCancel(t.Context())
			leave.Store(&cancel)
			_, err := l.Acquire(ctx, "k")
			require.ErrorIs(t, err, context.Canceled)
			requireNothingLeft(t, nodes[0].client(t), "p")
		}
	})
}

func TestLease_AGrantThatIsOverWhenItIsLookedAtIsNoPanic(t *testing.T) {
	t.Parallel()
	now := time.Now()
	require.False(t, core.RenewalTime(now, -time.Minute).After(now))
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
