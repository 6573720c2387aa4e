package core_test

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// detach gives a lease away, by its token.
func detach(t testing.TB, lease *core.Lease) string {
	t.Helper()
	token, err := lease.Detach(t.Context())
	require.NoError(t, err)
	return token
}

func resume(t testing.TB, l *core.Locker, token string, opts ...core.AcquireOption) *core.Lease {
	t.Helper()
	lease, err := l.Resume(t.Context(), token, opts...)
	require.NoError(t, err)
	return lease
}

// eachMode runs test with a lease of every mode, taken by a locker on env.
func eachMode(t *testing.T, test func(t *testing.T, env *redistest.Env, opt core.AcquireOption)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, opt := range map[string]core.AcquireOption{"exclusive": core.Named("", ""), "shared": core.Shared(), "counted": core.Counted(2)} {
			t.Run(name, func(t *testing.T) {
				env := *env
				env.Prefix += name
				test(t, &env, opt)
			})
		}
	})
}

func TestTransfer_ADetachedLeaseIsResumedElsewhere(t *testing.T) {
	eachMode(t, func(t *testing.T, env *redistest.Env, opt core.AcquireOption) {
		ctx := t.Context()
		var seen recorder
		from, to := newLocker(t, env), newLocker(t, env, core.WithObserver(&seen))
		lease := testbed.Take(t, from, "k", opt, core.LeaseTTL(9*time.Second))
		token := detach(t, lease)
		require.Regexp(t, `^pk1\.[A-Za-z0-9_-]+$`, token)
		require.ErrorIs(t, lease.Context().Err(), context.Canceled)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrDetached)
		require.NotErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		require.NoError(t, lease.Release(ctx), "it does nothing")
		require.NoError(t, lease.Release(ctx), "twice")
		require.ErrorIs(t, lease.Extend(ctx, time.Second), core.ErrDetached)
		require.Empty(t, lease.Token())
		require.ErrorIs(t, errOf(lease.Detach(ctx)), core.ErrDetached)
		require.NoError(t, from.Shutdown(ctx), "nothing is left to wait for")

		resumed := resume(t, to, token)
		require.Equal(t, "k", resumed.Key())
		require.Equal(t, lease.Fence(), resumed.Fence())
		require.Equal(t, token, resumed.Token())
		seen.awaitRenewal(t)
		require.NoError(t, resumed.Context().Err())
		require.ErrorIs(t, errOf(to.TryAcquire(ctx, "k")), core.ErrConflict)
		require.NoError(t, to.Do(resumed.Context(), "k", func(ctx context.Context) error {
			inner, _ := core.LeaseFrom(ctx)
			require.Equal(t, resumed.Fence(), inner.Fence())
			return nil
		}, opt), "the ctx holds the key")
		require.NoError(t, resumed.Extend(ctx, time.Minute))
		require.NoError(t, resumed.Release(ctx))
		require.Empty(t, resumed.Token())
		require.ErrorIs(t, errOf(to.Resume(ctx, token)), core.ErrLeaseLost)
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

func TestTransfer_ADetachedLeaseRunsOutAfterItsTTL(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, rdb *redis.Client, m *miniredis.Miniredis, _ func()) {
		l, err := core.New(rdb, core.WithRenewalClient(rdb), core.WithTTL(10*time.Second))
		require.NoError(t, err)
		for _, extend := range []time.Duration{time.Second, time.Minute} {
			lease := testbed.Take(t, l, "k", core.MaxHold(20*time.Second))
			require.NoError(t, lease.Extend(t.Context(), extend))
			token := detach(t, lease)
			left := max(10*time.Second, extend)
			require.InDelta(t, left, m.TTL(record), float64(time.Second))
			time.Sleep(left - 2*time.Second)
			refused(t, l, "k")
			time.Sleep(3 * time.Second)
			next := testbed.Take(t, l, "k")
			require.ErrorIs(t, errOf(l.Resume(t.Context(), token)), core.ErrLeaseLost)
			require.NoError(t, next.Context().Err())
			require.NoError(t, next.Release(t.Context()))
		}
		require.NoError(t, l.Close())
	})
}

