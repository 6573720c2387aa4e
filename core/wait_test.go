package core_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// untilWoken waits so long between tries that, on a locker that never polls, only a wake-up explains success.
var untilWoken = retry.Policy{Initial: time.Hour, Max: time.Hour, MaxWait: 2 * time.Hour}

// newSleeper returns a locker whose waiting calls rely on being woken.
func newSleeper(t testing.TB, env *redistest.Env) *core.Locker {
	t.Helper()
	l := newLocker(t, env)
	l.NeverPoll()
	return l
}

func TestWait_TheReleaseWakesWaitersOfEveryProcess(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		lockers := []*core.Locker{newSleeper(t, env), newSleeper(t, env), newSleeper(t, env)}
		lease := testbed.Take(t, lockers[0], "k")
		calls := alone{t: t}
		var wg sync.WaitGroup
		for _, l := range lockers {
			for range 5 {
				wg.Go(func() { assert.NoError(t, l.Guard(untilWoken).Do(t.Context(), core.Call{Key: "k"}, calls.work)) })
			}
		}
		listening(t, lockers...)
		release(t, lease)
		wg.Wait()
		require.EqualValues(t, 15, calls.ran.Load())
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

// untilItWaits begins a call for "k", and returns where its error will be when the call waits.
func untilItWaits(t *testing.T, guard *core.Guard) <-chan error {
	waits, done := make(chan struct{}), make(chan error, 1)
	call := core.Call{Key: "k", BeforeWait: func() error { close(waits); return nil }}
	go func() { done <- guard.Do(t.Context(), call, nothing) }()
	<-waits
	return done
}

func TestWait_ALostLeaseWakesTheWaitersOfItsOwnProcess(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newSleeper(t, env)
		lease := testbed.Take(t, l, "k")
		done := untilItWaits(t, l.Guard(untilWoken))
		require.NoError(t, env.Client(t).Del(t.Context(), env.Prefix+":lock{}:k").Err())
		require.NoError(t, <-done)
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
	})
}

// Also after a wait that was of no use, and for keys that another process holds.
func TestGuard_OnFreeIsCalledOnceForAKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		holder, other := newLocker(t, env), newLocker(t, env)
		free := make(chan string, 10)
		for name, policy := range map[string]core.ConflictPolicy{"rejects": nil, "waits": retry.Policy{MaxWait: 5 * time.Millisecond}} {
			for _, l := range []*core.Locker{holder, other} {
				guard := l.Guard(policy).OnFree(func(_ context.Context, key string) { free <- key })
				require.NoError(t, guard.Err())
				run := func(context.Context) error { return errors.New("ran") }
				lease := testbed.Take(t, holder, "k")
				var calls sync.WaitGroup
				for range 5 {
					calls.Go(func() { assert.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k"}, run), core.ErrConflict) })
				}
				calls.Wait()
				listening(t, l)
				require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k"}, run), core.ErrConflict)
				time.Sleep(20 * time.Millisecond)
				for len(free) > 0 { // a new subscription makes everybody look
					<-free
				}
				require.ErrorIs(t, guard.Do(t.Context(), core.Call{Key: "k"}, run), core.ErrConflict)
				require.NoError(t, lease.Release(t.Context()))
				require.Equal(t, "k", <-free, name)
				require.EqualError(t, guard.Do(t.Context(), core.Call{Key: "k"}, run), "ran")
				require.Empty(t, free)
			}
		}
		require.ErrorIs(t, holder.Guard(core.RejectConflicts).OnFree(nil).Err(), core.ErrInvalidOption)
		require.ErrorIs(t, (*core.Guard)(nil).OnFree(nil).Err(), core.ErrInvalidOption)
	})
}

func TestWait_WaitersOfOneProcessCostOneScriptTogether(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		rdb := nodes[0].client(t)
		scripts := countSends(rdb)
		l := lockerOn(t, rdb, "p", core.WithRenewalClient(rdb))
		l.NeverPoll()
		warm(t, l) // loads the scripts
		lease := testbed.Take(t, l, "k")
		const calls = 50
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() { assert.NoError(t, l.Guard(untilWoken).Do(t.Context(), core.Call{Key: "k"}, nothing)) })
		}
		listening(t, l)
		synctest.Wait() // all wait
		scripts.Store(0)
		require.NoError(t, lease.Release(t.Context()))
		wg.Wait()
		synctest.Wait()
		require.EqualValues(t, 1, scripts.Load(), "the key goes from call to call, and the last one releases it")
	})
}

func TestClose_SendsWaitersAwayAndTellsHolders(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		lease := acquired(t, l, "k")
		done := untilItWaits(t, l.Guard(untilWoken))
		require.NoError(t, l.Close())
		require.NoError(t, l.Close(), "twice")
		require.ErrorIs(t, <-done, core.ErrClosed)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrClosed)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
		require.ErrorIs(t, errOf(l.TryAcquire(t.Context(), "other")), core.ErrClosed)

		refused(t, newLocker(t, env), "k") // its holder may still be at work
		require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix), "released nevertheless")
	})
}

// shutDown begins a Shutdown, and returns when new calls are refused.
func shutDown(t *testing.T, l *core.Locker) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- l.Shutdown(t.Context()) }()
	redistest.Eventually(t, func() bool {
		other, err := l.TryAcquire(t.Context(), "other")
		if err == nil {
			_ = other.Release(t.Context())
		}
		return errors.Is(err, core.ErrClosed)
	}, "new calls are refused")
	return done
}

func TestShutdown_WaitsForHolders(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		lease := acquired(t, l, "k")
		done := shutDown(t, l)
		require.NoError(t, lease.Context().Err(), "work goes on")
		release(t, lease)
		require.NoError(t, <-done)
		require.NoError(t, l.Shutdown(t.Context()), "twice")

		l = newLocker(t, env)
		lease = acquired(t, l, "k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, l.Shutdown(ctx), context.Canceled)
		require.ErrorIs(t, context.Cause(lease.Context()), core.ErrClosed)
	})
}
