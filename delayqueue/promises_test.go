package delayqueue_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// All wait far longer than a claim lasts for the only slot: none is claimed before its
// turn, so none is lost to its claim's end.
func TestWorker_MessagesBehindASlowHandlerRunOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		const lease = 300 * time.Millisecond
		var ids []string
		for i := range 20 {
			ids = append(ids, b.enqueue(delayqueue.Job{Key: []string{"", "k", fmt.Sprint(i)}[i%3]}))
		}
		var r ran
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			time.Sleep(lease / 3) // the promise is about time
			return r.handle(ctx, m)
		}, delayqueue.WithConcurrency(1), delayqueue.WithClaimLease(lease))
		for _, id := range ids {
			s := b.reaches(id, delayqueue.StateDone)
			require.Equal(t, []int{1, 0}, []int{s.Attempts, s.Losses})
		}
		require.ElementsMatch(t, ids, r.ids())
	})
}

func TestWorker_AMessageThatPanicsEachTimeDelaysNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithMaxAttempts(3))
		var r ran
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			_ = r.handle(ctx, m)
			if m.Name == "panics" {
				panic("boom")
			}
			return nil
		}, delayqueue.WithConcurrency(1), delayqueue.WithRetryBackoff(time.Second, time.Second))
		bad := b.enqueue(delayqueue.Job{Key: "bad", Name: "panics"})
		behind := b.enqueue(delayqueue.Job{Key: "bad"})
		var others []string
		for i := range 20 {
			others = append(others, b.enqueue(delayqueue.Job{Key: fmt.Sprint("k", i)}))
		}
		for _, id := range others {
			b.reaches(id, delayqueue.StateDone)
		}
		require.NotEqual(t, delayqueue.StateDead, b.status(bad).State, "the others did not wait for its attempts")
		s := b.reaches(bad, delayqueue.StateDead)
		require.Equal(t, []int{3, 0}, []int{s.Attempts, s.Losses})
		b.reaches(behind, delayqueue.StateDone)
		require.Len(t, r.ids(), 3+1+20)
	})
}

func TestWorker_ALockThatIsHeldThroughAHundredWakeUpsSpendsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithMaxAttempts(1))
		lease := b.hold("k")
		first := b.enqueue(delayqueue.Job{Key: "k"})
		line := []string{first}
		for range 5 {
			line = append(line, b.enqueue(delayqueue.Job{Key: "k"}))
		}
		var r ran
		for range 2 {
			b.start(r.handle, delayqueue.WithConflictBackoff(time.Millisecond, 5*time.Millisecond))
		}
		redistest.Eventually(t, func() bool { return b.status(first).Conflicts >= 100 }, "it is not tried a hundred times")
		s := b.status(first)
		require.LessOrEqual(t, s.Attempts, 1, "no more than the try that is under way")
		require.Zero(t, s.Losses)
		require.Empty(t, r.ids())
		require.NoError(t, lease.Release(t.Context()))
		b.reaches(line[len(line)-1], delayqueue.StateDone)
		require.Equal(t, line, r.ids(), "it kept its place")
		require.Equal(t, 1, b.status(first).Attempts)
	})
}

// The clock of Redis is years away from the client's, either way, and alone decides.
func TestWorker_NoClockButRedisDecidesWhatIsTooOld(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": 20000 * time.Hour, "behind": -20000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := embedded.Start()
			require.NoError(t, err)
			t.Cleanup(server.Close)
			server.SetTime(time.Now().Add(off))
			b := &bench{t: t, env: &redistest.Env{Addr: server.Addr(), Prefix: "p"}}
			b.rdb = redistest.Client(t, &redis.Options{Addr: server.Addr()})
			b.queue = b.newQueue(b.rdb)
			b.locker, err = core.New(b.rdb, core.WithPrefix("p"))
			require.NoError(t, err)
			t.Cleanup(func() { _ = b.locker.Close() })
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