func TestTransfer_BothHoldTheKeyByATokenAndEitherReleasesIt(t *testing.T) {
	eachMode(t, func(t *testing.T, env *redistest.Env, opt core.AcquireOption) {
		ctx := t.Context()
		var seen [2]recorder
		from, to := newLocker(t, env, core.WithObserver(&seen[0])), newLocker(t, env, core.WithObserver(&seen[1]))
		hold := func() (taken, resumed *core.Lease) {
			taken = testbed.Take(t, from, "k", opt, core.LeaseTTL(9*time.Second))
			resumed = resume(t, to, taken.Token())
			require.Equal(t, taken.Fence(), resumed.Fence())
			return taken, resumed
		}
		taken, resumed := hold()
		for i := range seen {
			seen[i].awaitRenewal(t)
		}
		require.NoError(t, taken.Context().Err())
		require.NoError(t, resumed.Context().Err())
		listening(t, from)
		require.NoError(t, resumed.Release(ctx))
		endsLost(t, taken)
		require.ErrorIs(t, taken.Release(ctx), core.ErrLeaseLost)

		taken, resumed = hold()
		require.NoError(t, taken.Release(ctx))
		endsLost(t, resumed)
		require.ErrorIs(t, resumed.Release(ctx), core.ErrLeaseLost)

		taken, resumed = hold()
		_ = detach(t, resumed)
		require.NoError(t, taken.Extend(ctx, time.Minute), "who is done earlier detaches")
		require.NoError(t, taken.Release(ctx))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

func TestTransfer_ALeaseResumedInItsOwnProcess(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, l := t.Context(), newLocker(t, env)
		taken := acquired(t, l, "k")
		resumed := resume(t, l, taken.Token())
		require.NoError(t, resumed.Release(ctx))
		require.ErrorIs(t, context.Cause(taken.Context()), core.ErrLeaseLost, "told before the release returns")
		require.ErrorIs(t, taken.Release(ctx), core.ErrLeaseLost)
		requireNothingLeft(t, env.Client(t), env.Prefix)
	})
}

func TestTransfer_AGrantWhoseTokenLeftIsNotHandedOver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		for range 20 {
			l, other := newLocker(t, env), newLocker(t, env)
			first := acquired(t, l, "k")
			next := acquiring(t, l, "k")
			token := first.Token()
			time.Sleep(time.Millisecond)
			resumed := resume(t, other, token)
			require.NoError(t, first.Release(ctx))
			second := granted(t, next)
			require.Greater(t, second.Fence(), first.Fence()+1)
			require.Empty(t, first.Token(), "the key is another's")
			require.ErrorIs(t, resumed.Release(ctx), core.ErrLeaseLost)
			require.NoError(t, second.Extend(ctx, time.Minute), "and stays so")
			require.NoError(t, second.Release(ctx))
		}
	})
}

func TestTransfer_TheReentrantHandleOfADetachedLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, l := t.Context(), newLocker(t, env)
		var token string
		require.NoError(t, l.Do(ctx, "k", func(ctx context.Context) error {
			return l.Do(ctx, "k", func(ctx context.Context) error {
				inner, _ := core.LeaseFrom(ctx)
				require.NotEmpty(t, inner.Token())
				var err error
				token, err = inner.Detach(ctx)
				require.ErrorIs(t, context.Cause(ctx), core.ErrDetached)
				return err
			})
		}))
		lease := resume(t, l, token)
		require.NoError(t, lease.Release(ctx))
	})
}

func TestTransfer_ALeaseCanBeDetachedWhileItsLockerShutsDown(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, l := t.Context(), newLocker(t, env)
		lease := testbed.Take(t, l, "k")
		done := shutDown(t, l)
		require.ErrorIs(t, errOf(l.Resume(ctx, lease.Token())), core.ErrClosed)
		token := detach(t, lease)
		require.NoError(t, <-done)
		next := newLocker(t, env)
		lease = resume(t, next, token)
		require.NoError(t, lease.Release(ctx))
	})
}

func TestTransfer_ALostLeaseCannotBeDetached(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, l := t.Context(), newLocker(t, env)
		lease := testbed.Take(t, l, "k")
		token := lease.Token()
		require.NoError(t, env.Client(t).Del(ctx, core.RecordName(env.Prefix, "k")).Err())
		_, err := l.Resume(ctx, token)
		require.ErrorIs(t, err, core.ErrLeaseLost)
		require.ErrorIs(t, errOf(lease.Detach(ctx)), core.ErrLeaseLost)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		require.Empty(t, lease.Token())
	})
}

