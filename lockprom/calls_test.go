package lockprom_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// calls are made, for every reason for which one can end, and tallied by what comes back.
type calls struct {
	*testing.T
	env      *redistest.Env
	rdb      *redis.Client
	recorder *ops.Recorder
	tally
}

func (c *calls) locker(opts ...core.Option) *core.Locker {
	c.Helper()
	return testbed.NewLocker(c, c.rdb, append([]core.Option{core.WithPrefix(c.env.Prefix), core.WithObserver(core.NopObserver{})}, opts...)...)
}

func (c *calls) hold(l *core.Locker, key string) (release func()) {
	c.Helper()
	lease, err := l.Acquire(c.Context(), key)
	require.NoError(c, err)
	return func() { _ = lease.Release(context.Background()) }
}

// record is the name of a key's record, as docs/protocol.md has it.
func (c *calls) record(key string) string { return c.env.Prefix + ":lock{}:" + key }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func nothing(context.Context) error { return nil }

// forKeys is long since it is a list of what a call or a lease can come to.
func (c *calls) forKeys() {
	const calls, lost = "perkey_lock_calls_total", "perkey_lock_lost_total"
	l, rival := c.locker(core.WithObserver(c.recorder.Locks(core.NopObserver{})), core.WithMaxWaiters(1, 10)), c.locker()
	named := core.Named("law", "")
	defer c.hold(rival, "held")()
	do := func(ctx context.Context, key string, policy core.ConflictPolicy, kind core.OutcomeKind, want error) {
		c.Helper()
		err := l.Guard(policy).Do(ctx, core.Call{Key: key, Name: "law", Encode: func() ([]byte, error) { return nil, nil }}, nothing)
		require.ErrorIs(c, err, want)
		c.add(calls, "law", string(kind))
	}
	ctx := c.Context()
	do(ctx, "free", core.RejectConflicts, core.OutcomeAcquired, nil)
	do(ctx, "held", core.RejectConflicts, core.OutcomeConflict, core.ErrConflict)
	do(ctx, "held", &testbed.Parking{}, core.OutcomeDeferred, core.ErrDeferred)
	oops := errors.New("oops")
	do(ctx, "held", testbed.Failing{Err: oops}, core.OutcomeError, oops)
	do(ctx, "a\nb", core.RejectConflicts, core.OutcomeError, core.ErrInvalidKey)
	require.NoError(c, c.rdb.Set(ctx, c.record("foreign"), "x", time.Minute).Err())
	do(ctx, "foreign", core.RejectConflicts, core.OutcomeUnavailable, core.ErrUnavailable)
	brief, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	do(brief, "held", testbed.Patient{}, core.OutcomeDeadline, context.DeadlineExceeded)

	leaving, leave := context.WithCancel(ctx)
	left := make(chan error)
	go func() { left <- l.Guard(testbed.Patient{}).Do(leaving, core.Call{Key: "held", Name: "law"}, nothing) }()
	redistest.Eventually(c, func() bool { return c.recorder.Snapshot().Locks[0].Waiting == 1 }, "it waits")
	do(ctx, "held", testbed.Patient{}, core.OutcomeShed, core.ErrConflict)
	leave()
	require.ErrorIs(c, <-left, context.Canceled)
	c.add(calls, "law", string(core.OutcomeCancelled))

	lose := func(kind core.LossKind, how func(lease *core.Lease), opts ...core.AcquireOption) {
		c.Helper()
		lease, err := l.Acquire(ctx, string(kind), append(opts, named)...)
		require.NoError(c, err)
		c.add(calls, "law", string(core.OutcomeAcquired))
		how(lease)
		<-lease.Context().Done()
		require.ErrorIs(c, context.Cause(lease.Context()), core.ErrLeaseLost)
		c.add(lost, "law", string(kind))
	}
	lose(core.LossExpired, func(*core.Lease) {}, core.FixedLease(time.Second))
	lose(core.LossGone, func(lease *core.Lease) {
		require.NoError(c, c.rdb.Del(ctx, c.record(lease.Key())).Err())
		require.ErrorIs(c, lease.Extend(ctx, time.Second), core.ErrLeaseLost)
	})
	subscribed := func() bool {
		channels, err := c.rdb.PubSubChannels(ctx, c.env.Prefix+":wake:*").Result()
		return err == nil && len(channels) > 0
	}
	redistest.Eventually(c, subscribed, "a release elsewhere is heard of")
	lose(core.LossForced, func(lease *core.Lease) {
		forced, err := rival.ForceRelease(ctx, lease.Key(), lease.Fence())
		require.NoError(c, err)
		require.True(c, forced)
	})
	lose(core.LossReleased, func(lease *core.Lease) {
		resumed, err := rival.Resume(ctx, lease.Token())
		require.NoError(c, err)
		require.NoError(c, resumed.Release(ctx))
	})
	lose(core.LossClosed, func(*core.Lease) { require.NoError(c, l.Close()) })
	do(ctx, "free", core.RejectConflicts, core.OutcomeClosed, core.ErrClosed)
}

