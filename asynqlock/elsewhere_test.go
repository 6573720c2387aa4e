package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// elsewhere is a Redis that is not the one of the server's queues.
func elsewhere(t *testing.T) *redis.Client {
	t.Helper()
	server, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return redistest.Client(t, redisAt(server.Addr()))
}

// serveElsewhere starts a server whose Configure was given another Redis.
func (b *bench) serveElsewhere(t *testing.T, cfg asynq.Config, other redis.UniversalClient, h asynq.Handler) (stop func()) {
	t.Helper()
	require.NoError(t, asynqlock.Configure(&cfg, other))
	return b.start(t, cfg, h)
}

const elsewhereWarning = "the Redis that Configure was given does not have this task as active"

func requireWarnedOnce(t *testing.T, log *testbed.Log) {
	t.Helper()
	redistest.Eventually(t, func() bool { return strings.Contains(log.String(), "level=ERROR") }, "the error is logged")
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
	require.Contains(t, log.String(), elsewhereWarning)
	requireNoSecret(t, log.String())
}

// The other Redis has a task of the same id, as that of another environment may. To clone that one
// and revoke this one would move the task to where its server never looks.
func TestConfigure_AnotherRedisWithATaskOfTheSameIDLosesNoTask(t *testing.T) {
	t.Parallel()
	for _, maxRetry := range []int{0, 3} {
		t.Run(fmt.Sprint("MaxRetry ", maxRetry), func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				release := b.hold(t, key)
				other := elsewhere(t)
				_, err := asynq.NewClientFromRedisClient(other).Enqueue(task(),
					asynq.Queue(b.queue), asynq.TaskID("x"), asynq.MaxRetry(maxRetry), asynq.ProcessIn(time.Hour))
				require.NoError(t, err)
				before := redistest.Keys(t, other, "asynq:")

				log := &testbed.Log{}
				ran := make(chan string, 10)
				b.serveElsewhere(t, b.config(), other, b.perKey(soon, asynqlock.WithLogger(log.Logger()))(tellsID(ran)))
				b.enqueue(t, task(), asynq.TaskID("x"), asynq.MaxRetry(maxRetry), asynq.Retention(time.Hour))
				b.untilConflicts(t, 3)
				requireWarnedOnce(t, log)
				if maxRetry > 0 {
					info := b.info(t, "x")
					require.Contains(t, info.LastErr, elsewhereWarning)
					require.Contains(t, info.LastErr, "(waiting since")
					require.Zero(t, info.Retried)
					requireNoSecret(t, info.LastErr)
				}
				release()
				require.Equal(t, "x", get(t, ran))
				b.untilState(t, "x", asynq.TaskStateCompleted)
				require.Equal(t, before, redistest.Keys(t, other, "asynq:"), "nothing was written there")
				b.requireArchived(t, 0)
			})
		})
	}
}

// The first task tells, also where no key is ever fought for.
func TestConfigure_AnotherRedisIsLoggedAtTheFirstTask(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		log := &testbed.Log{}
		ran := make(chan struct{}, 10)
		b.serveElsewhere(t, b.config(), elsewhere(t), b.perKey(asynqlock.WithLogger(log.Logger()))(tells(ran)))
		for n := 0; n < 5 || log.String() == ""; n++ { // a Redis that is slow to answer is asked again at the next task
			b.enqueue(t, asynq.NewTask(kind, fmt.Appendf(nil, `{"user_id":%d}`, n)))
			get(t, ran)
		}
		require.Zero(t, b.conflicts.n.Load())
		requireWarnedOnce(t, log)
	})
}

// A task that stays in its worker is handed out again when its server shuts down.
func TestConfigure_AnotherRedisKeepsTheTaskThroughAShutdown(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		release := b.hold(t, key)
		cfg := b.config()
		cfg.ShutdownTimeout = time.Millisecond
		o := outcomes{told: make(chan asynqlock.Outcome, 10)}
		stop := b.serveElsewhere(t, cfg, elsewhere(t), b.perKey(soon, asynqlock.WithObserver(o))(mustNotRun(t)))
		id := b.enqueue(t, task(), asynq.MaxRetry(0), asynq.Retention(time.Hour))
		b.untilConflicts(t, 2)
		stop()
		require.Equal(t, asynq.TaskStatePending, b.info(t, id).State)
		e := get(t, o.told)
		require.Equal(t, asynqlock.OutcomeDeferred, e.Kind)
		require.Error(t, e.Err)
		require.False(t, e.Since.IsZero())
		release()
		b.serve(t, b.config(), b.perKey(soon)(fails(nil)))
		b.untilState(t, id, asynq.TaskStateCompleted)
	})
}