func TestResume_TakesOptionsThatComeInTime(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		var seen recorder
		from, to := newLocker(t, env), newLocker(t, env, core.WithObserver(&seen))
		lease := testbed.Take(t, from, "k", core.Counted(2))
		token := detach(t, lease)
		for _, opt := range []core.AcquireOption{core.Shared(), core.Counted(3), core.NotifyRelease(make(chan string)), reservations.Reserved(time.Minute), core.LeaseTTL(0), nil} {
			require.ErrorIs(t, errOf(to.Resume(ctx, token, opt)), core.ErrInvalidOption)
		}
		resumed := resume(t, to, token, core.Counted(2), core.MaxHold(300*time.Millisecond), core.LeaseTTL(200*time.Millisecond), core.Named("job", "7"))
		acquired := seen.lastOutcome()
		require.Equal(t, core.OutcomeAcquired, acquired.Kind)
		require.Equal(t, "job", acquired.Name)
		require.True(t, acquired.Resumed)
		start := time.Now()
		<-resumed.Context().Done()
		require.LessOrEqual(t, time.Since(start), 300*time.Millisecond)
		require.Greater(t, time.Since(start), 200*time.Millisecond, "it was renewed")
		require.ErrorIs(t, context.Cause(resumed.Context()), core.ErrLeaseLost)
	})
}

func TestTransfer_ADowngradedLeaseIsTransferredAsShared(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		from, to := newLocker(t, env), newLocker(t, env)
		lease := acquired(t, from, "k")
		for before := int64(0); lease.Fence() != before+1; { // until one was handed over, whose fence is not its grant's first
			next := acquiring(t, from, "k")
			time.Sleep(2 * time.Millisecond)
			before = lease.Fence()
			release(t, lease)
			lease = granted(t, next)
		}
		early := lease.Token()
		require.NoError(t, lease.Downgrade(ctx))
		require.ErrorIs(t, errOf(to.Resume(ctx, early)), core.ErrLeaseLost)
		token := detach(t, lease)
		resumed := resume(t, to, token)
		require.Equal(t, lease.Fence(), resumed.Fence())
		var other *core.Lease
		redistest.Eventually(t, func() bool {
			var err error
			other, err = from.TryAcquire(ctx, "k", core.Shared())
			return err == nil
		}, "shared, when the question of the call that was passed the key has left the queue")
		require.NoError(t, resumed.Extend(ctx, time.Minute), "it is held all the while")
		release(t, other, resumed)
	})
}

func TestResume_WithoutRedisOrCaller(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	token := testbed.Take(t, newLocker(t, env), "k").Token()
	l := newLocker(t, env)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, errOf(l.Resume(gone, token)), context.Canceled)
	down := lockerOn(t, redistest.Client(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: noRetries, DialerRetries: 1}), env.Prefix)
	err := errOf(down.Resume(t.Context(), token))
	require.ErrorIs(t, err, core.ErrUnavailable)
	require.NotErrorIs(t, err, core.ErrLeaseLost)
	other := lockerOn(t, env.Client(t), env.Prefix+"x")
	require.ErrorIs(t, errOf(other.Resume(t.Context(), token)), core.ErrInvalidToken)
	require.NoError(t, l.Close())
	require.ErrorIs(t, errOf(l.Resume(t.Context(), token)), core.ErrClosed)
}

func TestTransfer_JunkIsNoToken(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Embedded(t))
	lease := testbed.Take(t, l, "k")
	token := lease.Token()
	junk := []string{
		"", "pk1.", "pk1", "pk2." + token[4:], token + "=", token + "A", token + "\n", " " + token, token[:len(token)-1], token[4:],
		"pk1." + strings.Repeat("A", 1020), "pk1." + strings.Repeat("A", 1<<20), "pk1.AAAAAA",
	}
	for i := range token {
		other := byte('A')
		if token[i] == other {
			other = 'B'
		}
		junk = append(junk, token[:i]+string(other)+token[i+1:], token[:i]+token[i+1:])
	}
	for _, j := range junk {
		_, err := l.Resume(t.Context(), j)
		require.ErrorIs(t, err, core.ErrInvalidToken, j)
		require.Less(t, len(err.Error()), 200)
	}
	require.NoError(t, lease.Release(t.Context()))
}

