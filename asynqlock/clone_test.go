package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

const originHeader = "Perkey-Origin"

// TestClone_KeepsTheOptions is long since there are many options.
func TestClone_KeepsTheOptions(t *testing.T) {
	t.Parallel()
	for name, maxRetry := range map[string]int{"cloned": 0, "retried": 4} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				release := b.hold(t, key)
				before := time.Now()
				deadline := before.Add(time.Hour).Truncate(time.Second)
				headers := map[string]string{"traceparent": "00-1-2-03"}
				enqueue := func() (*asynq.TaskInfo, error) {
					return b.client.EnqueueContext(t.Context(), asynq.NewTaskWithHeaders(kind, []byte(payload), headers),
						asynq.Queue(b.queue), asynq.MaxRetry(maxRetry), asynq.Unique(time.Hour), asynq.Timeout(7*time.Minute),
						asynq.Deadline(deadline), asynq.Retention(10*time.Minute))
				}
				ids := make(chan string, 1)
				var origin asynqlock.Origin
				b.serve(t, b.config(), b.perKey(soon)(does(func(ctx context.Context, task *asynq.Task) {
					in, _ := ctx.Deadline()
					assert.WithinDuration(t, time.Now().Add(7*time.Minute), in, 30*time.Second)
					origin, _ = asynqlock.OriginOf(ctx, task)
					_, err := task.ResultWriter().Write([]byte("charged"))
					assert.NoError(t, err)
					ids <- task.ResultWriter().TaskID()
				})))
				first, err := enqueue()
				require.NoError(t, err)
				b.untilConflicts(t, 20)
				for range 20 { // in whatever state the task is
					_, err = enqueue()
					require.ErrorIs(t, err, asynq.ErrDuplicateTask)
				}
				locks := redistest.Keys(t, b.rdb, "asynq:{"+b.queue+"}:unique:")
				require.Len(t, locks, 1)
				left, err := b.rdb.TTL(t.Context(), locks[0]).Result()
				require.NoError(t, err)
				require.Greater(t, left, 50*time.Minute)
				require.LessOrEqual(t, left, time.Hour)
				var last string
				redistest.Eventually(t, func() bool {
					if maxRetry == 0 {
						return true
					}
					last = b.info(t, first.ID).LastErr
					return strings.Contains(last, "asynqlock: not run: the key is held") && strings.Contains(last, " (waiting since ")
				}, "the wait is stored")
				requireNoSecret(t, last)
				b.requireArchived(t, 0)
				release()

				id := get(t, ids)
				require.Equal(t, maxRetry == 0, id != first.ID)
				if maxRetry == 0 {
					require.Equal(t, first.ID, origin.ID)
					require.Greater(t, origin.Clone, 5)
					require.WithinRange(t, origin.Since, before.Add(-time.Second), time.Now())
				}
				info := b.untilState(t, id, asynq.TaskStateCompleted)
				require.Equal(t, b.queue, info.Queue)
				require.Equal(t, kind, info.Type)
				require.JSONEq(t, payload, string(info.Payload))
				require.Equal(t, maxRetry, info.MaxRetry)
				require.Zero(t, info.Retried)
				require.Equal(t, 7*time.Minute, info.Timeout)
				require.True(t, deadline.Equal(info.Deadline), info.Deadline)
				require.Equal(t, 10*time.Minute, info.Retention)
				require.Equal(t, "charged", string(info.Result))
				delete(info.Headers, originHeader)
				require.Equal(t, headers, info.Headers)
				require.Empty(t, b.all(t), "it ran once")

				// It ended, and its lock with it.
				_, err = enqueue()
				require.NoError(t, err)
				get(t, ids)
			})
		})
	}
}

