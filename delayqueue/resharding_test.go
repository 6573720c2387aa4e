package delayqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// While the slot of a queue moves, part of its keys are on one node and part on the other: no script may run on either.
func TestReshard_AQueueIsUnavailableWhileItsSlotMoves(t *testing.T) {
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
	for moved, more := range []int{0, 1, int(want) / 2} {
		if more > 0 {
			slot.MoveSome(t, more)
		}
		var all sync.WaitGroup
		for what, do := range map[string]func(ctx context.Context) error{
			"enqueue": func(ctx context.Context) error { _, err := b.queue.Enqueue(ctx, delayqueue.Job{Key: "k0"}); return err },
			"claim":   func(context.Context) error { return b.queue.ClaimAndDie(time.Minute) },
			"cancel":  func(ctx context.Context) error { return b.queue.Cancel(ctx, keyless) },
			"stats":   func(ctx context.Context) error { _, err := b.queue.Stats(ctx); return err },
			"list": func(ctx context.Context) error {
				_, _, err := b.queue.List(ctx, delayqueue.StateQueued, "", 100)
				return err
			},
		} {
			all.Go(func() {
				err := do(t.Context())
				assert.ErrorIs(t, err, core.ErrUnavailable, "%s, %d", what, moved)
				assert.ErrorContains(t, err, "slot", "%s, %d", what, moved)
			})
		}
		all.Wait()
		require.Equal(t, want, slot.Keys(t), "nothing was begun anew")
		require.Equal(t, delayqueue.StateQueued, b.status(ids[0]).State, "a record is read where it is")
	}
	slot.MoveKeys(t)
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

// reshardingLoad is a queue that is filled and worked off while it is moved to another node and back.
type reshardingLoad struct {
	parked, workers int
	pause           time.Duration // between two jobs of a producer
	move            func(t *testing.T, c *redistest.Cluster, from, to *redistest.Server)
}

// What an operator does, and a tool that takes its time.
var reshardings = map[string]func(t *testing.T, c *redistest.Cluster, from, to *redistest.Server){
	"redis-cli": func(t *testing.T, c *redistest.Cluster, from, to *redistest.Server) { c.Reshard(t, from, to) },
	"redis-cli, replace, key by key": func(t *testing.T, c *redistest.Cluster, from, to *redistest.Server) {
		c.Reshard(t, from, to, "--cluster-replace", "--cluster-pipeline", "1")
	},
	"by hand, slowly": func(t *testing.T, c *redistest.Cluster, _, to *redistest.Server) {
		slot := c.Migrate(t, "{"+nameInSlot0+"}", to)
		for n := 1; slot.MoveSome(t, n) > 0; n *= 2 { // more and more: each long payload is a key
			time.Sleep(100 * time.Millisecond)
		}
		slot.Finish(t)
	},
}

// All that was acknowledged ends as it should, once, and in order. make soak-queue does each way to move with one worker and with three.
func TestReshard_UnderLoad(t *testing.T) {
	for name, workers := range map[string]int{"redis-cli": 1, "by hand, slowly": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reshardingLoad{parked: 300, workers: workers, pause: 10 * time.Millisecond, move: reshardings[name]}.test(t)
		})
	}
}

