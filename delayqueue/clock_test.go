package delayqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
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
	for _, locker := range []**core.Locker{&b.locker, &b.other} {
		l, err := core.New(b.rdb, core.WithPrefix("p"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		*locker = l
	}
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
		s, err := b.queue.Stats(t.Context())
		require.NoError(t, err)
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