func TestClone_LeavesAForeignTaskWithItsIDAlone(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.subscribed(t, b.locker)
		release := b.hold(t, key)
		// A handler handed its headers on to another task, too.
		foreign := asynq.NewTaskWithHeaders("else", nil, map[string]string{originHeader: `{"id":"y","clone":1}`})
		b.enqueue(t, foreign, asynq.TaskID("x~1"), asynq.ProcessIn(time.Hour))
		b.enqueue(t, task(), asynq.TaskID("x~2"), asynq.ProcessIn(time.Hour))
		ids := make(chan string, 10)
		b.serve(t, b.config(), b.perKey(late)(tellsID(ids)))
		b.enqueue(t, task(), asynq.TaskID("x"), asynq.MaxRetry(0), asynq.Unique(time.Minute))
		b.untilState(t, "x~3", asynq.TaskStateScheduled)
		_, err := b.client.Enqueue(task(), asynq.Queue(b.queue), asynq.Unique(time.Minute))
		require.ErrorIs(t, err, asynq.ErrDuplicateTask)
		release()
		redistest.Eventually(t, func() bool { return b.info(t, "x") == nil }, "the first has ended")
		require.Equal(t, "x~3", get(t, ids))
		redistest.Eventually(t, func() bool {
			_, err := b.client.Enqueue(task(), asynq.Queue(b.queue), asynq.Unique(time.Minute), asynq.ProcessIn(time.Hour))
			return err == nil
		}, "the lock has ended with its task")
		require.Equal(t, "else", b.info(t, "x~1").Type)
		require.Equal(t, asynq.TaskStateScheduled, b.info(t, "x~2").State)
	})
}

func TestClone_MadeTwiceGoesOnOnce(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.subscribed(t, b.locker)
		release := b.hold(t, key)
		ids := make(chan string, 10)
		guarded := b.perKey(late)(tellsID(ids))
		// The first server is never told that the task goes on as a clone, and hands it out again.
		silent, end := make(chan error, 1), make(chan struct{})
		defer close(end)
		cfg := b.config()
		cfg.ShutdownTimeout = time.Millisecond
		stop := b.serve(t, cfg, does(func(ctx context.Context, task *asynq.Task) {
			silent <- guarded.ProcessTask(ctx, task)
			<-end
		}))
		b.enqueue(t, task(), asynq.MaxRetry(0), asynq.TaskID("x"), asynq.Unique(time.Minute))
		err := get(t, silent)
		require.ErrorIs(t, err, asynq.RevokeTask)
		require.ErrorIs(t, err, asynqlock.ErrDeferred)
		require.ErrorIs(t, err, core.ErrConflict)
		requireNoSecret(t, err.Error())
		require.Equal(t, asynq.TaskStateScheduled, b.info(t, "x~1").State)
		stop()
		require.Equal(t, asynq.TaskStatePending, b.info(t, "x").State)

		b.serve(t, b.config(), guarded)
		redistest.Eventually(t, func() bool { return b.info(t, "x") == nil }, "the first has ended")
		left := b.all(t)
		require.Len(t, left, 1)
		require.Equal(t, "x~1", left[0].ID)
		release()
		require.Equal(t, "x~1", get(t, ids))
	})
}

func TestClone_AnIDGivenAgainLosesNoTask(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.subscribed(t, b.locker)
		b.hold(t, key)
		b.serve(t, b.config(), b.perKey(late)(mustNotRun(t)))
		// The last is the first once more, as asynq would say if that were still "x".
		for _, n := range []int{1, 2, 1} {
			b.enqueue(t, numbered(n), asynq.MaxRetry(0), asynq.TaskID("x"))
			redistest.Eventually(t, func() bool { return b.info(t, "x") == nil }, "the task goes on as a clone")
		}
		var payloads []string
		for _, info := range b.all(t) {
			payloads = append(payloads, string(info.Payload))
		}
		require.ElementsMatch(t, []string{string(numbered(1).Payload()), string(numbered(2).Payload())}, payloads)

		// asynq keeps archived tasks for 90 days: an id that is given again and again meets many.
		const ended = 110
		for n := range ended {
			id := b.enqueue(t, task(), asynq.TaskID(fmt.Sprintf("y~%d", n+1)), asynq.ProcessIn(time.Hour))
			require.NoError(t, b.inspector.ArchiveTask(b.queue, id))
		}
		b.enqueue(t, task(), asynq.MaxRetry(0), asynq.TaskID("y"))
		redistest.Eventually(t, func() bool { return b.info(t, "y") == nil }, "the task goes on as a clone")
		require.Len(t, b.all(t), 3)
		b.requireArchived(t, ended)
	})
}