func (c *calls) queue(rdb *redis.Client, name string, opts ...delayqueue.Option) *delayqueue.Queue {
	c.Helper()
	return testbed.NewQueue(c, rdb, name, append(opts, delayqueue.WithPrefix(c.env.Prefix), delayqueue.WithQueueObserver(c.recorder.Queues(delayqueue.NopObserver{})))...)
}

func (c *calls) enqueue(ctx context.Context, q *delayqueue.Queue, job delayqueue.Job, kind delayqueue.EnqueueKind, want error) string {
	c.Helper()
	receipt, err := q.Enqueue(ctx, job)
	require.ErrorIs(c, err, want)
	c.add("perkey_enqueue_total", q.Name(), string(kind))
	return receipt.ID
}

func (c *calls) worker(q *delayqueue.Queue, h delayqueue.Handler, opts ...delayqueue.WorkerOption) *delayqueue.Worker {
	c.Helper()
	return testbed.Work(c, q, c.locker(), h, append(opts, delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(quiet()))...)
}

func (c *calls) toQueues() {
	ctx := c.Context()
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	late, stop := context.WithTimeout(ctx, -time.Second)
	defer stop()
	q := c.queue(c.rdb, "bounded", delayqueue.WithMaxDepthPerKey(1), delayqueue.WithMaxDepth(2), delayqueue.WithMaxPayload(10))
	job := delayqueue.Job{ID: "a", Key: "k"}
	c.enqueue(ctx, q, job, delayqueue.EnqueueStored, nil)
	c.enqueue(ctx, q, job, delayqueue.EnqueueDuplicate, nil)
	c.enqueue(ctx, q, delayqueue.Job{Key: "k"}, delayqueue.EnqueueKeyFull, delayqueue.ErrKeyFull)
	c.enqueue(ctx, q, delayqueue.Job{}, delayqueue.EnqueueStored, nil)
	c.enqueue(ctx, q, delayqueue.Job{}, delayqueue.EnqueueQueueFull, delayqueue.ErrQueueFull)
	c.enqueue(ctx, q, delayqueue.Job{Payload: make([]byte, 11)}, delayqueue.EnqueueTooLarge, delayqueue.ErrPayloadTooLarge)
	c.enqueue(cancelled, q, delayqueue.Job{}, delayqueue.EnqueueCancelled, context.Canceled)
	c.enqueue(late, q, delayqueue.Job{}, delayqueue.EnqueueDeadline, context.DeadlineExceeded)
	c.enqueue(ctx, q, delayqueue.Job{Key: "a\nb"}, delayqueue.EnqueueError, core.ErrInvalidKey)
	gone := redis.NewClient(&redis.Options{Addr: c.env.Addr})
	require.NoError(c, gone.Close())
	c.enqueue(ctx, c.queue(gone, "gone"), delayqueue.Job{}, delayqueue.EnqueueUnavailable, core.ErrUnavailable)
	q = c.queue(c.rdb, "principals", delayqueue.WithMaxPayload(8<<10), delayqueue.WithMaxBytesPerPrincipal(20<<10))
	large := delayqueue.Job{Principal: "p", Payload: make([]byte, 8<<10)}
	c.enqueue(ctx, q, large, delayqueue.EnqueueStored, nil)
	c.enqueue(ctx, q, large, delayqueue.EnqueuePrincipalFull, delayqueue.ErrPrincipalFull)
	c.endsOfClaims()
	c.lateClaims()
	c.oldMessages()
}

