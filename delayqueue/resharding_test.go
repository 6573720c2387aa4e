package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// While the slot of a queue moves, part of its keys are on one node and part on the
// other: no script may run on either.
func TestAQueueIsUnavailableWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	b := onCluster(t, c, "q")
	base := b.env.Prefix + ":queue:{q}"
	var ids []string
	for i := range 12 {
		ids = append(ids, b.enqueue(delayqueue.Job{ID: fmt.Sprint("m", i), Key: fmt.Sprint("k", i%3)}))
	}
	keyless := b.enqueue(delayqueue.Job{Delay: time.Minute})

	slot := c.Migrate(t, base, c.AnotherThan(t, base))
	want := slot.Keys(t)
	requireUnavailable := func(when string) {
		t.Helper()
		ctx := t.Context()
		_, err := b.queue.Enqueue(ctx, delayqueue.Job{Key: "k0"})
		require.ErrorIs(t, err, core.ErrUnavailable, "enqueue, %s", when)
		require.ErrorContains(t, err, "slot")
		require.ErrorIs(t, b.queue.ClaimAndDie(time.Minute), core.ErrUnavailable, "claim, %s", when)
		require.ErrorIs(t, b.queue.Cancel(ctx, keyless), core.ErrUnavailable, "cancel, %s", when)
		_, err = b.queue.Stats(ctx)
		require.ErrorIs(t, err, core.ErrUnavailable, "stats, %s", when)
		_, _, err = b.queue.List(ctx, delayqueue.StateQueued, "", 100)
		require.ErrorIs(t, err, core.ErrUnavailable, "list, %s", when)
		require.Equal(t, want, slot.Keys(t), "nothing was begun anew, %s", when)
		require.Equal(t, delayqueue.StateQueued, b.status(ids[0]).State, "a record is read where it is, %s", when)
	}
	requireUnavailable("nothing moved yet")
	for moved := 1; slot.MoveSome(t, 1) > 0; moved++ {
		requireUnavailable(fmt.Sprint(moved, " of ", want, " moved"))
	}
	slot.Finish(t)

	require.Equal(t, [3]int64{13, 0, 0}, b.inState())
	require.NoError(t, b.queue.Cancel(t.Context(), keyless))
	var r ran
	b.start(r.handle, delayqueue.WithConcurrency(1))
	for _, id := range ids {
		b.reaches(id, delayqueue.StateDone)
	}
	requireOnceInOrder(t, ids, r.all())
}

// A queue is moved to another node and back while it is filled and worked off: all that
// was acknowledged runs once, in order.
func TestAQueueUnderLoadSurvivesAReshard(t *testing.T) {
	t.Parallel()
	const producers, keysEach, parked = 4, 5, 750 // each
	c := redistest.StartCluster(t, 3, 0)
	b := onCluster(t, c, nameInSlot0)
	home, away := c.NodeOf(t, "{"+nameInSlot0+"}"), c.AnotherThan(t, "{"+nameInSlot0+"}")

	var (
		acked   [producers][]string
		refused atomic.Int64
		all     sync.WaitGroup
	)
	produce := func(p int) {
		job := delayqueue.Job{ID: fmt.Sprintf("p%d.%d", p, len(acked[p])), Key: fmt.Sprintf("p%d.k%d", p, len(acked[p])%keysEach)}
		_, err := b.queue.Enqueue(context.Background(), job)
		for ; errors.Is(err, core.ErrUnavailable); _, err = b.queue.Enqueue(context.Background(), job) {
			refused.Add(1)
			time.Sleep(10 * time.Millisecond)
		}
		if assert.NoError(t, err) {
			acked[p] = append(acked[p], job.ID)
		}
	}
	for p := range producers {
		all.Go(func() {
			for range parked {
				produce(p)
			}
		})
	}
	all.Wait()

	var r ran
	b.start(func(ctx context.Context, m delayqueue.Message) error {
		time.Sleep(time.Millisecond)
		return r.handle(ctx, m)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for p := range producers {
		all.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
				produce(p)
			}
		})
	}
	began := time.Now()
	c.Reshard(t, home, away)
	t.Logf("moved in %s", time.Since(began))
	t.Logf("%d were refused", refused.Load())
	served := len(r.all())
	redistest.Eventually(t, func() bool { return len(r.all()) > served }, "it is served at its new place")
	c.Reshard(t, away, home)
	cancel()
	all.Wait()

	ids := slices.Concat(acked[:]...)
	redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "all have ended")
	t.Logf("%d messages", len(ids))
	requireOnceInOrder(t, ids, r.all())
}

// requireOnceInOrder requires that each id ran once, and those of a key in this order.
func requireOnceInOrder(t *testing.T, ids []string, ran []delayqueue.Message) {
	t.Helper()
	place := map[string]int{}
	for i, id := range ids {
		place[id] = i
	}
	last, seen := map[string]int{}, map[string]bool{}
	for _, m := range ran {
		require.False(t, seen[m.ID], "message %s ran twice", m.ID)
		seen[m.ID] = true
		before, ok := last[m.Key]
		require.True(t, !ok || before < place[m.ID], "message %s ran after a later one of its key", m.ID)
		last[m.Key] = place[m.ID]
	}
	for _, id := range ids {
		require.True(t, seen[id], "message %s did not run", id)
	}
}

// nameInSlot0 is a queue whose keys are in the first slot of a Cluster's first node:
// redis-cli moves a node's first slots.
const nameInSlot0 = "q17914"

// onCluster is a queue on a Cluster, and a locker for its workers.
func onCluster(t *testing.T, c *redistest.Cluster, name string) *bench {
	t.Helper()
	b := &bench{t: t, env: &redistest.Env{Prefix: "p", Real: true}}
	var err error
	b.queue, err = delayqueue.New(c.Client(t), name, delayqueue.WithPrefix(b.env.Prefix), delayqueue.WithMaxDepthPerKey(100_000))
	require.NoError(t, err)
	b.locker, err = core.New(c.Client(t), core.WithPrefix(b.env.Prefix))
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.locker.Close() })
	return b
}
