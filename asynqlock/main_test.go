package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
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

// secret is a part of every key, and of no error.
const secret = "s3cret-42"

const (
	kind    = "wallet:charge"
	payload = `{"user_id":"` + secret + `"}`
	key     = "wallet:" + secret
)

var walletKey = asynqlock.JSONField("wallet:", "user_id")

// soon brings refused tasks back at asynq's next look.
var soon = asynqlock.WithDelay(time.Millisecond, time.Millisecond)

// bench is what most tests stand on: a queue of their own, the locker under test, which
// tells of conflicts, and a rival that takes keys away from it.
type bench struct {
	env       *redistest.Env
	rdb       *redis.Client
	queue     string
	locker    *core.Locker
	rival     *core.Locker
	conflicts *conflicts
	client    *asynq.Client
	inspector *asynq.Inspector
}

// conflicts counts the calls that met a held key.
type conflicts struct {
	core.NopObserver
	n atomic.Int64
}

func (c *conflicts) OnWaiting(context.Context, core.Waiting) { c.n.Add(1) }

func (c *conflicts) OnOutcome(_ context.Context, e core.Outcome) {
	if refused := e.Kind == core.OutcomeConflict || e.Kind == core.OutcomeDeferred; refused && !e.DidWait {
		c.n.Add(1)
	}
}

func setup(t *testing.T, env *redistest.Env) *bench {
	t.Helper()
	rdb := env.Client(t)
	b := &bench{
		env: env, rdb: rdb, queue: env.Prefix, conflicts: &conflicts{},
		client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
	}
	b.locker = b.newLocker(t)
	b.rival = b.newLocker(t)
	return b
}

// each runs a test on each Redis.
func each(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { test(t, setup(t, env)) })
}

// virtually runs a test in virtual time, in parallel with others.
func virtually(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) { test(t, setup(t, env)) })
}

func (b *bench) newLocker(t *testing.T) *core.Locker {
	t.Helper()
	return testbed.NewLocker(t, b.rdb, core.WithPrefix(b.queue), core.WithObserver(b.conflicts))
}

// perKey refuses a task whose wallet is held.
func (b *bench) perKey(opts ...asynqlock.Option) asynq.MiddlewareFunc {
	return asynqlock.PerKey(b.locker.Guard(core.RejectConflicts), walletKey, opts...)
}

// hold takes a key away, until the end of the test or of release.
func (b *bench) hold(t *testing.T, key string) (release func()) {
	t.Helper()
	lease := testbed.Take(t, b.rival, key)
	release = func() { _ = lease.Release(context.Background()) } // may be called twice
	t.Cleanup(release)
	return release
}

// subscribed waits for the subscription of a locker: when that begins, everybody who was refused a key is told to
// look, since releases may have been missed.
func (b *bench) subscribed(t *testing.T, l *core.Locker) *core.Locker {
	t.Helper()
	channels := func() int {
		channels, err := b.rdb.PubSubChannels(t.Context(), b.queue+":wake:*").Result()
		require.NoError(t, err)
		return len(channels)
	}
	before := channels()
	lease := testbed.Take(t, l, "warm-up")
	require.NoError(t, lease.Release(t.Context()))
	redistest.Eventually(t, func() bool { return channels() > before }, "a subscription")
	time.Sleep(20 * time.Millisecond)
	return l
}

func (b *bench) requireFree(t *testing.T, key string) {
	t.Helper()
	lease, err := b.rival.TryAcquire(context.Background(), key)
	require.NoError(t, err)
	require.NoError(t, lease.Release(context.Background()))
}

// config is that of a server of the test's queue that looks often: as often as pays where nobody waits for it.
func (b *bench) config() asynq.Config {
	look := 5 * time.Millisecond
	if virtual := b.env.Addr == ""; virtual {
		look = 100 * time.Millisecond
	}
	return asynq.Config{
		Concurrency: 10, Queues: map[string]int{b.queue: 1}, Logger: quiet{},
		TaskCheckInterval: look, DelayedTaskCheckInterval: look,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Millisecond },
	}
}

// start starts a server without Configure, which is shut down with the test or by stop.
func (b *bench) start(t *testing.T, cfg asynq.Config, h asynq.Handler) (stop func()) {
	t.Helper()
	return startServer(t, asynq.NewServerFromRedisClient(b.rdb, cfg), h)
}

// serve starts a server that is made by NewServer.
func (b *bench) serve(t *testing.T, cfg asynq.Config, h asynq.Handler) (stop func()) {
	t.Helper()
	srv, err := asynqlock.NewServer(b.rdb, cfg)
	require.NoError(t, err)
	return startServer(t, srv, h)
}

func startServer(t *testing.T, srv *asynq.Server, h asynq.Handler) (stop func()) {
	t.Helper()
	require.NoError(t, srv.Start(h))
	t.Cleanup(srv.Shutdown)
	return srv.Shutdown
}