const events = "perkey_queue_events_total"

func (c *calls) endsOfClaims() {
	ctx, oops := c.Context(), errors.New("oops")
	q, ended := c.queue(c.rdb, "ends"), make(chan string, 10)
	stopping := make(chan struct{})
	w := c.worker(q, func(ctx context.Context, m delayqueue.Message) error {
		kind, err := delayqueue.OutcomeDone, error(nil)
		switch {
		case m.Name == "stays":
			close(stopping)
			<-ctx.Done()
			c.add(events, "ends", string(delayqueue.OutcomeReturned))
			return ctx.Err()
		case m.Name == "fails" && m.Attempt == 1:
			kind, err = delayqueue.OutcomeRetry, oops
		case m.Name == "dies":
			kind, err = delayqueue.OutcomeDead, delayqueue.SkipRetry(oops)
		case m.Name == "meets a held key": // what it met before was told of as well
			c.addAll(events, "ends", string(delayqueue.OutcomeConflict), int64(m.Conflicts))
		}
		c.add(events, "ends", string(kind))
		if kind != delayqueue.OutcomeRetry {
			ended <- m.Name
		}
		return err
	})
	release := c.hold(c.locker(), "held")
	for _, name := range []string{"succeeds", "fails", "dies"} {
		c.enqueue(ctx, q, delayqueue.Job{Name: name}, delayqueue.EnqueueStored, nil)
		require.Equal(c, name, <-ended)
	}
	c.enqueue(ctx, q, delayqueue.Job{Name: "meets a held key", Key: "held"}, delayqueue.EnqueueStored, nil)
	redistest.Eventually(c, func() bool {
		return counted(c.recorder.Snapshot())[series{events, "ends", "conflict"}] > 0
	}, "it has met the held key")
	release()
	<-ended
	c.enqueue(ctx, q, delayqueue.Job{Name: "stays"}, delayqueue.EnqueueStored, nil)
	<-stopping
	now, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_ = w.Stop(now)
	require.NoError(c, w.Stop(ctx))
}

// lateClaims: a worker's claim ends, and another one runs its message.
func (c *calls) lateClaims() {
	ctx, q := c.Context(), c.queue(c.rdb, "late")
	started, block, again := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.worker(q, func(context.Context, delayqueue.Message) error {
		close(started)
		<-block
		c.add(events, "late", string(delayqueue.OutcomeLate))
		return delayqueue.SkipRetry(errors.New("oops"))
	}, delayqueue.WithClaimLease(20*time.Minute), delayqueue.WithConcurrency(1))
	id := c.enqueue(ctx, q, delayqueue.Job{}, delayqueue.EnqueueStored, nil)
	<-started
	require.NoError(c, c.rdb.ZAdd(ctx, c.env.Prefix+":queue:{late}:w", redis.Z{Member: id + " "}).Err())
	c.worker(q, func(context.Context, delayqueue.Message) error {
		c.add(events, "late", "redelivered")
		c.add(events, "late", string(delayqueue.OutcomeDone))
		close(again)
		return nil
	})
	<-again
	redistest.Eventually(c, func() bool { return counted(c.recorder.Snapshot())[series{events, "late", "done"}] == 1 }, "the other one has settled it")
	close(block)
}

// oldMessages: one becomes too old before a worker sees it, one while it is tried.
func (c *calls) oldMessages() {
	const age = 300 * time.Millisecond
	ctx, q := c.Context(), c.queue(c.rdb, "old", delayqueue.WithMaxAge(age))
	c.enqueue(ctx, q, delayqueue.Job{}, delayqueue.EnqueueStored, nil)
	time.Sleep(age + 50*time.Millisecond)
	ran := make(chan struct{})
	c.worker(q, func(context.Context, delayqueue.Message) error {
		time.Sleep(age)
		c.add(events, "old", string(delayqueue.OutcomeExpired))
		close(ran)
		return errors.New("oops")
	})
	c.add(events, "old", "overdue")
	redistest.Eventually(c, func() bool { return counted(c.recorder.Snapshot())[series{events, "old", "overdue"}] == 1 }, "the first one is tidied up")
	c.enqueue(ctx, q, delayqueue.Job{}, delayqueue.EnqueueStored, nil)
	<-ran
}

