package delayqueue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestACL_TheSmallestRightsOfAQueue(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := redistest.Client(t, &redis.Options{Addr: server.Addr})
	client := func(user string) redis.UniversalClient {
		return redistest.Client(t, &redis.Options{Addr: server.Addr, Username: user, Password: redistest.Password})
	}
	addUsers(t, admin)
	liveUnder(t, admin, client)
	require.Empty(t, redistest.Denied(t, admin), "nothing more was asked for")
	redistest.RequireUsed(t, admin, redistest.Rights(t, "queues"), seldomUsed)
}

func TestACL_TheSmallestRightsOfAQueueOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	admin := c.Client(t)
	addUsers(t, admin, "on a Cluster")
	liveUnder(t, admin, func(user string) redis.UniversalClient {
		return c.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = user, redistest.Password })
	})
	require.Empty(t, redistest.Denied(t, admin), "nothing more was asked for")
	info := of(testbed.NewQueue(t, admin, "q").Info(t.Context()))(t)
	require.Equal(t, delayqueue.DefaultClusterPartitions, info.Partitions, "each in a slot of its own")
}

// addUsers adds the users of a queue and of its workers' and guards' lockers.
func addUsers(t *testing.T, admin redis.UniversalClient, more ...string) {
	t.Helper()
	redistest.AddUser(t, admin, "queues", redistest.Rights(t, append(more, "queues")...))
	redistest.AddUser(t, admin, "locks", redistest.Rights(t, append(more,
		"locks", "locks that are waited for", "locks of parked work, Inspect")...))
}

// liveUnder does all that can be done with a queue, with clients of these users. It is long since it is one story.
func liveUnder(t *testing.T, admin redis.UniversalClient, client func(user string) redis.UniversalClient) {
	t.Helper()
	ctx := t.Context()
	queue := testbed.NewQueue(t, client("queues"), "q", delayqueue.WithMaxAttempts(2))
	b := &bench{t: t, queue: queue, locker: testbed.NewLocker(t, client("locks")), other: testbed.NewLocker(t, admin)}
	w := b.start(func(ctx context.Context, m delayqueue.Message) error {
		switch m.Name {
		case "fails":
			return errors.New("no")
		case "slow":
			time.Sleep(time.Second) // its claim is extended
		}
		return delayqueue.SetResult(ctx, []byte("result"))
	}, delayqueue.WithClaimLease(2*time.Second))

	var ids []string
	for i := range 3 {
		ids = append(ids, b.enqueue(delayqueue.Job{Key: "k", Name: []string{"", "slow", ""}[i]}))
	}
	held := b.hold("held")
	ids = append(ids, b.enqueue(delayqueue.Job{Key: "held"}))
	cancelled := b.enqueue(delayqueue.Job{Key: "k", Delay: time.Minute})
	require.NoError(t, queue.Cancel(ctx, cancelled))
	ids = append(ids, cancelled, b.enqueue(delayqueue.Job{MaxAge: 20 * time.Millisecond, Delay: 10 * time.Millisecond, Key: "other"}))
	dead := b.enqueue(delayqueue.Job{Name: "fails", Payload: make([]byte, 10_000)})
	b.reaches(dead, delayqueue.StateDead)
	require.NoError(t, queue.Redrive(ctx, dead, 0))
	b.parkAndCancel("parked")
	require.NoError(t, held.Release(ctx))
	for _, id := range append(ids, dead) {
		b.waitFor(id)
	}
	require.Equal(t, "result", b.result(ids[0]))
	b.peek(dead)
	b.payload(dead)
	require.Len(t, b.list(delayqueue.StateDead), 1)
	require.Equal(t, 1, b.redriveAll(delayqueue.Filter{}, delayqueue.RedriveOptions{}))
	b.reaches(dead, delayqueue.StateDead)
	require.NoError(t, queue.Purge(ctx, dead))
	require.Zero(t, b.purgeAll(delayqueue.Filter{}))
	all := of(delayqueue.Queues(ctx, client("queues"), ""))(t)
	require.Equal(t, []delayqueue.Info{{Name: "q", Partitions: b.stats().Partitions}}, all)
	operated := of(delayqueue.Open(ctx, client("queues"), "q"))(t)
	require.NoError(t, operated.Pause(ctx, time.Minute))
	require.NoError(t, queue.Pause(ctx, time.Minute))
	require.NoError(t, errOf(queue.CancelAll(ctx, delayqueue.Filter{})))
	require.NoError(t, queue.Resume(ctx))
	require.Equal(t, [3]int64{}, b.inState())
	require.NoError(t, w.Stop(ctx))
}

// parkAndCancel has the policy park a call, and cancels it: a worker ends the key's reservation.
func (b *bench) parkAndCancel(key string) {
	b.t.Helper()
	held := b.hold(key)
	id := park(b.t, b.locker.Guard(delayqueue.Policy(b.queue)), core.Call{Key: key, Encode: nothing})
	redistest.Eventually(b.t, func() bool { return b.queue.Cancel(b.t.Context(), id) == nil }, "it is not claimed at the moment")
	b.isNotReserved(key)
	require.NoError(b.t, held.Release(b.t.Context()))
}

// seldomUsed are the commands that the life of a queue can do without, by what has them run.
var seldomUsed = map[string]string{
	"ping":     "a subscription that is idle for seconds",
	"persist":  "many messages",
	"zrank":    "a second page",
	"zrevrank": "a second page",
}
