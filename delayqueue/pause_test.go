package delayqueue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestPause_APausedQueueStartsNothing(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		require.NoError(t, b.queue.Resume(ctx), "it is not paused")
		started, block := make(chan struct{}), make(chan struct{})
		var r ran
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "first" {
				close(started)
				<-block
			}
			return r.handle(ctx, m)
		})
		first := b.enqueue(delayqueue.Job{Key: "k", Name: "first"})
		next(t, started)
		require.NoError(t, b.queue.Pause(ctx, time.Minute))
		require.NoError(t, b.queue.Pause(ctx, time.Hour))
		waiting := []string{}
		for i := range 10 {
			waiting = append(waiting, b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{Key: fmt.Sprint(i)}))
		}
		close(block)
		b.reaches(first, delayqueue.StateDone) // its end brings nothing after it
		require.Never(t, func() bool { return len(r.ids()) > 1 }, 100*time.Millisecond, 10*time.Millisecond)
		s := b.stats()
		require.True(t, s.Paused)
		require.WithinDuration(t, time.Now().Add(time.Hour), s.PausedUntil, time.Minute)
		require.EqualValues(t, 20, s.Queued)

		require.NoError(t, b.queue.Resume(ctx))
		for _, id := range waiting {
			b.reaches(id, delayqueue.StateDone)
		}
		s = b.stats()
		require.False(t, s.Paused)
		require.Zero(t, s.PausedUntil)
	})
}

func TestPause_APauseEndsByItself(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		require.NoError(t, b.queue.Pause(t.Context(), time.Second))
		began := time.Now()
		var r ran
		b.start(r.handle)
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		require.Greater(t, time.Since(began), 900*time.Millisecond)
	})
}

func TestResume_WakesTheWorkers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithPartitions(3))
		var r ran
		b.start(r.handle)
		fastest := time.Hour
		for range 5 { // any of them may come by just then by itself, but not all
			require.NoError(t, b.queue.Pause(t.Context(), time.Hour))
			id := b.enqueue(delayqueue.Job{})
			time.Sleep(50 * time.Millisecond)
			require.Equal(t, delayqueue.StateQueued, b.status(id).State)
			began := time.Now()
			require.NoError(t, b.queue.Resume(t.Context()))
			b.reaches(id, delayqueue.StateDone)
			fastest = min(fastest, time.Since(began))
		}
		require.Less(t, fastest, 300*time.Millisecond)
	})
}

// Redis has no memory left: nothing can be enqueued, and what does harm can be stopped all the same.
func TestPause_OnAFullRedis(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]bool{"the scripts are known": false, "they are not": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--maxmemory-policy", "noeviction")
			b := setup(t, &redistest.Env{Addr: server.Addr, Real: true, Prefix: "t"}, delayqueue.WithPartitions(128))
			ctx := t.Context()
			ids := make([]string, 300)
			for i := range ids {
				ids[i] = b.enqueue(delayqueue.Job{Delay: time.Second, Payload: []byte("work")})
			}
			if !forget {
				require.NoError(t, b.queue.Pause(ctx, time.Minute))
				require.NoError(t, b.queue.Resume(ctx))
			}
			require.NoError(t, b.rdb.ConfigSet(ctx, "maxmemory", "1mb").Err())
			require.ErrorContains(t, b.rdb.Set(ctx, "more", "", 0).Err(), "OOM")
			_, err := b.queue.Enqueue(ctx, delayqueue.Job{})
			require.ErrorContains(t, err, "OOM")

			require.NoError(t, b.queue.Pause(ctx, time.Hour))
			require.True(t, b.stats().Paused)
			for _, name := range redistest.Keys(t, b.rdb, "t:queue") {
				if strings.HasSuffix(name, ":c") {
					require.NotEmpty(t, b.rdb.HGet(ctx, name, "paused").Val(), name)
				}
			}
			var r ran
			b.start(r.handle)
			time.Sleep(1500 * time.Millisecond) // they are due
			require.Empty(t, r.ids())
			require.NoError(t, b.queue.Pause(ctx, time.Hour), "again")
			require.NoError(t, b.queue.Resume(ctx))
			require.False(t, b.stats().Paused)
			redistest.Eventually(t, func() bool { return b.stats().Totals.Done == int64(len(ids)) }, "what is there is run")
			require.ElementsMatch(t, ids, r.ids())
		})
	}
}
