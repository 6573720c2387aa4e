package core_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// got is what an Acquire on another goroutine returned.
type got struct {
	l   *core.Lease
	err error
	at  time.Time // when the call returned
}

// outcome waits for an Acquire, but not for ever.
func outcome(t *testing.T, c <-chan got) got {
	t.Helper()
	select {
	case g := <-c:
		return g
	case <-time.After(10 * time.Second):
		require.Fail(t, "it waits for more than ten seconds")
		return got{}
	}
}

func granted(t *testing.T, c <-chan got) *core.Lease {
	t.Helper()
	g := outcome(t, c)
	require.NoError(t, g.err)
	return g.l
}

// acquiring begins an Acquire.
func acquiring(t *testing.T, l *core.Locker, key string, opts ...core.AcquireOption) <-chan got {
	t.Helper()
	return acquiringCtx(t.Context(), l, key, opts...)
}

func acquiringCtx(ctx context.Context, l *core.Locker, key string, opts ...core.AcquireOption) <-chan got {
	done := make(chan got, 1)
	go func() {
		lease, err := l.Acquire(ctx, key, opts...)
		done <- got{lease, err, time.Now()}
	}()
	return done
}

// queued waits until so many tokens wait for key in Redis.
func queued(t *testing.T, env *redistest.Env, key string, n int) {
	t.Helper()
	rdb := env.Client(t)
	redistest.Eventually(t, func() bool {
		queue, _ := rdb.HGet(t.Context(), core.RecordName(env.Prefix, key), "queue").Result()
		return strings.Count(queue, " ") == n
	}, fmt.Sprintf("%d in the queue", n))
}

func waiting(t *testing.T, c <-chan got, what string) {
	t.Helper()
	select {
	case g := <-c:
		require.Fail(t, "it does not wait: "+what, "%v", g)
	default:
	}
}

func TestModes_AReleaseGrantsAllReadersAtTheHeadAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		lease := acquired(t, newLocker(t, env), "k")
		var readers []<-chan got
		for i := range 3 {
			readers = append(readers, acquiring(t, newLocker(t, env), "k", core.Shared()))
			queued(t, env, "k", i+1)
		}
		writer := acquiring(t, newLocker(t, env), "k")
		queued(t, env, "k", 4)
		refused(t, newLocker(t, env), "k", core.Shared()) // readers stand behind a writer that waits
		last := acquiring(t, newLocker(t, env), "k", core.Shared())
		queued(t, env, "k", 5)

		require.NoError(t, lease.Release(t.Context()))
		held, err := env.Client(t).HGet(t.Context(), core.RecordName(env.Prefix, "k"), "held").Int()
		require.NoError(t, err)
		require.Equal(t, 3, held)
		for _, r := range readers {
			waiting(t, writer, "readers are inside")
			require.NoError(t, granted(t, r).Release(t.Context()))
		}
		written := granted(t, writer)
		waiting(t, last, "it came after the writer")
		require.NoError(t, written.Release(t.Context()))
		require.NoError(t, granted(t, last).Release(t.Context()))
	})
}

func TestCounted_LetsInAsManyAsEachCallSays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		a, b := newLocker(t, env), newLocker(t, env)
		take := func(l *core.Locker, n int) *core.Lease {
			return testbed.Take(t, l, "k", core.Counted(n))
		}
		full := func(n int) {
			for _, l := range []*core.Locker{a, b} {
				refused(t, l, "k", core.Counted(n))
			}
		}
		leases := []*core.Lease{take(a, 2), take(b, 2)}
		full(2)
		leases = append(leases, take(a, 3)) // raised
		full(3)
		full(2)
		lowered := acquiring(t, b, "k", core.Counted(2))
		queued(t, env, "k", 1)
		for _, lease := range leases[:2] {
			waiting(t, lowered, "two or more are inside")
			require.NoError(t, lease.Release(t.Context()))
		}
		second := granted(t, lowered)
		full(2)
		full(1)
		release(t, second, leases[2])
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

// modes are the ways in which a key can be waited for.
var modes = map[string][]core.AcquireOption{"exclusive": nil, "shared": {core.Shared()}, "counted": {core.Counted(3)}}

// acquired takes a key, and may have to wait for it.
func acquired(t testing.TB, l *core.Locker, key string, opts ...core.AcquireOption) *core.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), key, opts...)
	require.NoError(t, err)
	return lease
}

// refused checks that a call which does not wait meets a conflict.
func refused(t testing.TB, l *core.Locker, key string, opts ...core.AcquireOption) {
	t.Helper()
	_, err := l.TryAcquire(t.Context(), key, opts...)
	require.ErrorIs(t, err, core.ErrConflict)
	require.ErrorAs(t, err, new(*core.ConflictError))
}

// release releases leases, and sets of them, one after the other.
func release[L interface{ Release(context.Context) error }](t testing.TB, leases ...L) {
	t.Helper()
	for _, lease := range leases {
		require.NoError(t, lease.Release(t.Context()))
	}
}

// endsLost waits until a lease, or a set, is over, and lost.
func endsLost(t testing.TB, lease interface{ Context() context.Context }) {
	t.Helper()
	<-lease.Context().Done()
	require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
}

// errOf is the error of a call whose result nobody needs.
func errOf[T any](_ T, err error) error { return err }
