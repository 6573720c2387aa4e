package delayqueue_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestQueues_TellsOfEachManifest(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		all, err := delayqueue.Queues(ctx, rdb, env.Prefix)
		require.NoError(t, err)
		require.Empty(t, all)
		var users sync.WaitGroup
		for name, opts := range map[string][]delayqueue.Option{
			"ship": {delayqueue.WithPartitions(3), delayqueue.WithService("shop")}, "mail": {delayqueue.WithEncryption(keyring)}, "A.b-c_1": nil,
		} {
			for range 5 { // many at once
				q := testbed.NewQueue(t, env.Client(t), name, append(opts, delayqueue.WithPrefix(env.Prefix))...)
				users.Go(func() {
					assert.NoError(t, errOf(q.Enqueue(ctx, delayqueue.Job{Key: "k"})))
				})
			}
		}
		users.Wait()
		of(testbed.NewQueue(t, rdb, "other", delayqueue.WithPrefix(env.Prefix+"2")).Stats(ctx))(t)

		names := env.Prefix + ":queue:names"
		require.NoError(t, rdb.ZAdd(ctx, names, redis.Z{Member: "not a queue"}, redis.Z{Member: "gone"}, redis.Z{Member: "newer"}, redis.Z{Member: "junk"}).Err())
		require.NoError(t, rdb.HSet(ctx, env.Prefix+":queue:{newer}:manifest", "layout", "4", "revision", "1").Err())
		require.NoError(t, rdb.Set(ctx, env.Prefix+":queue:{junk}:manifest", "junk", 0).Err())
		all, err = delayqueue.Queues(ctx, rdb, env.Prefix)
		require.NoError(t, err)
		require.Len(t, all, 5)
		require.Equal(t, delayqueue.Info{Name: "A.b-c_1", Partitions: 1}, all[0])
		require.Equal(t, delayqueue.Info{Name: "mail", Partitions: 1, Encrypted: true}, all[2])
		require.Equal(t, delayqueue.Info{Name: "ship", Partitions: 3, Service: "shop"}, all[4])
		for _, i := range []int{1, 3} {
			require.Equal(t, []string{"", "junk", "", "newer"}[i], all[i].Name)
			require.ErrorIs(t, all[i].Err, delayqueue.ErrOtherLayout)
		}
		require.ErrorIs(t, errOf(delayqueue.Queues(ctx, rdb, "{}")), core.ErrInvalidOption)
	})
}

// A process that dies between the two writes, or a queue whose manifest was removed, leaves no queue that is not listed.
func TestQueues_ANameIsListedBeforeItsManifest(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		var commands []string
		rdb := b.env.Client(t)
		rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if cmd.Name() == "zadd" || redistest.IsScript(cmd) {
				mu.Lock()
				defer mu.Unlock()
				commands = append(commands, fmt.Sprint(cmd.Name(), len(cmd.Args())))
			}
		}))
		q := b.newQueue(rdb)
		require.NoError(t, errOf(q.Stats(t.Context())))
		listed := strings.Index(strings.Join(commands, " "), "zadd4")
		written := strings.Index(strings.Join(commands, " "), "evalsha9") // a revision, and two fields with their values
		require.Positive(t, listed)
		require.Greater(t, written, listed, commands)
		commands = nil
		require.NoError(t, errOf(q.Stats(t.Context())))
		require.NotContains(t, strings.Join(commands, " "), "zadd", "once")

		names := b.env.Prefix + ":queue:names"
		require.NoError(t, b.rdb.Del(t.Context(), names, b.key("manifest")).Err())
		require.NoError(t, errOf(q.Stats(t.Context())))
		all, err := delayqueue.Queues(t.Context(), rdb, b.env.Prefix)
		require.NoError(t, err)
		require.Len(t, all, 1, "as if it were new")
		require.NoError(t, b.rdb.Del(t.Context(), names).Err())
		b.enqueue(delayqueue.Job{})
		redistest.Eventually(t, func() bool {
			all, err = delayqueue.Queues(t.Context(), rdb, b.env.Prefix)
			return err == nil && len(all) == 1
		}, "the next process that uses it lists it")
	})
}

// What keeps the names from being written keeps nobody from the queue.
func TestQueues_ForeignListOfNames(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		require.NoError(t, b.rdb.Set(t.Context(), b.env.Prefix+":queue:names", "junk", 0).Err())
		b.enqueue(delayqueue.Job{Key: "k"})
		require.ErrorIs(t, errOf(delayqueue.Queues(t.Context(), b.rdb, b.env.Prefix)), core.ErrUnavailable)
		require.NoError(t, b.rdb.Del(t.Context(), b.env.Prefix+":queue:names").Err())
		require.NoError(t, errOf(b.queue.Stats(t.Context())))
		redistest.Eventually(t, func() bool {
			all, err := delayqueue.Queues(t.Context(), b.rdb, b.env.Prefix)
			return err == nil && len(all) == 1
		}, "it is tried again")
	})
}

