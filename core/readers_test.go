package core_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// acquiringMany begins n Acquires in one process, and waits until all of them wait.
func acquiringMany(t *testing.T, env *redistest.Env, l *core.Locker, n int, opts ...core.AcquireOption) (all []<-chan got) {
	t.Helper()
	for range n {
		all = append(all, acquiring(t, l, "k", opts...))
	}
	redistest.Eventually(t, func() bool { return l.InformedCalls() == n }, "all wait")
	listening(t, l)
	redistest.Eventually(t, func() bool {
		queue, _ := env.Client(t).HGet(t.Context(), core.RecordName(env.Prefix, "k"), "queue").Result()
		return len(queue) > 0 && !strings.Contains(queue, "~")
	}, "it is told by message")
	return all
}

// merged gives what the calls returned, in that order.
func merged(all []<-chan got) <-chan got {
	grants := make(chan got, len(all))
	for _, c := range all {
		go func() { grants <- <-c }()
	}
	return grants
}

// countSends counts the pipelines, and the commands sent alone, of one client.
func countSends(rdb *redis.Client) *atomic.Int64 {
	var sends atomic.Int64
	rdb.AddHook(hooks{
		script:   func(_ redis.Cmder, next func() error) error { sends.Add(1); return next() },
		pipeline: func(next func() error) error { sends.Add(1); return next() },
	})
	return &sends
}

func TestReaders_AllOfAProcessEnterBeforeTheWriterBehindThem(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const readers = 50
		rdb := env.Client(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
		sends := countSends(rdb)
		a := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(env.Client(t)))
		a.NeverPoll()
		b, c := newLocker(t, env), newLocker(t, env)
		writing := acquired(t, b, "k")
		reading := acquiringMany(t, env, a, readers, core.Shared())
		second := acquiring(t, c, "k")
		queued(t, env, "k", 2)

		sends.Store(0)
		release(t, writing)
		fences, greatest := map[int64]bool{}, writing.Fence()
		var leases []*core.Lease
		for _, r := range reading {
			lease := granted(t, r)
			require.Greater(t, lease.Fence(), writing.Fence())
			fences[lease.Fence()], greatest = true, max(greatest, lease.Fence())
			leases = append(leases, lease)
		}
		require.Len(t, fences, readers)
		require.LessOrEqual(t, sends.Load(), int64(3), "they enter together")
		waiting(t, second, "readers are inside")
		for _, lease := range leases {
			require.NoError(t, lease.Context().Err())
			require.NoError(t, lease.Release(t.Context()))
		}
		written := granted(t, second)
		require.Greater(t, written.Fence(), greatest)
		require.NoError(t, written.Release(t.Context()))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

// Those that were inside, or stood before the writer as leaders or along with one, may enter once each while it waits.
func TestReaders_AStreamDoesNotStarveAWriter(t *testing.T) {
	for name, test := range map[string]struct{ lockers, each, most int }{
		"few of many processes": {3, 4, 2 * 3 * 4},
		"many of two processes": {2, 25, 2 * 25},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				testStreamOfReaders(t, env, test.lockers, test.each, int64(test.most))
			})
		})
	}
}

// testStreamOfReaders checks that at most so many reads begin while a writer waits.
func testStreamOfReaders(t *testing.T, env *redistest.Env, lockers, each int, most int64) {
	var begun atomic.Int64
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for range lockers {
		l := newLocker(t, env)
		for range each {
			wg.Go(func() {
				for ctx.Err() == nil {
					err := l.Do(t.Context(), "k", func(context.Context) error {
						begun.Add(1)
						time.Sleep(time.Millisecond)
						return nil
					}, core.Shared())
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	defer wg.Wait()
	defer stop()
	writer, rdb := newLocker(t, env), env.Client(t)
	for range 10 {
		before := begun.Load()
		redistest.Eventually(t, func() bool { return begun.Load() > before+4*int64(lockers*each) }, "readers read")
		done := acquiring(t, writer, "k")
		redistest.Eventually(t, func() bool {
			if len(done) > 0 {
				return true
			}
			queue, _ := rdb.HGet(t.Context(), core.RecordName(env.Prefix, "k"), "queue").Result()
			return strings.Contains(queue, "1:")
		}, "the writer waits")
		before = begun.Load()
		lease := granted(t, done)
		require.LessOrEqual(t, begun.Load()-before, most)
		require.NoError(t, lease.Release(t.Context()))
	}
}

func TestCounted_PermitsOfAProcessEnterTogether(t *testing.T) {
	t.Parallel()
	env := redistest.Real(t)
	const permits, calls = 8, 12
	rdb := env.Client(t)
	require.NoError(t, rdb.ScriptLoad(t.Context(), core.Scripts["admit"]).Err())
	sends := countSends(rdb)
	a := lockerOn(t, rdb, env.Prefix, core.WithRenewalClient(env.Client(t)))
	a.NeverPoll()
	b := newLocker(t, env)
	alone := acquired(t, b, "k")
	all := acquiringMany(t, env, a, calls, core.Counted(permits))
	sends.Store(0)
	require.NoError(t, alone.Release(t.Context()))
	grants := merged(all)
	var leases []*core.Lease
	for range permits {
		leases = append(leases, granted(t, grants))
	}
	queued(t, env, "k", 1)
	require.LessOrEqual(t, sends.Load(), int64(2), "one for the permits, one to wait again")
	for i := range calls - permits {
		waiting(t, grants, "all permits are taken")
		require.NoError(t, leases[i].Release(t.Context()))
		leases = append(leases, granted(t, grants))
	}
	for _, lease := range leases[calls-permits:] {
		require.NoError(t, lease.Release(t.Context()))
	}
	requireNothingLeft(t, env.Client(t), env.Prefix)
}
