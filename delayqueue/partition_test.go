package delayqueue_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// inPartition is a name for a key that is in the i-th partition of n.
func inPartition(t *testing.T, b *bench, i, n int) string {
	t.Helper()
	for at := range 1000 {
		key := fmt.Sprint("in", at)
		id := b.enqueue(delayqueue.Job{Key: key, Delay: time.Minute})
		there, err := b.rdb.HExists(t.Context(), fmt.Sprintf("%s:queue:{q/%d.%d}:m", b.env.Prefix, i, n), id).Result()
		require.NoError(t, err)
		require.NoError(t, b.queue.Cancel(t.Context(), id))
		if there {
			return key
		}
	}
	require.Fail(t, "no key is in the partition")
	return ""
}

func TestPartition_APartitionThatIsDownCostsTheOthersNoClaim(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		const lease = 2 * time.Second
		keys := []string{inPartition(t, b, 1, 2), inPartition(t, b, 2, 2)}
		rdb := b.env.Client(t)
		var sick atomic.Bool
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if args := cmd.Args(); sick.Load() && redistest.IsScript(cmd) && args[3] == b.env.Prefix+":queue:{q/1.2}:m" { // as when its node is down
				time.Sleep(2 * lease)
				cmd.SetErr(context.DeadlineExceeded)
				return context.DeadlineExceeded
			}
			return next(ctx, cmd)
		}))
		started := make(chan struct{}, 2)
		var runs atomic.Int64
		b.startOn(b.newQueue(rdb, delayqueue.WithPartitions(2)), func(ctx context.Context, m delayqueue.Message) error {
			select {
			case started <- struct{}{}:
			case <-ctx.Done(): // it runs again
			}
			if m.Key == keys[0] {
				<-ctx.Done() // its claim cannot be kept
				return nil
			}
			runs.Add(1)
			select {
			case <-ctx.Done():
			case <-time.After(4 * lease): // the promise is about time
			}
			return context.Cause(ctx)
		}, delayqueue.WithClaimLease(lease))
		b.enqueue(delayqueue.Job{Key: keys[0]})
		well := b.enqueue(delayqueue.Job{Key: keys[1]})
		next(t, started)
		next(t, started)
		sick.Store(true)
		s := b.reaches(well, delayqueue.StateDone)
		require.Equal(t, []int{1, 0}, []int{s.Attempts, s.Losses})
		require.EqualValues(t, 1, runs.Load())
		sick.Store(false)
	}, delayqueue.WithPartitions(2))
}

func TestPartition_ABusyPartitionDoesNotKeepTheOthersFromAWorker(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		busy, other := inPartition(t, b, 1, 2), inPartition(t, b, 2, 2)
		for range 3 {
			b.enqueue(delayqueue.Job{Key: busy})
		}
		var runs atomic.Int64
		w := b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Key == busy {
				runs.Add(1)
				_, err := b.queue.Enqueue(ctx, delayqueue.Job{Key: busy}) // there is always more
				return err
			}
			return nil
		}, delayqueue.WithConcurrency(1))
		redistest.Eventually(t, func() bool { return runs.Load() > 10 }, "the busy one runs")
		b.reaches(b.enqueue(delayqueue.Job{Key: other}), delayqueue.StateDone)
		require.NoError(t, w.Stop(t.Context()))
	}, delayqueue.WithPartitions(2))
}

// Each partition is in a slot of its own; so is the manifest.
func TestPartition_OnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	b := &bench{t: t, env: &redistest.Env{Real: true, Prefix: "p"}}
	b.queue, b.locker = b.newQueue(c.Client(t)), testbed.NewLocker(t, c.Client(t), core.WithPrefix("p"))
	require.Equal(t, delayqueue.DefaultClusterPartitions, b.stats().Partitions)
	var ids []string
	for i := range 200 {
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
