package core_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// The clock of Redis is set back, and runs on from there.

// If a key is held when the clock is set back its fences grow, also when it is free afterwards: they are remembered until
// the clock has passed them.
func TestFence_GrowsWhenTheServersClockIsSetBack(t *testing.T) {
	t.Parallel()
	s := redistest.StartClocked(t)
	backs := []time.Duration{0, time.Minute, time.Hour, 2 * time.Hour}
	const callers, each = 16, 10
	calls, n := alone{t: t}, 0 // guarded by the key
	work := func(ctx context.Context) error {
		if grants := callers * each / len(backs); n%grants == 0 {
			s.SetClock(t, -backs[n/grants]) // while the key is held
		}
		n++
		return calls.work(ctx)
	}
	var lockers []*core.Locker
	for range 4 {
		lockers = append(lockers, lockerOn(t, redistest.Client(t, &redis.Options{Addr: s.Addr}), "p", core.WithTTL(time.Hour), core.WithFirstLease(time.Hour))) // none runs out
	}
	var running sync.WaitGroup
	for i := range callers {
		running.Go(func() {
			for range each {
				assert.NoError(t, lockers[i%len(lockers)].Do(t.Context(), "k", work))
			}
		})
	}
	running.Wait()
	for range 3 { // it was free
		require.NoError(t, lockers[1].Do(t.Context(), "k", calls.work))
	}
}

// The exception: the record of a key that was free when the clock was set back is gone, and with it the fence. Fences are
// smaller then until the clock has passed the last one, and no longer; among them each is greater than those before.
func TestFence_IsSmallerIfTheClockIsSetBackWhileTheKeyIsFree(t *testing.T) {
	t.Parallel()
	s := redistest.StartClocked(t)
	l := lockerOn(t, redistest.Client(t, &redis.Options{Addr: s.Addr}), "p")
	take := func() int64 {
		lease := testbed.Take(t, l, "k")
		require.NoError(t, lease.Release(t.Context()))
		return lease.Fence()
	}
	last := take()
	s.SetClock(t, -time.Hour)
	behind := []int64{take(), take(), take()}
	require.True(t, slices.IsSorted(behind))
	require.Less(t, behind[2], last)
	s.SetClock(t, 0)
	require.Greater(t, take(), last)
}

// A call asks again, and the reply is late: a message granted it the key meanwhile, by a clock that was set back since. The reply does
// not end that grant, whatever its mode.
func TestWait_ALateRefusalEndsNoGrantAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	s := redistest.StartClocked(t)
	for mode, opts := range modes {
		n := 0
		for try := 0; try < 100 && n < 2; try++ {
			if lateRefusal(t, s, fmt.Sprint(mode, try), opts) {
				n++
			}
		}
		require.Positive(t, n, mode)
	}
}

// lateRefusal plays it once. It reports false if the message came too late for a grant of a second.
func lateRefusal(t *testing.T, s *redistest.Server, key string, opts []core.AcquireOption) (played bool) {
	t.Helper()
	ctx, record := t.Context(), core.RecordName("p", key)
	client := func() *redis.Client { return redistest.Client(t, &redis.Options{Addr: s.Addr}) }
	rdb, admin := client(), client()
	var asked atomic.Int32
	ran, late := make(chan struct{}), make(chan struct{})
	rdb.AddHook(hooks{script: func(cmd redis.Cmder, next func() error) error {
		err := next()
		if isScript(cmd, "acquire") && cmd.Args()[3] == record && asked.Add(1) == 2 {
			close(ran)
			<-late
		}
		return err
	}})
	l, other, third := lockerOn(t, rdb, "p"), lockerOn(t, client(), "p"), lockerOn(t, client(), "p")
	warm(t, l)
	listening(t, l)
	s.SetClock(t, 0)
	holder := acquired(t, other, key)
	redistest.Eventually(t, func() bool { return admin.Time(ctx).Val().UnixMicro() > holder.Fence()+600_000 }, "the clock may be set back")
	call := acquiring(t, l, key, opts...)
	redistest.Eventually(t, func() bool { return admin.HGet(ctx, record, "queue").Val() != "" && l.InformedCalls() == 1 }, "it waits")
	redistest.Eventually(t, func() bool { l.LookAgain(); return asked.Load() >= 2 }, "it asks again")
	<-ran
	s.SetClock(t, -500*time.Millisecond)
	require.NoError(t, holder.Release(ctx))
	var lease *core.Lease
	select {
	case g := <-call:
		require.NoError(t, g.err)
		lease, played = g.l, asked.Load() == 2
		close(late)
	case <-time.After(2 * time.Second):
		close(late)
		lease = granted(t, call)
	}
	redistest.Eventually(t, func() bool { return l.Queues() == 0 }, "the reply has come")
	for range 20 {
		require.NoError(t, lease.Extend(ctx, 30*time.Second))
		refused(t, third, key)
	}
	require.NoError(t, lease.Release(ctx))
	return played
}
