package core_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// TestLocal_TellsOldestLeasesAndLongestWaits is long since it is one story.
func TestLocal_TellsOldestLeasesAndLongestWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newLocker(t, env, core.WithTTL(20*time.Second))
		assert.Equal(t, core.Local{}, l.Local(5))

		var leases []*core.Lease
		for i := range 4 {
			leases = append(leases, testbed.Take(t, l, fmt.Sprintf("held %d", i), core.Named("pay", "x")))
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
			assert.Equal(t, []any{leases[i].Key(), leases[i].Fence(), "pay", core.ModeExclusive, 20 * time.Second}, []any{lease.Key, lease.Fence, lease.Name, lease.Mode, lease.TTL})
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
		lease := acquire(t, l, "k")
		next := merged([]<-chan got{acquiring(t, l, "k"), acquiring(t, l, "k")})
		synctest.Wait()
		require.Equal(t, 2, l.Local(0).Waiting)
		require.NoError(t, lease.Release(ctx))
		first := granted(t, next)
		time.Sleep(time.Millisecond)
		between := testbed.Take(t, l, "between")
		info, err := l.Inspect(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, 1, info.LocalWaiting)

		time.Sleep(time.Millisecond)
		require.NoError(t, first.Release(ctx))
		second := granted(t, next)
		require.Equal(t, first.Fence()+1, second.Fence(), "it was handed over")
		local := l.Local(2).Leases
		require.Equal(t, []int64{between.Fence(), second.Fence()}, []int64{local[0].Fence, local[1].Fence})
		require.Less(t, local[1].Held, local[0].Held)
	})
}

// It misses no lease that stays while others come and go, and lists none twice while they are extended, which moves them about.
func TestLocal_FindsTheOldestBesideCallers(t *testing.T) {
	t.Parallel()
	const kept = 200
	l := newLocker(t, redistest.Embedded(t))
	var leases []*core.Lease
	for i := range kept {
		leases = append(leases, testbed.Take(t, l, fmt.Sprintf("kept %d", i)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 4 {
		callers.Go(func() {
			for n := i; ctx.Err() == nil; n += 4 {
				_ = l.Do(ctx, fmt.Sprintf("busy %d", i%2), nothing)
				_ = leases[n%kept].Extend(ctx, time.Minute+time.Duration(n)*time.Second)
			}
		})
	}
	for range 20 {
		local, keys := l.Local(2*kept), map[string]bool{}
		assert.GreaterOrEqual(t, len(local.Leases), kept)
		for i, lease := range local.Leases {
			assert.True(t, i >= kept || lease.Key == fmt.Sprint("kept ", i), "number %d is %s", i, lease.Key)
			assert.False(t, keys[lease.Key], "key %s twice", lease.Key)
			keys[lease.Key] = true
		}
		assert.Len(t, l.Local(10).Leases, 10)
	}
	cancel()
	callers.Wait()
}

// stat is a number in what INFO says.
func stat(t *testing.T, admin *redis.Client, section, pattern string) float64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(admin.Info(t.Context(), section).Val())
	if m == nil {
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return n
}

func TestList_TakesATwentiethOfARedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	l := lockerOn(t, rdb, "p")
	const names = `for i = 1, 10000 do redis.call('SET', KEYS[1] .. i, '') end return 1`
	require.NoError(t, rdb.Eval(t.Context(), names, []string{"no key "}).Err())
	for _, key := range keyNames(100) {
		testbed.Take(t, l, key)
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
	require.Positive(t, busy)
	require.Greater(t, took, 15*busy)

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	var err error
	for err == nil {
		_, err = l.List(ctx, "", 1000)
	}
	require.ErrorIs(t, err, context.Canceled)
}
