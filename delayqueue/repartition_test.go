package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func (b *bench) repartition(n int) {
	b.t.Helper()
	require.NoError(b.t, b.queue.Repartition(b.t.Context(), n))
}

// A process that has read the manifest before stores where it belongs all the same.
func TestRepartition_ALateEnqueueLandsInTheNewPartitions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		late := b.newQueue(env.Client(t))
		first, err := late.Enqueue(t.Context(), delayqueue.Job{ID: "first", Key: "k"})
		require.NoError(t, err)
		b.repartition(2)
		require.Equal(t, "1:1 2:2", b.manifest()["generations"])
		again, err := late.Enqueue(t.Context(), delayqueue.Job{ID: "first", Key: "k"})
		require.NoError(t, err)
		require.Equal(t, first.Ticket, again.Ticket, "what is known is answered as before")
		_, err = late.Enqueue(t.Context(), delayqueue.Job{ID: "second", Key: "k"})
		require.NoError(t, err)
		there := 0
		for i := range 2 {
			is, err := b.rdb.HExists(t.Context(), fmt.Sprintf("%s:queue:{q/%d.2.2}:m", env.Prefix, i+1), "second").Result()
			require.NoError(t, err)
			if is {
				there++
			}
		}
		require.Equal(t, 1, there, "in one of the new partitions")
		require.Equal(t, [3]int64{2, 0, 0}, b.inState())
		_, err = b.newQueue(b.rdb).Enqueue(t.Context(), delayqueue.Job{ID: "first", Key: "k"})
		require.NoError(t, err)
		require.Equal(t, [3]int64{2, 0, 0}, b.inState(), "an id is not stored twice")
	})
}

func TestRepartition_WhatIsNewerWaitsForWhatRuns(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		started, goOn := make(chan string, 10), make(chan struct{})
		b.start(func(_ context.Context, m delayqueue.Message) error {
			started <- m.ID
			if m.ID == "old" {
				<-goOn
				if m.Attempt == 1 {
					return errors.New("once more")
				}
			}
			return nil
		})
		b.enqueue(delayqueue.Job{ID: "old", Key: "k"})
		require.Equal(t, "old", next(t, started))
		b.repartition(3)
		b.enqueue(delayqueue.Job{ID: "new", Key: "k"})
		b.enqueue(delayqueue.Job{ID: "other", Key: "another"})
		require.Equal(t, "other", next(t, started), "keys that have nothing older do not wait")
		time.Sleep(50 * time.Millisecond) // nothing is to happen
		require.Empty(t, started)
		close(goOn)
		require.Equal(t, "old", next(t, started), "its retry comes first")
		require.Equal(t, "new", next(t, started))
		b.reaches("new", delayqueue.StateDone)
	})
}

// Nor is it asked for again and again while others hold it.
func TestRepartition_AHeldKeyIsAskedForAsEver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		lease := b.hold("k")
		var ids []string
		var r ran
		b.start(r.handle, delayqueue.WithConflictBackoff(30*time.Second, 30*time.Second))
		for _, n := range []int{2, 3} {
			ids = append(ids, b.enqueue(delayqueue.Job{Key: "k"}))
			b.repartition(n)
		}
		ids = append(ids, b.enqueue(delayqueue.Job{Key: "k"}))
		time.Sleep(200 * time.Millisecond)
		for _, id := range ids {
			require.LessOrEqual(t, b.status(id).Conflicts, 3)
		}
		require.NoError(t, lease.Release(t.Context()))
		for _, id := range ids {
			b.reaches(id, delayqueue.StateDone)
		}
		require.Equal(t, ids, r.ids())
	})
}

// What is delayed, and what is redriven, comes after what was stored meanwhile.
func TestRepartition_CarriesOverWhatJoinsLate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		var r ran
		handle := func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "dies" && m.Losses == 0 {
				return delayqueue.SkipRetry(core.ErrLeaseLost) // which counts as a loss
			}
			return r.handle(ctx, m)
		}
		w := b.start(handle)
		b.enqueue(delayqueue.Job{ID: "dead", Key: "k", Name: "dies", Principal: "p", Payload: make([]byte, 10_000)})
		was := b.reaches("dead", delayqueue.StateDead)
		require.Equal(t, 1, was.Losses)
		require.NoError(t, w.Stop(t.Context()))
		b.enqueue(delayqueue.Job{ID: "delayed", Key: "k", Delay: 100 * time.Millisecond})
		b.repartition(2)
		for i := range 3 {
			b.enqueue(delayqueue.Job{ID: fmt.Sprint("new", i), Key: "k"})
		}
		time.Sleep(120 * time.Millisecond) // it is due
		require.NoError(t, b.queue.Redrive(t.Context(), "dead", time.Minute))
		require.Equal(t, delayqueue.StateQueued, b.status("dead").State)
		b.start(handle)
		b.reaches("dead", delayqueue.StateDone)
		b.reaches("delayed", delayqueue.StateDone)
		require.Equal(t, []string{"new0", "new1", "new2"}, r.ids()[:3])
		for _, m := range r.all() {
			if m.ID == "dead" {
				require.Equal(t, 1, m.Losses)
				require.Equal(t, "p", m.Principal)
				require.Len(t, m.Payload, 10_000)
				require.Equal(t, was.EnqueuedAt, m.EnqueuedAt)
			}
		}
		require.Len(t, r.ids(), 5)
		require.Equal(t, [3]int64{}, b.inState())
	})
}