// A client of no use is as bad as one of another Redis: a read replica's, one without rights.
func TestConfigure_ARedisThatTakesNoCloneArchivesNoTask(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		release := b.hold(t, key)
		rdb := b.env.Client(t)
		rdb.AddHook(hook(func(redis.ProcessHook) redis.ProcessHook {
			return func(_ context.Context, cmd redis.Cmder) error { return fail(cmd) }
		}))
		log := &testbed.Log{}
		ran := make(chan struct{}, 10)
		b.serveElsewhere(t, b.config(), rdb, b.perKey(soon, asynqlock.WithLogger(log.Logger()))(tells(ran)))
		id := b.enqueue(t, task(), asynq.MaxRetry(0), asynq.Retention(time.Hour))
		b.untilConflicts(t, 3)
		require.Equal(t, asynq.TaskStateActive, b.info(t, id).State)
		release()
		get(t, ran)
		b.untilState(t, id, asynq.TaskStateCompleted)
		require.Equal(t, 1, strings.Count(log.String(), "level="), log.String())
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), errOops.Error())
	})
}

// asynq bounds every task's time in a worker.
func TestConfigure_ATaskThatCannotBeClonedIsReportedWhenItsTimeIsOver(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		b.hold(t, key)
		cfg := b.config()
		reported := make(chan error, 10)
		cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { reported <- err })
		returned := make(chan error, 10)
		o := outcomes{told: make(chan asynqlock.Outcome, 10)}
		guarded := b.perKey(soon, asynqlock.WithObserver(o))(mustNotRun(t))
		b.serveElsewhere(t, cfg, redistest.Another(t).Client(t), asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := guarded.ProcessTask(ctx, task)
			returned <- err
			return err
		}))
		id := b.enqueue(t, task(), asynq.MaxRetry(0), asynq.Timeout(time.Second))
		require.ErrorIs(t, get(t, reported), context.DeadlineExceeded)
		err := get(t, returned)
		if !errors.Is(err, context.DeadlineExceeded) { // it was over during a try
			require.ErrorIs(t, err, core.ErrConflict)
			require.ErrorContains(t, err, "its time ran out")
		}
		require.NotErrorIs(t, err, asynqlock.ErrDeferred)
		requireNoSecret(t, err.Error())
		b.untilState(t, id, asynq.TaskStateArchived)
		e := get(t, o.told)
		require.Equal(t, asynqlock.OutcomeExpired, e.Kind)
		require.Error(t, e.Err)
		require.True(t, e.Since.IsZero())
	})
}

// While a task stays in its worker it holds no key of the guards around, as other tasks may hold them in another order.
func TestConfigure_AnotherRedisHoldsNoOuterKey(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		release := b.hold(t, key)
		ran := make(chan struct{}, 10)
		outer := asynqlock.PerKey(b.locker.Guard(core.RejectConflicts), asynqlock.Type("type:"), soon)
		b.serveElsewhere(t, b.config(), elsewhere(t), outer(b.perKey(soon)(tells(ran))))
		id := b.enqueue(t, task(), asynq.MaxRetry(0), asynq.Retention(time.Hour))
		b.untilConflicts(t, 2)
		redistest.Eventually(t, func() bool {
			lease, err := b.rival.TryAcquire(t.Context(), "type:"+kind)
			return err == nil && lease.Release(t.Context()) == nil
		}, "the outer key is free")
		release()
		get(t, ran)
		b.untilState(t, id, asynq.TaskStateCompleted)
		require.Empty(t, ran)
	})
}

// The same through a server's own client: nothing is amiss, and nothing is logged.
func TestConfigure_TheServersRedisIsNotTakenForAnother(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.Real(t))
	log := &testbed.Log{}
	const tasks = 60
	var inside alone
	release := b.hold(t, key) // else tasks that are quick may never meet
	b.serve(t, b.config(), b.perKey(soon, asynqlock.WithLogger(log.Logger()))(does(func(context.Context, *asynq.Task) { inside.enter(t)() })))
	for n := range tasks {
		b.enqueue(t, task(), asynq.MaxRetry(n%2))
	}
	b.untilConflicts(t, 1)
	release()
	for inside.runs.Load() < tasks {
		time.Sleep(10 * time.Millisecond)
	}
	require.Empty(t, log.String())
	b.requireArchived(t, 0)
}