func TestTransfer_TheLongestTokenFits(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	env.Prefix = strings.Repeat("p", 64)
	l := newLocker(t, env)
	key := strings.Repeat("\xff", core.MaxKeyLen)
	lease := testbed.Take(t, l, key, core.Counted(core.MaxCount), core.LeaseTTL(core.MaxTTL))
	require.LessOrEqual(t, len(lease.Token()), 1024)
	resumed := resume(t, l, lease.Token())
	require.Equal(t, key, resumed.Key())
	require.NoError(t, resumed.Release(t.Context()))
}

func FuzzToken(f *testing.F) {
	for _, fields := range []core.TokenFields{
		{Prefix: "perkey", Key: "k", Owner: "1:host/1/0a0b0c0d.0123456789abcdef01234567", First: 1795244077832760, TTL: 15 * time.Second},
		{Prefix: "p", Key: "order:{42}", Owner: "0:/1/0a0b0c0d.0123456789abcdef01234567", First: 1, TTL: 100 * time.Millisecond},
		{Prefix: "p", Key: "ü", Owner: "1:h/1/0a0b0c0d.0123456789abcdef01234567", First: 1, Used: 65535, TTL: 24 * time.Hour},
	} {
		token := core.NewToken(fields)
		if err := core.ParseToken(token); err != nil {
			f.Fatal(err)
		}
		f.Add(token)
		f.Add(token[:len(token)-3])
	}
	for _, spoil := range []func(*core.TokenFields){
		func(f *core.TokenFields) { f.Owner = "1:h/1/a. @~+" },
		func(f *core.TokenFields) { f.Owner = "0" + f.Owner },
		func(f *core.TokenFields) { f.Owner = "1:h 1/a.0123456789abcdef01234567" },
		func(f *core.TokenFields) { f.Prefix = "p{" },
		func(f *core.TokenFields) { f.Key = "" },
		func(f *core.TokenFields) { f.First = 0 },
		func(f *core.TokenFields) { f.First = -1 },
		func(f *core.TokenFields) { f.Used = 65536 },
		func(f *core.TokenFields) { f.TTL = time.Millisecond },
		func(f *core.TokenFields) { f.TTL = 25 * time.Hour },
	} {
		bad := core.TokenFields{Prefix: "p", Key: "k", Owner: "1:h/1/a.0123456789abcdef01234567", First: 1, TTL: time.Second}
		spoil(&bad)
		token := core.NewToken(bad)
		if core.ParseToken(token) == nil {
			f.Fatalf("%+v is accepted", bad)
		}
		f.Add(token)
	}
	plain := regexp.MustCompile(`^pk1\.[A-Za-z0-9_-]+$`)
	f.Fuzz(func(t *testing.T, text string) {
		if core.ParseToken(text) == nil && (!plain.MatchString(text) || len(text) > 1024) {
			t.Errorf("accepted %q", text)
		}
		// With the right checksum, so that the fields are looked at.
		_ = core.ParseToken(core.Sealed(text))
	})
}

// A Detach that failed leaves the lease as it was: it is handed over within its process.
func TestDetach_ThatFailedLeavesTheLeaseAsItWas(t *testing.T) {
	t.Parallel()
	inVirtualTime(t, func(t *testing.T, rdb *redis.Client, _ *miniredis.Miniredis, _ func()) {
		refused, releases := redisError("ERR refused"), atomic.Int32{}
		rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
			switch {
			case isScript(cmd, "renew"):
				return refuse(cmd, refused)
			case isScript(cmd, "release"):
				releases.Add(1)
			}
			return next()
		}})
		l, err := core.New(rdb, core.WithRenewalClient(rdb))
		require.NoError(t, err)
		first := testbed.Take(t, l, "k")
		require.ErrorIs(t, errOf(first.Detach(t.Context())), refused)
		require.NoError(t, first.Context().Err())
		var callers sync.WaitGroup
		run := make(chan struct{})
		for range 10 {
			callers.Go(func() { assert.NoError(t, l.Do(t.Context(), "k", func(context.Context) error { <-run; return nil })) })
		}
		synctest.Wait()
		assert.NoError(t, first.Release(t.Context()))
		assert.Zero(t, releases.Load())
		close(run)
		callers.Wait()
		require.NoError(t, l.Close())
	})
}