func TestOpen_WritesNoManifest(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		b := setup(t, env, delayqueue.WithService("shop"), delayqueue.WithPartitions(4))
		open := func(opts ...delayqueue.Option) (*delayqueue.Queue, error) {
			return delayqueue.Open(ctx, env.Client(t), "q", append(opts, delayqueue.WithPrefix(env.Prefix))...)
		}
		require.ErrorIs(t, errOf(open()), delayqueue.ErrNoQueue)
		require.Zero(t, b.rdb.Exists(ctx, b.key("manifest"), env.Prefix+":queue:names").Val())

		id := b.enqueue(delayqueue.Job{Key: "k", Payload: []byte("clear")})
		was := b.manifest()
		q := of(open(delayqueue.WithEncryption(keyring)))(t)
		require.ErrorIs(t, errOf(q.Enqueue(ctx, delayqueue.Job{Key: "k"})), delayqueue.ErrOperator)
		require.ErrorIs(t, errOf(delayqueue.NewWorker(q, b.locker, func(context.Context, delayqueue.Message) error { return nil })), core.ErrInvalidOption)
		require.NoError(t, q.Pause(ctx, time.Minute))
		require.NoError(t, q.Resume(ctx))
		info := of(q.Info(ctx))(t)
		require.Equal(t, delayqueue.Info{Name: "q", Service: "shop", Partitions: 4}, info)
		require.ErrorIs(t, errOf(open(delayqueue.WithService("billing"))), delayqueue.ErrOtherService)
		require.Equal(t, was, b.manifest())

		s := of(q.Status(ctx, id))(t)
		require.Equal(t, delayqueue.StateQueued, s.State)

		require.NoError(t, b.rdb.Del(ctx, b.key("manifest")).Err())
		require.ErrorIs(t, errOf(q.Stats(ctx)), delayqueue.ErrNoQueue, "it is gone")
		require.Empty(t, b.manifest())
	})
}

// The operator does not know the queue's bounds and times, so that nothing of it is refused or forgotten that they allow.
func TestOpen_LooksAfterAQueue(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		ids := b.bury(jobs(5, func(i int) delayqueue.Job {
			return delayqueue.Job{Key: fmt.Sprint("k", i%2), Payload: []byte("secret")}
		})...)
		for _, key := range b.rdb.Keys(ctx, b.env.Prefix+":queue:{q/*:x").Val() { // died long ago
			for _, z := range b.rdb.ZRangeWithScores(ctx, key, 0, -1).Val() {
				z.Score -= float64((20 * 24 * time.Hour).Milliseconds())
				require.NoError(t, b.rdb.ZAdd(ctx, key, z).Err())
			}
		}

		o := b.open()
		s := of(o.Stats(ctx))(t)
		require.Equal(t, [2]int64{5, 3}, [2]int64{s.Dead, int64(s.Partitions)})
		entries, _, err := o.List(ctx, delayqueue.StateDead, "", 10)
		require.NoError(t, err)
		require.Len(t, entries, 5)
		require.NotContains(t, entries[0].Cause, "no luck", "it is sealed")
		require.ErrorIs(t, errOf(o.Payload(ctx, ids[0])), delayqueue.ErrSealed)
		require.NoError(t, o.Purge(ctx, ids[4]))
		require.Equal(t, 2, of(o.RedriveAll(ctx, delayqueue.Filter{Key: "k0"}, delayqueue.RedriveOptions{}))(t))
		require.NoError(t, o.Cancel(ctx, ids[0]))
		line, _, err := o.Line(ctx, "k0", "", 10)
		require.NoError(t, err)
		require.Len(t, line, 1)
		require.Equal(t, delayqueue.StateCancelled, b.status(ids[0]).State)
		require.Equal(t, delayqueue.StateQueued, b.status(ids[2]).State)
	}, delayqueue.WithEncryption(keyring), delayqueue.WithPartitions(3), delayqueue.WithDeadRetention(30*24*time.Hour))
}

// What has ended is forgotten early by the bounds of the queue's own processes, and not by an operator's.
func TestOpen_ForgetsNothingEarly(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ctx := t.Context()
		b.start(func(ctx context.Context, _ delayqueue.Message) error {
			return delayqueue.SetResult(ctx, make([]byte, 10))
		})
		first := b.enqueue(delayqueue.Job{Key: "k"})
		b.reaches(first, delayqueue.StateDone)
		past := time.Now().Add(-10 * time.Minute).UnixMilli()
		// As if more than the default of WithMaxBytes had ended, and all of it some time ago.
		require.NoError(t, b.rdb.HSet(ctx, b.key("c"), "made", fmt.Sprint("2 ", past, " 0 0 ", past+1_000_000, " ", 60<<20, " 0 0 0 0 0 ", past, " 0 0"),
			"ended", fmt.Sprint(60<<20)).Err())
		require.NoError(t, b.open().Cancel(ctx, b.enqueue(delayqueue.Job{Key: "k", Delay: time.Minute})))
		require.Equal(t, delayqueue.StateDone, b.status(first).State)
	}, delayqueue.WithMaxBytes(1<<30))
}

// What is dead is in the queue's memory already: no bound that the operator does not know keeps it from being redriven.
func TestOpen_RedrivesWhateverTheBounds(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		dead := b.bury(delayqueue.Job{Key: "k"})[0]
		b.enqueueAll(1000, func(int) delayqueue.Job { return delayqueue.Job{Key: "k"} }) // as many as there may be by default
		require.NoError(t, b.open().Redrive(t.Context(), dead, 0))
	}, delayqueue.WithMaxDepthPerKey(2000))
}

func TestQueues_TheFirstUseWaitsForTheNamesNoLongerThanItsContext(t *testing.T) {
	env := redistest.Embedded(t)
	rdb := env.Client(t)
	rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "zadd" { // the list of names does not answer
			<-ctx.Done()
			return ctx.Err()
		}
		return next(ctx, cmd)
	}))
	q := setup(t, env).newQueue(rdb)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Error(t, errOf(q.Enqueue(ctx, delayqueue.Job{})))
}
