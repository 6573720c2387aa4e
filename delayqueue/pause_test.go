package delayqueue_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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
	virtually(t, func(t *testing.T, b *bench) {
		began := time.Now()
		require.NoError(t, b.queue.Pause(t.Context(), time.Second))
		var r ran
		b.start(r.handle)
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		require.InDelta(t, time.Second, time.Since(began), float64(200*time.Millisecond))
	})
}

func TestResume_WakesTheWorkers(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
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
	}, delayqueue.WithPartitions(3))
}

// Redis has no memory left: nothing can be enqueued, and what does harm can be stopped all the same.
func TestPause_OnAFullRedis(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]bool{"the scripts are known": false, "they are not": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--maxmemory-policy", "noeviction")
			b := setup(t, &redistest.Env{Addr: server.Addr, Real: true, Prefix: "t"}, delayqueue.WithPartitions(16))
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

func TestWorker_APausedWorkerClaimsNothing(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		r := &ran{}
		w := b.start(r.handle)
		first := b.enqueue(delayqueue.Job{})
		time.Sleep(time.Minute)
		require.Equal(t, delayqueue.StateDone, b.status(first).State)
		w.Pause()
		ids := []string{b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{})}
		for range 60 {
			time.Sleep(time.Second)
			for _, id := range ids {
				require.Equal(t, delayqueue.StateQueued, b.status(id).State)
			}
		}
		w.Resume()
		time.Sleep(time.Minute)
		require.ElementsMatch(t, append(ids, first), r.ids())
		require.NoError(t, w.Stop(t.Context()))
	})
}

// Pause comes while a call is under way that claims: a claim, or a settlement.
func TestWorker_WhatIsClaimedWhilePauseIsCalledGoesBack(t *testing.T) {
	for name, c := range map[string]struct{ script, key string }{
		"claim": {"claim", ""}, "claim of a key": {"claim", "k"}, "settlement": {"settle", ""}, "settlement of a key": {"settle", "k"},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, env *redistest.Env) {
				b, settles := setup(t, env), c.script == "settle"
				b.enqueue(delayqueue.Job{ID: "first", Key: c.key})
				var held atomic.Bool
				underWay, goOn := make(chan struct{}), make(chan struct{})
				rdb := env.Client(t)
				rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
					args := redistest.Args(cmd)
					if redistest.IsScript(cmd) && args[1] == delayqueue.ScriptHashes[c.script] && held.CompareAndSwap(true, false) {
						close(underWay)
						<-goOn
					}
				}))
				second := delayqueue.Job{ID: "second", Key: c.key}
				if settles { // it claims the second
					b.enqueue(second)
					held.Store(true)
				}
				ev, r := newEvents(), &ran{}
				w := b.startOn(b.newQueue(rdb), r.handle, delayqueue.WithObserver(ev), delayqueue.WithConcurrency(1))
				if !settles {
					require.Equal(t, "first", next(t, ev.settled).Message.ID)
					held.Store(true)
					w.Resume() // wakes it
				}
				next(t, underWay)
				w.Pause()
				if !settles {
					b.enqueue(second)
				}
				close(goOn)
				if settles {
					require.Equal(t, "first", next(t, ev.settled).Message.ID)
				}
				settled := next(t, ev.settled)
				require.Equal(t, "second", settled.Message.ID)
				require.Equal(t, delayqueue.OutcomeReturned, settled.Outcome)
				require.ErrorContains(t, settled.Err, "paused")
				require.Equal(t, []string{"first"}, r.ids())
				s := b.status("second")
				require.Equal(t, delayqueue.StateQueued, s.State)
				require.Zero(t, s.Attempts)

				w.Resume()
				require.Equal(t, 1, b.reaches("second", delayqueue.StateDone).Attempts)
			})
		})
	}
}
