package core_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// TestLocal_TellsOldestLeasesAndLongestWaits is long since it is one story.
func TestLocal_TellsOldestLeasesAndLongestWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newLocker(t, env, core.WithTTL(20*time.Second))
		assert.Equal(t, core.Local{}, l.Local(5))

		var leases []*core.Lease
		for i := range 4 {
			lease, err := l.TryAcquire(ctx, fmt.Sprintf("held %d", i), core.Named("pay", "x"))
			require.NoError(t, err)
			leases = append(leases, lease)
			time.Sleep(5 * time.Millisecond)
		}
		var calls sync.WaitGroup
		defer calls.Wait()
		defer cancel()
		for i := range 3 {
			calls.Go(func() {
				opts := []core.AcquireOption{core.Named("ship", fmt.Sprint(i))}
				if i == 2 {
					opts = append(opts, core.Shared())
				}
				_, err := l.Acquire(ctx, "held 1", opts...)
				assert.ErrorIs(t, err, context.Canceled)
			})
			redistest.Eventually(t, func() bool { return l.Local(0).Waiting == i+1 }, "the call waits")
			time.Sleep(5 * time.Millisecond)
		}

		local := l.Local(2)
		assert.Equal(t, 4, local.Held)
		assert.Equal(t, 3, local.Waiting)
		require.Len(t, local.Leases, 2)
		require.Len(t, local.Waits, 2)
		for i, lease := range local.Leases {
			assert.Equal(t, leases[i].Key(), lease.Key)
			assert.Equal(t, leases[i].Fence(), lease.Fence)
			assert.Equal(t, "pay", lease.Name)
			assert.Equal(t, core.ModeExclusive, lease.Mode)
			assert.Equal(t, 20*time.Second, lease.TTL)
			assert.Positive(t, lease.Remaining)
			assert.LessOrEqual(t, lease.Remaining, 10*time.Second, "the first lease")
		}
		assert.Greater(t, local.Leases[0].Held, local.Leases[1].Held)
		for i, wait := range local.Waits {
			assert.Equal(t, core.LocalWait{Key: "held 1", Name: "ship", ID: fmt.Sprint(i), Mode: core.ModeExclusive, Waited: wait.Waited}, wait)
		}
		assert.Greater(t, local.Waits[0].Waited, local.Waits[1].Waited)
		assert.Len(t, l.Local(100).Waits, 3)
		assert.Empty(t, l.Local(-1).Leases)

		info, err := l.Inspect(ctx, "held 1")
		require.NoError(t, err)
		assert.Equal(t, 3, info.LocalWaiting, "also the two that only this process knows of")
		info, err = newLocker(t, env).Inspect(ctx, "held 1")
		require.NoError(t, err)
		assert.Zero(t, info.LocalWaiting)

		for _, lease := range leases[2:] {
			require.NoError(t, lease.Release(ctx))
		}
		assert.Equal(t, 2, l.Local(0).Held)
	})
}

// A key that is handed over to another call of the process is as old as that call's lease. Redis need not know
// of the calls that wait for that.
func TestLocal_CountsFromTheHandOver(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) { // where no time passes: a grant is handed over for 50 ms only
		ctx := t.Context()
		l := lockerOn(t, nodes[0].client(t), "p")
		lease, err := l.Acquire(ctx, "k")
		require.NoError(t, err)
		next := merged([]<-chan got{acquiring(t, l, "k"), acquiring(t, l, "k")})
		synctest.Wait()
		require.Equal(t, 2, l.Local(0).Waiting)
		require.NoError(t, lease.Release(ctx))
		first := granted(t, next)
		time.Sleep(time.Millisecond)
		between, err := l.TryAcquire(ctx, "between")
		require.NoError(t, err)
		info, err := l.Inspect(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, 1, info.LocalWaiting)

		time.Sleep(time.Millisecond)
		require.NoError(t, first.Release(ctx))
		second := granted(t, next)
		require.Equal(t, first.Fence()+1, second.Fence(), "it was handed over")
		local := l.Local(2)
		require.Len(t, local.Leases, 2)
		require.Equal(t, between.Fence(), local.Leases[0].Fence)
		require.Equal(t, second.Fence(), local.Leases[1].Fence)
		require.Less(t, local.Leases[1].Held, local.Leases[0].Held)
	})
}

// It misses no lease that stays while others come and go, and stops nobody for long.
func TestLocal_FindsTheOldestBesideCallers(t *testing.T) {
	env := redistest.Embedded(t)
	l := newLocker(t, env)
	const kept = 500
	for i := range kept {
		_, err := l.TryAcquire(t.Context(), fmt.Sprintf("kept %d", i))
		require.NoError(t, err)
	}
	require.Len(t, l.Local(2*kept).Leases, kept)
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				_ = l.Do(ctx, fmt.Sprintf("busy %d", i%2), func(context.Context) error { return nil })
			}
		})
	}
	for range 20 {
		local := l.Local(10)
		assert.GreaterOrEqual(t, local.Held, kept)
		if assert.Len(t, local.Leases, 10) {
			for i, lease := range local.Leases {
				assert.Equal(t, fmt.Sprint("kept ", i), lease.Key)
			}
		}
	}
	cancel()
	callers.Wait()
}

// Renewals move leases about while Local looks.
func TestLocal_ListsNoLeaseTwice(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Real(t), core.WithTTL(500*time.Millisecond))
	for i := range 1000 {
		if _, err := l.TryAcquire(t.Context(), fmt.Sprint(i)); err != nil {
			require.ErrorIs(t, err, core.ErrUnavailable, "the machine is busy")
		}
	}
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); { // a TTL
		seen := map[string]bool{}
		for _, lease := range l.Local(1000).Leases {
			require.False(t, seen[lease.Key], "key %s twice", lease.Key)
			seen[lease.Key] = true
		}
	}
}

// foreign stores names under the prefix of keys that are no keys.
func foreign(t testing.TB, rdb redis.UniversalClient, prefix string, n int) {
	t.Helper()
	const script = `for i = 1, tonumber(ARGV[1]) do redis.call('SET', KEYS[1] .. i, '') end return 1`
	for i := 0; i < n; i += 10_000 {
		require.NoError(t, rdb.Eval(t.Context(), script, []string{fmt.Sprintf("%s%d:", prefix, i)}, min(n-i, 10_000)).Err())
	}
}

func TestList_TakesATwentiethOfARedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	l := lockerOn(t, rdb, "p")
	foreign(t, rdb, "other:", 40_000)
	for i := range 100 {
		_, err := l.TryAcquire(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
	}
	require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
	began := time.Now()
	var sweeps sync.WaitGroup
	for range 2 { // together
		sweeps.Go(func() { assert.Len(t, listAll(t, l, 1000), 100) })
	}
	sweeps.Wait()
	took := time.Since(began)
	var busy time.Duration
	for _, command := range []string{"scan", "evalsha"} {
		busy += time.Duration(stat(t, rdb, "commandstats", `cmdstat_`+command+`:calls=\d+,usec=(\d+)`)) * time.Microsecond
	}
	t.Logf("%s of Redis in %s", busy, took)
	require.Positive(t, busy)
	require.Greater(t, took, 15*busy)

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err := l.List(ctx, "", 1000)
	for cursor := ""; err == nil; {
		var page *core.KeyPage
		if page, err = l.List(ctx, cursor, 1000); err == nil {
			cursor = page.Next
		}
	}
	require.ErrorIs(t, err, context.Canceled)
}