func (c *calls) ofIdempotencyKeys() {
	s, err := idempotency.New(c.rdb, idempotency.WithPrefix(c.env.Prefix), idempotency.WithObserver(c.recorder.Idempotency(nil)))
	require.NoError(c, err)
	ctx, w, other := c.Context(), idempotency.Work{Name: "w", Fingerprint: "a"}, idempotency.Work{Name: "w", Fingerprint: "b"}
	lookup := func(w idempotency.Work) func() error {
		return func() error { _, err := s.Lookup(ctx, w); return err }
	}
	begin := func(fence int64) func() error {
		return func() error { _, err := s.Begin(ctx, w, fence); return err }
	}
	for _, step := range []struct {
		do   func() error
		kind idempotency.EventKind // empty: the call says nothing of a request
		want error
	}{
		{lookup(w), "", nil},
		{func() error {
			return s.Parked(ctx, w, core.Ticket{ID: "t", Queue: "q", ExpiresAt: time.Now().Add(time.Minute)})
		}, idempotency.EventParked, nil},
		{lookup(w), idempotency.EventReplayed, nil},
		{begin(7), idempotency.EventBegun, nil},
		{func() error { return s.Finish(ctx, w, 6, []byte("x")) }, idempotency.EventStaleFence, idempotency.ErrStaleFence},
		{lookup(other), idempotency.EventMismatch, idempotency.ErrMismatch},
		{func() error { return s.Finish(ctx, w, 7, []byte("x")) }, idempotency.EventStored, nil},
		{begin(8), idempotency.EventReplayed, nil},
		{func() error { _, err := s.Forget(ctx, "w"); return err }, idempotency.EventForgotten, nil},
		{begin(9), idempotency.EventBegun, nil},
		{lookup(w), idempotency.EventInProgress, nil},
		{func() error {
			require.NoError(c, c.rdb.Set(ctx, c.env.Prefix+":idem{}:w", "junk", time.Minute).Err())
			return begin(10)()
		}, idempotency.EventError, core.ErrUnavailable},
	} {
		require.ErrorIs(c, step.do(), step.want)
		if step.kind != "" {
			c.add("perkey_idempotency_total", "", string(step.kind))
		}
	}
}

const tasks = "perkey_tasks_total"