// What has lost its payload is not stored anew with an empty one.
func TestRepartition_CarriesNothingOverThatHasLostItsPayload(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.enqueue(delayqueue.Job{ID: "id", Key: "k", Delay: 20 * time.Millisecond, Payload: make([]byte, 10_000)})
		b.repartition(2)
		require.EqualValues(t, 1, b.rdb.Del(t.Context(), b.key("b:id")).Val())
		var r ran
		b.start(r.handle)
		require.Contains(t, b.reaches("id", delayqueue.StateDead).Cause, "has no payload")
		require.Empty(t, r.ids())
	})
}

func TestRepartition_EverythingFindsWhatIsOlder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		w := b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Name == "dies" {
				return delayqueue.SkipRetry(errors.New("no"))
			}
			return delayqueue.SetResult(ctx, []byte("result"))
		})
		for _, id := range []string{"purged", "redriven"} {
			b.enqueue(delayqueue.Job{ID: id, Key: id, Name: "dies"})
			b.reaches(id, delayqueue.StateDead)
		}
		b.reaches(b.enqueue(delayqueue.Job{ID: "done", Key: "k"}), delayqueue.StateDone)
		require.NoError(t, w.Stop(t.Context()))
		for _, id := range []string{"cancelled", "kept"} {
			b.enqueue(delayqueue.Job{ID: id, Key: "k", Payload: []byte(id)})
		}
		b.repartition(2)
		b.repartition(1)
		require.Equal(t, "1:1 2:2 3:1", b.manifest()["generations"])
		b.enqueue(delayqueue.Job{ID: "new", Key: "k"})

		ctx := t.Context()
		require.Len(t, b.list(delayqueue.StateQueued), 3)
		require.Len(t, b.list(delayqueue.StateDead), 2)
		result, err := b.queue.Result(ctx, "done")
		require.NoError(t, err)
		require.Equal(t, "result", string(result))
		payload, err := b.queue.Payload(ctx, "kept")
		require.NoError(t, err)
		require.Equal(t, "kept", string(payload))
		entry, err := b.queue.Peek(ctx, "kept")
		require.NoError(t, err)
		require.Equal(t, delayqueue.StateQueued, entry.State)
		require.NoError(t, b.queue.Cancel(ctx, "cancelled"))
		require.NoError(t, b.queue.Purge(ctx, "purged"))
		n, err := b.queue.RedriveAll(ctx, delayqueue.Filter{Key: "redriven"}, delayqueue.RedriveOptions{})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, err = b.queue.CancelAll(ctx, delayqueue.Filter{Key: "k"})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.Equal(t, [3]int64{1, 0, 0}, b.inState())
		var r ran
		b.start(r.handle)
		b.reaches("redriven", delayqueue.StateDone)
		require.Equal(t, []string{"redriven"}, r.ids())
	})
}

func TestRepartition_APauseHoldsInTheNewPartitions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		var r ran
		b.start(r.handle)
		require.NoError(t, b.queue.Pause(t.Context(), time.Minute))
		b.repartition(2)
		ids := []string{b.enqueue(delayqueue.Job{Key: "k"}), b.enqueue(delayqueue.Job{})}
		time.Sleep(50 * time.Millisecond) // nothing is to happen
		require.Empty(t, r.ids())
		stats, err := b.queue.Stats(t.Context())
		require.NoError(t, err)
		require.True(t, stats.Paused)
		require.NoError(t, b.queue.Resume(t.Context()))
		for _, id := range ids {
			b.reaches(id, delayqueue.StateDone)
		}
	})
}

