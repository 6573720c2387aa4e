package delayqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The clock of Redis runs, and is set back by an hour: what is due stays due, and what waits for a time, for its key or for the
// end of a dead worker's claim waits no longer than it would have. So again when it was set forward in between, which takes the first time back.
func TestClock_SetBackStopsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.StartClocked(t)
	b := &bench{t: t, env: &redistest.Env{Addr: server.Addr, Prefix: "p"}}
	b.rdb = redistest.Client(t, &redis.Options{Addr: server.Addr})
	var warned, warnedLater watch
	b.queue = b.newQueue(b.rdb, delayqueue.WithQueueObserver(&warned))
	b.locker, b.other = b.lockerOn(b.rdb), b.lockerOn(b.rdb)
	for _, offsets := range [][2]time.Duration{{0, -time.Hour}, {2 * time.Hour, 0}} { // before, and after it was set back
		server.SetClock(t, offsets[0])
		var r ran
		var ids []string
		ids = append(ids, b.enqueue(delayqueue.Job{}))
		require.NoError(t, b.queue.ClaimAndDie(2*time.Second))
		held := fmt.Sprint("held", offsets[0])
		lease := b.hold(held)
		parked := b.enqueue(delayqueue.Job{Key: held})
		w := b.start(r.handle)
		redistest.Eventually(t, func() bool { return b.status(parked).Conflicts > 0 }, "the key is not held")
		require.NoError(t, w.Stop(t.Context()))
		for i := range 30 {
			ids = append(ids, b.enqueue(delayqueue.Job{Key: []string{"", "k", fmt.Sprint(i)}[i%3], Delay: []time.Duration{0, time.Second}[i%2]}))
		}

		server.SetClock(t, offsets[1])
		s := b.stats()
		require.GreaterOrEqual(t, s.Due, int64(11), "the keyless ones, and the first of each key")
		require.InDelta(t, offsets[0]-offsets[1], s.ClockBack, float64(5*time.Minute))
		conflicts := b.status(parked).Conflicts
		w = b.start(r.handle)
		for _, id := range ids {
			b.reaches(id, delayqueue.StateDone)
		}
		require.Equal(t, 1, b.status(ids[0]).Losses)
		redistest.Eventually(t, func() bool { return b.status(parked).Conflicts > conflicts }, "it does not try again")
		require.NoError(t, lease.Release(t.Context()))
		b.reaches(parked, delayqueue.StateDone)
		require.NoError(t, w.Stop(t.Context()))
	}
	b.startOn(b.newQueue(b.rdb, delayqueue.WithQueueObserver(&warnedLater)), (&ran{}).handle)
	for _, told := range []*watch{&warned, &warnedLater} {
		redistest.Eventually(t, func() bool { return len(told.warnings()) > 0 }, "nobody is warned")
		first := told.warnings()[0]
		require.Equal(t, delayqueue.Warning{Queue: "q", Kind: delayqueue.WarnClockBack, Detail: first.Detail}, first)
	}
}

// The clock of Redis is years away from the client's, either way, and alone decides.
func TestClock_NoneButThatOfRedisDecidesWhatIsTooOld(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": 20000 * time.Hour, "behind": -20000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := of(embedded.Start())(t)
			t.Cleanup(server.Close)
			server.SetTime(time.Now().Add(off))
			b := &bench{t: t, env: &redistest.Env{Addr: server.Addr(), Prefix: "p"}}
			b.rdb = redistest.Client(t, &redis.Options{Addr: server.Addr()})
			b.queue = b.newQueue(b.rdb)
			b.locker = b.lockerOn(b.rdb)
			old := b.enqueue(delayqueue.Job{Key: "k", MaxAge: time.Minute})
			young := b.enqueue(delayqueue.Job{Key: "k", MaxAge: 3 * time.Minute})
			later := b.enqueue(delayqueue.Job{Delay: 4 * time.Minute})
			require.WithinDuration(t, time.Now().Add(off+time.Minute), b.status(old).ExpiresAt, 30*time.Second)

			server.SetTime(time.Now().Add(off + 2*time.Minute)) // the client's stands where it was
			var r ran
			b.start(r.handle, delayqueue.WithClaimLease(time.Second)) // so that it looks at the clock often
			b.reaches(old, delayqueue.StateExpired)
			b.reaches(young, delayqueue.StateDone)
			require.Equal(t, delayqueue.StateQueued, b.status(later).State)
			server.SetTime(time.Now().Add(off + 5*time.Minute))
			b.reaches(later, delayqueue.StateDone)
			require.Equal(t, []string{young, later}, r.ids())
		})
	}
}
