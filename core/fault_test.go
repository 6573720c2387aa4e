package core_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// throughProxy returns a locker whose every byte passes a proxy, and a client that goes straight.
func throughProxy(t *testing.T, env *redistest.Env, maxRetries int, opts ...core.Option) (*core.Locker, *redistest.Proxy, *redis.Client) {
	t.Helper()
	proxy := redistest.NewProxy(t, env.Addr)
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: maxRetries})
	l := lockerOn(t, rdb, env.Prefix, append([]core.Option{core.WithRenewalClient(rdb), core.WithFirstLease(3 * time.Second)}, opts...)...)
	return l, proxy, env.Client(t)
}

// once matches the first request that holds all words.
func once(words ...string) func([]byte) bool {
	var done atomic.Bool
	return func(request []byte) bool {
		for _, w := range words {
			if !bytes.Contains(request, []byte(w)) {
				return false
			}
		}
		return done.CompareAndSwap(false, true)
	}
}

const noRetries = -1

// Of one key, and of several.
func TestFault_ALostAcquireReply(t *testing.T) {
	for way, take := range map[string]taking{"one": takes(), "all": copied["all"]} {
		for name, test := range map[string]struct {
			retries int
			away    bool // Redis is out of reach from then on
			left    func(*testing.T, *redis.Client, string)
		}{
			"is answered again with the same grant":      {3, false, requireNothingLeft},
			"leaves nothing behind":                      {noRetries, false, requireNothingLeft},
			"frees itself when Redis stays out of reach": {noRetries, true, requireExpires},
		} {
			t.Run(way+" "+name, func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, env *redistest.Env) {
					l, proxy, direct := throughProxy(t, env, test.retries)
					warm(t, l)
					match := once("lost-key")
					proxy.LoseReply(func(request []byte) bool {
						lost := match(request)
						if lost && test.away {
							go proxy.Refuse(true)
						}
						return lost
					})
					release, err := take(t.Context(), l, "lost-key")
					if test.retries == noRetries {
						require.ErrorIs(t, err, core.ErrUnavailable)
					} else {
						require.NoError(t, err)
						require.NoError(t, release(t.Context()))
					}
					test.left(t, direct, env.Prefix)
				})
			})
		}
	}
}

func TestFault_ACancelledAcquireReturnsAtOnceAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	env := &redistest.Env{Addr: server.Addr, Prefix: "p"}
	l := newLocker(t, env)
	warm(t, l)

	ctx, cancel := context.WithCancelCause(t.Context())
	server.Pause()
	call := acquiringCtx(ctx, l, "k")
	time.Sleep(20 * time.Millisecond) // let the command get under way; either order must hold
	why := errors.New("the client hung up")
	cancel(why)
	err := (<-call).err // Redis has not answered, and will not before Resume
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, why)
	require.NotErrorIs(t, err, core.ErrUnavailable)
	server.Resume()
	requireNothingLeft(t, env.Client(t), env.Prefix)
}

func TestRelease_OfALostLeaseDoesNotWaitForRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	env := &redistest.Env{Addr: server.Addr, Prefix: "p"}
	l := newLocker(t, env, core.WithTTL(500*time.Millisecond))
	lease := testbed.Take(t, l, "k")
	server.Pause()
	<-lease.Context().Done()
	released := make(chan error)
	go func() { released <- lease.Release(t.Context()) }()
	require.ErrorIs(t, <-released, core.ErrLeaseLost) // Redis does not answer before Resume
	server.Resume()
	requireNothingLeft(t, env.Client(t), "p")
}

func TestFault_AFullRedisRefusesNewKeysAndKeepsHeldOnes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	env := &redistest.Env{Addr: server.Addr, Prefix: "p"}
	rdb := env.Client(t)
	var seen recorder
	l := newLocker(t, env, core.WithTTL(9*time.Second), core.WithObserver(&seen))
	lease := testbed.Take(t, l, "k")
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())

	_, err := l.TryAcquire(t.Context(), "other")
	require.ErrorIs(t, err, core.ErrUnavailable)
	require.ErrorContains(t, err, "OOM")
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrConflict)

	seen.awaitRenewal(t)
	require.NoError(t, lease.Context().Err())
	require.NoError(t, lease.Release(t.Context()))
	require.Empty(t, redistest.Keys(t, rdb, "p"))
}