// When nothing is left of it, a generation is served no more.
func TestRepartition_OlderPartitionsGoWhenTheyAreEmpty(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, delayqueue.WithRetention(3*time.Second), delayqueue.WithDeadRetention(time.Second))
		var r ran
		b.start(r.handle, delayqueue.WithClaimLease(time.Second))
		b.reaches(b.enqueue(delayqueue.Job{ID: "old", Key: "k"}), delayqueue.StateDone)
		b.repartition(2)
		b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone)
		require.Equal(t, "1:1 2:2", b.manifest()["generations"], "it remembers what has ended")
		redistest.Eventually(t, func() bool {
			_, err := b.queue.Status(t.Context(), "old")
			if errors.Is(err, delayqueue.ErrNotFound) {
				b.rdb.Publish(t.Context(), b.key("wake"), "") // what workers do each 10 s
			}
			return b.manifest()["generations"] == "2:2"
		}, "it is gone")
		late := b.enqueue(delayqueue.Job{Key: "k"})
		b.reaches(late, delayqueue.StateDone)
		for _, q := range []*delayqueue.Queue{b.queue, b.newQueue(b.rdb)} {
			redistest.Eventually(t, func() bool { // b.queue's worker reads the manifest
				s, err := q.Stats(t.Context())
				return err == nil && s.Partitions == 2 && s.OlderPartitions == 0 && s.Totals.Done == 3 && s.Totals.Enqueued == 3
			}, "what was counted stays")
		}
	})
}

func TestRepartition_ManyAtOnceComeOneAfterTheOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		id := b.enqueue(delayqueue.Job{Key: "k"})
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				if err := b.newQueue(b.rdb).Repartition(context.Background(), 2+i%3); err != nil && !errors.Is(err, delayqueue.ErrDraining) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.Empty(t, b.manifest()["next"])
		require.Contains(t, b.manifest()["generations"], "1:1 2:")
		var r ran
		b.start(r.handle)
		b.reaches(id, delayqueue.StateDone)
		b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone)
	})
}

// Partitions know what came after them, should the manifest have lost it.
func TestRepartition_IsFoundAgainWhenTheManifestIsLost(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.enqueue(delayqueue.Job{ID: "old", Key: "k"})
		before := b.manifest()
		b.repartition(3)
		b.enqueue(delayqueue.Job{ID: "new", Key: "k"})
		for name, lost := range map[string]map[string]string{"its last writes": before, "all of it": nil} {
			require.NoError(t, b.rdb.Del(t.Context(), b.key("manifest")).Err())
			for field, value := range lost {
				require.NoError(t, b.rdb.HSet(t.Context(), b.key("manifest"), field, value).Err())
			}
			q := b.newQueue(env.Client(t))
			if name == "all of it" { // who looks finds it, as who enqueues
				_, err := q.Status(t.Context(), "new")
				require.NoError(t, err, name)
			}
			_, err := q.Enqueue(t.Context(), delayqueue.Job{Key: "k"})
			require.NoError(t, err, name)
			require.Equal(t, "1:1 2:3", b.manifest()["generations"], name)
			_, err = q.Status(t.Context(), "new")
			require.NoError(t, err, name)
		}
		require.Equal(t, [3]int64{4, 0, 0}, b.inState())
	})
}

func TestRepartition_Arguments(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		for _, n := range []int{-1, 0, 1025} {
			require.ErrorIs(t, b.queue.Repartition(t.Context(), n), delayqueue.ErrInvalidArgument)
		}
		b.repartition(1)
		require.Equal(t, "1:1", b.manifest()["generations"], "the number that it has changes nothing")
		for n := range 7 {
			b.enqueue(delayqueue.Job{})
			b.repartition(n + 2)
		}
		require.ErrorIs(t, b.queue.Repartition(t.Context(), 100), delayqueue.ErrDraining)
		require.Equal(t, [3]int64{7, 0, 0}, b.inState())
	})
}

// Each partition is in a slot of its own; so is the manifest.
func TestRepartition_OnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	b := onCluster(t, c, "q")
	var ids []string
	for i := range 200 {
		if i == 60 {
			b.repartition(6)
		}
		if i == 130 {
			b.repartition(2)
		}
		ids = append(ids, b.enqueue(delayqueue.Job{ID: fmt.Sprint("m", i), Key: fmt.Sprint("k", i%5)}))
	}
	var r ran
	b.start(r.handle)
	for _, id := range ids {
		b.reaches(id, delayqueue.StateDone)
	}
	next := map[string]int{}
	for _, m := range r.all() {
		var i int
		_, err := fmt.Sscanf(m.ID, "m%d", &i)
		require.NoError(t, err)
		require.GreaterOrEqual(t, i, next[m.Key], "in order")
		next[m.Key] = i + 1
	}
	require.Len(t, r.all(), 200)
}