func TestClone_OnACluster(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartCluster(t, 3, 0).Client(t)
	const queue = "q"
	locker := testbed.NewLocker(t, rdb)
	lease := testbed.Take(t, locker, key)
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	srv, err := asynqlock.NewServer(rdb, (&bench{env: &redistest.Env{Addr: "the Cluster"}, queue: queue}).config())
	require.NoError(t, err)
	ran, log := make(chan string, 1), &testbed.Log{}
	startServer(t, srv, asynqlock.PerKey(locker.Guard(core.RejectConflicts), walletKey, soon, asynqlock.WithLogger(log.Logger()))(tellsID(ran)))
	enqueue := func(id string) error {
		_, err := client.Enqueue(task(), asynq.Queue(queue), asynq.MaxRetry(0), asynq.TaskID(id), asynq.Unique(time.Minute))
		return err
	}
	require.NoError(t, enqueue("x"))
	redistest.Eventually(t, func() bool {
		_, err := inspector.GetTaskInfo(queue, "x")
		return errors.Is(err, asynq.ErrTaskNotFound)
	}, "the task goes on as a clone")
	require.ErrorIs(t, enqueue("y"), asynq.ErrDuplicateTask)
	require.NoError(t, lease.Release(t.Context()))
	require.Contains(t, get(t, ran), "x~")
	redistest.Eventually(t, func() bool { return enqueue("y") == nil }, "the lock has ended with its task")
	require.Equal(t, "y", get(t, ran))
	require.Empty(t, log.String())
}

// loser loses the reply to the command that enqueues a clone, and every later one until it is up.
type loser struct{ lost, up atomic.Bool }

func (h *loser) loses(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.lost.Load() && !h.up.Load() {
			return fail(cmd)
		}
		err := next(ctx, cmd)
		if cmd.Name() == "eval" && err == nil && slices.Contains(cmd.Args(), any("x~1")) && !h.lost.Swap(true) {
			return fail(cmd)
		}
		return err
	}
}

// A task whose clone was enqueued, while its own worker does not know, leaves the key to the clone.
func TestClone_ATaskThatIsPerhapsClonedDoesNotRunBesideIt(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		lease := testbed.Take(t, b.rival, key)
		require.NoError(t, lease.Extend(t.Context(), time.Hour), "the clone is not due before the end of the test")
		var replies loser
		rdb := b.env.Client(t)
		rdb.AddHook(hook(replies.loses))
		cfg := b.config()
		require.NoError(t, asynqlock.Configure(&cfg, rdb))
		ran := make(chan string, 10)
		b.start(t, cfg, b.perKey(asynqlock.WithDelay(time.Millisecond, time.Hour))(tellsID(ran)))
		b.enqueue(t, task(), asynq.MaxRetry(0), asynq.TaskID("x"), asynq.Unique(time.Minute))
		redistest.Eventually(t, replies.lost.Load, "the reply is lost")
		require.NoError(t, lease.Release(t.Context()))
		time.Sleep(700 * time.Millisecond) // two more attempts
		require.Empty(t, ran)
		require.Equal(t, asynq.TaskStateActive, b.info(t, "x").State)
		replies.up.Store(true)
		redistest.Eventually(t, func() bool { return b.info(t, "x") == nil }, "it is revoked for its clone")
		require.NoError(t, b.inspector.RunTask(b.queue, "x~1"))
		require.Equal(t, "x~1", get(t, ran))
		redistest.Eventually(t, func() bool { return len(b.all(t)) == 0 }, "nothing else goes on")
		require.Empty(t, ran)
	})
}

func TestClone_HeadersCopiedToAnotherTaskMakeNone(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		release := b.hold(t, key)
		clones := make(chan bool, 10)
		b.serve(t, b.config(), b.perKey(soon)(asynq.HandlerFunc(
			func(ctx context.Context, task *asynq.Task) error {
				_, clone := asynqlock.OriginOf(ctx, task)
				clones <- clone
				if task.Type() == kind {
					next := asynq.NewTaskWithHeaders("next", task.Payload(), task.Headers())
					_, err := b.client.EnqueueContext(ctx, next, asynq.Queue(b.queue))
					return err
				}
				return nil
			})))
		b.enqueue(t, task(), asynq.MaxRetry(0))
		b.untilConflicts(t, 2)
		release()
		require.True(t, get(t, clones))
		require.False(t, get(t, clones))
	})
}
