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

func TestModes_ReadersShareTheKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		a, b := newLocker(t, env), newLocker(t, env)
		var leases []*core.Lease
		fences := map[int64]bool{}
		for _, l := range []*core.Locker{a, b, a, b} {
			lease, err := l.TryAcquire(t.Context(), "k", core.Shared())
			require.NoError(t, err)
			leases = append(leases, lease)
			fences[lease.Fence()] = true
		}
		require.Len(t, fences, len(leases))
		for _, l := range []*core.Locker{a, b} {
			_, err := l.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, core.ErrConflict)
		}
		writer := acquiring(t, a, "k")
		for _, lease := range leases {
			waiting(t, writer, "a writer, while somebody reads")
			require.NoError(t, lease.Release(t.Context()))
		}
		lease := granted(t, writer)
		_, err := b.TryAcquire(t.Context(), "k", core.Shared())
		require.ErrorIs(t, err, core.ErrConflict)
		require.NoError(t, lease.Release(t.Context()))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

func TestModes_ReadersBehindAWaitingWriterWait(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		a, b, c := newLocker(t, env), newLocker(t, env), newLocker(t, env)
		first, err := a.TryAcquire(t.Context(), "k", core.Shared())
		require.NoError(t, err)
		writer := acquiring(t, b, "k")
		queued(t, env, "k", 1)
		for _, l := range []*core.Locker{a, b, c} {
			_, err = l.TryAcquire(t.Context(), "k", core.Shared())
			require.ErrorIs(t, err, core.ErrConflict)
		}
		second := acquiring(t, c, "k", core.Shared())
		queued(t, env, "k", 2)
		require.NoError(t, first.Release(t.Context()))
		written := granted(t, writer)
		waiting(t, second, "behind the writer")
		require.NoError(t, written.Release(t.Context()))
		read := granted(t, second)
		require.Greater(t, read.Fence(), written.Fence())
		require.NoError(t, read.Release(t.Context()))
	})
}

func TestModes_AReleaseGrantsAllReadersAtTheHeadAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		lease, err := newLocker(t, env).Acquire(t.Context(), "k")
		require.NoError(t, err)
		var readers []<-chan got
		for i := range 3 {
			readers = append(readers, acquiring(t, newLocker(t, env), "k", core.Shared()))
			queued(t, env, "k", i+1)
		}
		writer := acquiring(t, newLocker(t, env), "k")
		queued(t, env, "k", 4)
		last := acquiring(t, newLocker(t, env), "k", core.Shared())
		queued(t, env, "k", 5)

		require.NoError(t, lease.Release(t.Context()))
		rdb := env.Client(t)
		held, err := rdb.HGet(t.Context(), core.RecordName(env.Prefix, "k"), "held").Int()
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
			lease, err := l.TryAcquire(t.Context(), "k", core.Counted(n))
			require.NoError(t, err)
			return lease
		}
		full := func(n int) {
			for _, l := range []*core.Locker{a, b} {
				_, err := l.TryAcquire(t.Context(), "k", core.Counted(n))
				require.ErrorIs(t, err, core.ErrConflict)
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
		require.NoError(t, second.Release(t.Context()))
		require.NoError(t, leases[2].Release(t.Context()))
		require.Empty(t, redistest.Keys(t, env.Client(t), env.Prefix))
	})
}

func TestModes_TooManyWaitersAreRefusedAsAConflict(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env, core.WithMaxWaiters(2, 3))
		lease, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		calls := []<-chan error{untilItWaits(t, l.Guard(untilWoken)), untilItWaits(t, l.Guard(untilWoken))}
		_, err = l.Acquire(t.Context(), "k")
		var conflict *core.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, "k", conflict.Key)
		require.NoError(t, lease.Release(t.Context()))
		for _, done := range calls {
			require.NoError(t, <-done)
		}
	})
}

func TestModes_AWriterMayReadAndAReaderMayNotWrite(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := newLocker(t, env)
		writer, err := l.Acquire(t.Context(), "k")
		require.NoError(t, err)
		reader, err := l.Acquire(writer.Context(), "k", core.Shared())
		require.NoError(t, err)
		again, err := l.Acquire(reader.Context(), "k")
		require.NoError(t, err, "it is still the writer's key")
		for _, lease := range []*core.Lease{again, reader, writer} {
			require.NoError(t, lease.Release(t.Context()))
		}

		reader, err = l.Acquire(t.Context(), "k", core.Shared())
		require.NoError(t, err)
		for _, acquire := range []func(context.Context, string, ...core.AcquireOption) (*core.Lease, error){l.Acquire, l.TryAcquire} {
			_, err = acquire(reader.Context(), "k")
			require.ErrorIs(t, err, core.ErrUpgrade)
			require.NotErrorIs(t, err, core.ErrConflict)
		}
		require.NoError(t, reader.Release(t.Context()))
	})
}

// modes are the ways in which a key can be waited for.
var modes = map[string][]core.AcquireOption{"exclusive": nil, "shared": {core.Shared()}, "counted": {core.Counted(3)}}