func (l reshardingLoad) test(t *testing.T) {
	t.Helper()
	c := redistest.StartCluster(t, 3, 0)
	r := &resharded{bench: onCluster(t, c, nameInSlot0, delayqueue.WithMaxDepth(100_000))}
	home, away := c.NodeOf(t, "{"+nameInSlot0+"}"), c.AnotherThan(t, "{"+nameInSlot0+"}")

	var all sync.WaitGroup
	for p := range r.acked {
		all.Go(func() {
			for range l.parked / len(r.acked) {
				r.produce(p)
			}
		})
	}
	all.Wait()
	for range l.workers {
		other := onCluster(t, c, nameInSlot0, delayqueue.WithMaxDepth(100_000))
		other.start(r.work, delayqueue.WithConcurrency(len(r.acked)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for p := range r.acked {
		all.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(l.pause) {
				r.produce(p)
			}
		})
	}
	for _, way := range [][2]*redistest.Server{{home, away}, {away, home}} {
		l.move(t, c, way[0], way[1])
		served := len(r.ran.all())
		require.Equal(t, way[1].Addr, c.NodeOf(t, "{"+nameInSlot0+"}").Addr)
		redistest.Eventually(t, func() bool { return len(r.ran.all()) > served+len(r.acked) }, "it is served at its new place")
	}
	cancel()
	all.Wait()
	r.requireAllEnded()
}

// resharded is such a queue, and what its producers and workers saw.
type resharded struct {
	*bench
	acked [10][]string // by producer, each of which has a key
	ran   ran
}

func (r *resharded) produce(p int) {
	n := len(r.acked[p])
	job := delayqueue.Job{ID: fmt.Sprintf("p%d.%d", p, n), Key: fmt.Sprint("k", p)}
	job.Payload = payloadOf(job.ID)
	switch n % 50 {
	case 10:
		job.Name = "poison"
	case 11:
		job.MaxAge = time.Millisecond
	}
	_, err := r.queue.Enqueue(context.Background(), job)
	for ; errors.Is(err, core.ErrUnavailable); _, err = r.queue.Enqueue(context.Background(), job) {
		time.Sleep(10 * time.Millisecond)
	}
	if assert.NoError(r.t, err) {
		r.acked[p] = append(r.acked[p], job.ID)
	}
}

func (r *resharded) work(ctx context.Context, m delayqueue.Message) error {
	time.Sleep(time.Millisecond)
	_ = r.ran.handle(ctx, m)
	if !bytes.Equal(m.Payload, payloadOf(m.ID)) {
		return delayqueue.SkipRetry(errors.New("another payload"))
	}
	if m.Name == "poison" {
		return delayqueue.SkipRetry(errors.New("poison"))
	}
	return nil
}

// requireAllEnded requires that what was acknowledged has ended as it should, once, and in order.
func (r *resharded) requireAllEnded() {
	t := r.t
	t.Helper()
	for s := r.inState(); s[0]+s[1] > 0; s = r.inState() {
		time.Sleep(20 * time.Millisecond)
	}
	var ids []string
	states, expired := map[delayqueue.State]int{}, map[string]bool{}
	for _, id := range slices.Concat(r.acked[:]...) {
		s := r.status(id)
		if states[s.State]++; s.State == delayqueue.StateExpired {
			expired[id] = true
			continue
		}
		if ids = append(ids, id); s.State != delayqueue.StateDone {
			require.Equal(t, [2]any{delayqueue.StateDead, "poison"}, [2]any{s.State, s.Cause}, id)
		}
	}
	require.Len(t, states, 3, "each way to end")
	requireOnceInOrder(t, ids, r.ran.all())
	for _, m := range r.ran.all() {
		require.False(t, expired[m.ID], "message %s is expired, and ran", m.ID)
	}
}

// requireOnceInOrder requires that each id ran, again only if its handler could see that a claim was lost, and
// those of a key in this order.
func requireOnceInOrder(t *testing.T, ids []string, ran []delayqueue.Message) {
	t.Helper()
	place := map[string]int{}
	for i, id := range ids {
		place[id] = i
	}
	last, losses := map[string]int{}, map[string]int{}
	for _, m := range ran {
		lost, again := losses[m.ID]
		require.True(t, !again || m.Losses > lost, "message %s ran twice, with %d and %d losses", m.ID, lost, m.Losses)
		losses[m.ID] = m.Losses
		before, ok := last[m.Key]
		require.True(t, !ok || before <= place[m.ID], "message %s ran after a later one of its key", m.ID)
		last[m.Key] = place[m.ID]
	}
	for _, id := range ids {
		_, did := losses[id]
		require.True(t, did, "message %s did not run", id)
	}
}

// nameInSlot0 is a queue whose keys are in the first slot of a Cluster's first node:
// redis-cli moves a node's first slots.
const nameInSlot0 = "q17914"

// onCluster is a queue on a Cluster, and a locker for its workers.
func onCluster(t *testing.T, c *redistest.Cluster, name string, opts ...delayqueue.Option) *bench {
	t.Helper()
	b := &bench{t: t, env: &redistest.Env{Prefix: "p", Real: true}}
	var err error
	b.queue, err = delayqueue.New(c.Client(t), name, append([]delayqueue.Option{
		delayqueue.WithPrefix(b.env.Prefix), delayqueue.WithMaxDepthPerKey(100_000), delayqueue.WithPartitions(1),
	}, opts...)...)
	require.NoError(t, err)
	b.locker = b.lockerOn(c.Client(t))
	return b
}

// payloadOf is what the message of an id carries: for some it is too long for a record.
func payloadOf(id string) []byte {
	if strings.HasSuffix(id, "7") {
		return bytes.Repeat([]byte(id+" "), 2000)
	}
	return []byte(id)
}