// ofTasks runs tasks whose payload says what they come to. It is long since it is one story.
func (c *calls) ofTasks() {
	l, rival := c.locker(), c.locker()
	skip := asynqlock.WithSkip(func(_ context.Context, t *asynq.Task) bool { return string(t.Payload()) == `"skipped"` })
	handler := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		switch {
		case strings.Contains(string(task.Payload()), "failed"):
			return errors.New("oops")
		case strings.Contains(string(task.Payload()), "lost"):
			info, err := rival.Inspect(c.Context(), "task:lost")
			require.NoError(c, err)
			_, err = rival.ForceRelease(c.Context(), "task:lost", info.Holders[0].Fence)
			require.NoError(c, err)
			<-ctx.Done()
		}
		return nil
	})
	perKey := func(opts ...asynqlock.Option) asynq.Handler {
		opts = append(opts, skip, asynqlock.WithRecorder(c.recorder), asynqlock.WithDelay(time.Millisecond, time.Millisecond), asynqlock.WithLogger(quiet()))
		return asynqlock.PerKey(l.Guard(core.RejectConflicts), asynqlock.JSONField("task:", "is"), opts...)(handler)
	}
	guarded, brief := perKey(), perKey(asynqlock.WithMaxAge(time.Second))
	defer c.hold(rival, "task:deferred")()
	defer c.hold(rival, "task:expired")()
	for _, kind := range []asynqlock.OutcomeKind{asynqlock.OutcomeDone, asynqlock.OutcomeFailed, asynqlock.OutcomeLost, asynqlock.OutcomeDeferred, asynqlock.OutcomeSkipped, asynqlock.OutcomeNoKey} {
		payload := fmt.Sprintf(`{"is": %q}`, kind)
		switch kind {
		case asynqlock.OutcomeSkipped:
			payload = `"skipped"`
		case asynqlock.OutcomeNoKey:
			payload = "{}"
		}
		err := guarded.ProcessTask(c.Context(), asynq.NewTask("law", []byte(payload)))
		require.Equal(c, kind == asynqlock.OutcomeDone || kind == asynqlock.OutcomeSkipped, err == nil, "%s: %v", kind, err)
		c.add(tasks, "law", string(kind))
	}

	// What asynq hands out again and again, until it is too old.
	old := make(chan struct{})
	c.serve(func(cfg *asynq.Config) { require.NoError(c, asynqlock.Configure(cfg, c.rdb)) }, func(ctx context.Context, task *asynq.Task) error {
		err := brief.ProcessTask(ctx, task)
		switch {
		case errors.Is(err, asynqlock.ErrTooOld):
			c.add(tasks, "law", string(asynqlock.OutcomeTooOld))
			close(old)
		case errors.Is(err, core.ErrConflict):
			c.add(tasks, "law", string(asynqlock.OutcomeDeferred))
		}
		return err
	}, `{"is": "deferred"}`, asynq.MaxRetry(1))
	<-old

	// On its last attempt, and with a Redis that cannot make it a clone, it stays in its worker until its time is over.
	elsewhere, err := embedded.Start()
	require.NoError(c, err)
	c.Cleanup(elsewhere.Close)
	other, expired := redistest.Client(c, &redis.Options{Addr: elsewhere.Addr()}), make(chan struct{})
	c.serve(func(cfg *asynq.Config) { require.NoError(c, asynqlock.Configure(cfg, other)) }, func(ctx context.Context, task *asynq.Task) error {
		err := guarded.ProcessTask(ctx, task)
		c.add(tasks, "law", string(asynqlock.OutcomeExpired))
		close(expired)
		return err
	}, `{"is": "expired"}`, asynq.MaxRetry(0), asynq.Timeout(time.Second))
	<-expired
}

// serve starts a server of asynq with a queue of its own, and enqueues a task there.
func (c *calls) serve(configure func(*asynq.Config), h asynq.HandlerFunc, payload string, opts ...asynq.Option) {
	c.Helper()
	queue := fmt.Sprint(c.env.Prefix, len(payload))
	cfg := asynq.Config{
		Concurrency: 1, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 5 * time.Millisecond, DelayedTaskCheckInterval: 5 * time.Millisecond,
	}
	configure(&cfg)
	server := asynq.NewServerFromRedisClient(c.rdb, cfg)
	require.NoError(c, server.Start(h))
	c.Cleanup(server.Shutdown)
	_, err := asynq.NewClientFromRedisClient(c.rdb).EnqueueContext(c.Context(), asynq.NewTask("law", []byte(payload)), append(opts, asynq.Queue(queue))...)
	require.NoError(c, err)
}

func (c *calls) ofFiles() {
	parse := func(text string) *config.File {
		f, err := config.Parse("perkey.yaml", fmt.Appendf(nil, "redis: {addresses: [%q]}\nprefix: %s\n%s", c.env.Addr, c.env.Prefix, text))
		require.NoError(c, err)
		return f
	}
	rt, err := config.Build(parse("guards: {first: {}}"), config.WithRecorder(c.recorder), config.WithLogger(quiet()))
	require.NoError(c, err)
	c.Cleanup(func() { _ = rt.Close() })
	for _, step := range []struct {
		text string
		kind config.ReloadKind
		want error
	}{
		{"guards: {first: {}}", config.ReloadUnchanged, nil},
		{"guards: {second: {}}", config.ReloadDone, nil},
		{"service: other\nguards: {second: {}}", config.ReloadRefused, core.ErrInvalidOption},
	} {
		require.ErrorIs(c, rt.Reload(parse(step.text)), step.want)
		c.add("perkey_config_reloads_total", "", string(step.kind))
	}
}