func TestFault_WhateverRedisRefusesWithIsUnavailableAndNeverAConflict(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"LOADING Redis is loading the dataset in memory", "READONLY You can't write against a read only replica.",
		"NOSCRIPT No matching script.", "OOM command not allowed when used memory > 'maxmemory'.", "MASTERDOWN Link with MASTER is down",
		"CLUSTERDOWN Hash slot not served", "NOPERM this user has no permissions", "ERR max number of clients reached",
		"WRONGTYPE Operation against a key holding the wrong kind of value",
	} {
		t.Run(strings.Fields(answer)[0], func(t *testing.T) {
			env := redistest.Embedded(t)
			rdb := env.Client(t)
			rdb.AddHook(hooks{script: func(cmd redis.Cmder, _ func() error) error { return refuse(cmd, redisError(answer)) }})
			l := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb))
			_, err := l.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, core.ErrUnavailable)
			require.NotErrorIs(t, err, core.ErrConflict)
			require.NotErrorIs(t, err, core.ErrLeaseLost)
		})
	}
}

func TestFault_ARedisThatIsDownAtStartIsReportedAndThenUsed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	env := &redistest.Env{Addr: server.Addr, Prefix: "p"}
	l := newLocker(t, env)
	redistest.Eventually(t, func() bool { // a busy machine may be told that there is no reply
		_, err := l.TryAcquire(t.Context(), "k")
		var dial *net.OpError
		return errors.Is(err, core.ErrUnavailable) && errors.As(err, &dial)
	}, "the error of the dial")
	server.Restart(t)
	warm(t, l)
}

// listening waits until the lockers' subscriptions are up.
func listening(t *testing.T, lockers ...*core.Locker) {
	t.Helper()
	for _, l := range lockers {
		redistest.Eventually(t, l.Listening, "a subscription")
	}
}

func warm(t *testing.T, l *core.Locker) {
	t.Helper()
	redistest.Eventually(t, func() bool {
		lease, err := l.TryAcquire(t.Context(), "warm-up")
		return err == nil && lease.Release(t.Context()) == nil
	}, "a Redis that serves")
}

// requireNothingLeft waits until nothing is left in Redis, for less than an orphan lives: what is gone by then was released. It counts
// looks, and no time: on a busy machine they take longer too.
func requireNothingLeft(t *testing.T, rdb *redis.Client, prefix string) {
	t.Helper()
	for looks := 200; len(redistest.Keys(t, rdb, prefix)) > 0; looks-- {
		require.Positive(t, looks, "left in Redis: %v", redistest.Keys(t, rdb, prefix))
		time.Sleep(10 * time.Millisecond)
	}
}

// requireExpires waits until nothing is left in Redis, because it was released or has expired.
func requireExpires(t *testing.T, rdb *redis.Client, prefix string) {
	t.Helper()
	redistest.Eventually(t, func() bool { return len(redistest.Keys(t, rdb, prefix)) == 0 }, "nothing is left in Redis")
}

// The holder is told; a release that Redis did not hear goes on in the background.
func TestFault_AFullPoolIsUnavailable(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		var full atomic.Bool
		rdb := env.Client(t)
		rdb.AddHook(fullPool(&full))
		l := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(rdb), core.WithTTL(500*time.Millisecond))
		lease, released := testbed.Take(t, l, "k"), testbed.Take(t, l, "released", core.LeaseTTL(time.Hour))
		require.NoError(t, released.Extend(t.Context(), time.Hour))
		full.Store(true)
		<-lease.Context().Done()
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		_, err := l.TryAcquire(t.Context(), "other")
		require.ErrorIs(t, err, core.ErrUnavailable)
		require.ErrorIs(t, released.Release(t.Context()), core.ErrUnavailable)
		full.Store(false)
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		requireNothingLeft(t, env.Client(t), env.Prefix)
	})
}