// enqueue enqueues a task on the test's queue.
func (b *bench) enqueue(t *testing.T, task *asynq.Task, opts ...asynq.Option) string {
	t.Helper()
	info, err := b.client.EnqueueContext(t.Context(), task, append([]asynq.Option{asynq.Queue(b.queue)}, opts...)...)
	require.NoError(t, err)
	return info.ID
}

// task charges the wallet that the tests fight for.
func task() *asynq.Task { return asynq.NewTask(kind, []byte(payload)) }

// info is what asynq knows of a task; nil if that is nothing.
func (b *bench) info(t *testing.T, id string) *asynq.TaskInfo {
	t.Helper()
	info, err := b.inspector.GetTaskInfo(b.queue, id)
	if err != nil {
		require.ErrorIs(t, err, asynq.ErrTaskNotFound)
		return nil
	}
	return info
}

// all lists the tasks of the queue that have not ended.
func (b *bench) all(t *testing.T) []*asynq.TaskInfo {
	t.Helper()
	var tasks []*asynq.TaskInfo
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		b.inspector.ListPendingTasks, b.inspector.ListActiveTasks, b.inspector.ListScheduledTasks, b.inspector.ListRetryTasks,
	} {
		some, err := list(b.queue)
		require.NoError(t, err)
		tasks = append(tasks, some...)
	}
	return tasks
}

// untilState waits until a task is in a state.
func (b *bench) untilState(t *testing.T, id string, state asynq.TaskState) *asynq.TaskInfo {
	t.Helper()
	var info *asynq.TaskInfo
	redistest.Eventually(t, func() bool {
		info = b.info(t, id)
		return info != nil && info.State == state
	}, "task "+id+" is "+state.String())
	return info
}

func (b *bench) untilConflicts(t *testing.T, n int64) {
	t.Helper()
	redistest.Eventually(t, func() bool { return b.conflicts.n.Load() >= n }, fmt.Sprintf("%d conflicts", n))
}

// archived waits for the one task that is archived.
func (b *bench) archived(t *testing.T) (archived *asynq.TaskInfo) {
	t.Helper()
	redistest.Eventually(t, func() bool {
		all, err := b.inspector.ListArchivedTasks(b.queue)
		if err == nil && len(all) == 1 {
			archived = all[0]
		}
		return archived != nil
	}, "the task is archived")
	return archived
}

func (b *bench) requireArchived(t *testing.T, n int) {
	t.Helper()
	info, err := b.inspector.GetQueueInfo(b.queue)
	require.NoError(t, err)
	require.Equal(t, n, info.Archived)
}

// alone counts runs, and fails the test if two overlap.
type alone struct{ inside, runs atomic.Int64 }

func (a *alone) enter(t *testing.T) (leave func()) {
	t.Helper()
	if a.inside.Add(1) != 1 {
		t.Error("two handlers inside")
	}
	return func() {
		a.runs.Add(1)
		a.inside.Add(-1)
	}
}

// does is a handler that succeeds.
func does(what func(ctx context.Context, task *asynq.Task)) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		what(ctx, task)
		return nil
	})
}

// fails is a handler that does nothing else.
func fails(err error) asynq.Handler {
	return asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return err })
}

func mustNotRun(t *testing.T) asynq.Handler {
	t.Helper()
	return does(func(context.Context, *asynq.Task) { t.Error("the handler ran") })
}

// tells is a handler that sends when it runs.
func tells(ran chan<- struct{}) asynq.Handler {
	return does(func(context.Context, *asynq.Task) { ran <- struct{}{} })
}

// tellsID is a handler that sends the id of what it runs.
func tellsID(ids chan<- string) asynq.Handler {
	return does(func(ctx context.Context, _ *asynq.Task) {
		id, _ := asynq.GetTaskID(ctx)
		ids <- id
	})
}

// quiet is a logger of asynq's that says nothing.
type quiet struct{}

func (quiet) Debug(...any) {}
func (quiet) Info(...any)  {}
func (quiet) Warn(...any)  {}
func (quiet) Error(...any) {}
func (quiet) Fatal(...any) {}

// hook is one for the commands of a client.
type hook func(next redis.ProcessHook) redis.ProcessHook

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return h(next) }

func fail(cmd redis.Cmder) error {
	cmd.SetErr(errOops)
	return errOops
}

var errOops = errors.New("oops")

func requireNoSecret(t *testing.T, text string) {
	t.Helper()
	assert.NotContains(t, text, secret)
}

func redisAt(addr string) *redis.Options { return &redis.Options{Addr: addr, MaxRetries: -1} }

// get receives from a channel, and fails the test if nothing comes.
func get[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "nothing came for 2 minutes")
	}
	return value
}
