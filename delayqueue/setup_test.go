package delayqueue_test

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) {
	for variable, process := range processes {
		if config := os.Getenv(variable); config != "" {
			process(config)
			return
		}
	}
	redistest.Main(m)
}

// processes are what this binary is started as, by the variables that say how.
var processes = map[string]func(config string){workerVar: workerProcess}

// bench is a queue, and what its tests need around it.
type bench struct {
	t      *testing.T
	env    *redistest.Env
	rdb    *redis.Client
	queue  *delayqueue.Queue
	locker *core.Locker // the workers'
	other  *core.Locker // some other process's
	opts   []delayqueue.Option
}

func setup(t *testing.T, env *redistest.Env, opts ...delayqueue.Option) *bench {
	t.Helper()
	b := &bench{t: t, env: env, rdb: env.Client(t), opts: slices.Clip(opts)}
	b.queue = b.newQueue(b.rdb, opts...)
	b.locker, b.other = b.newLocker(), b.newLocker()
	return b
}

// each runs a test of a queue with these options on each Redis, as redistest.Each does.
func each(t *testing.T, test func(t *testing.T, b *bench), opts ...delayqueue.Option) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { test(t, setup(t, env, opts...)) })
}

// virtually runs a test of a queue with these options in virtual time, in parallel with others.
func virtually(t *testing.T, test func(t *testing.T, b *bench), opts ...delayqueue.Option) {
	t.Helper()
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) { test(t, setup(t, env, opts...)) })
}

func (b *bench) newQueue(rdb redis.UniversalClient, opts ...delayqueue.Option) *delayqueue.Queue {
	b.t.Helper()
	q, err := delayqueue.New(rdb, "q", append([]delayqueue.Option{delayqueue.WithPrefix(b.env.Prefix)}, opts...)...)
	require.NoError(b.t, err)
	return q
}

// unencrypted is the queue as somebody has it without its keys, who has read the manifest before it was encrypted.
func (b *bench) unencrypted() *delayqueue.Queue {
	b.t.Helper()
	q := b.newQueue(b.env.Client(b.t))
	_, err := q.Stats(b.t.Context())
	require.NoError(b.t, err)
	return q
}

func (b *bench) newLocker(opts ...core.Option) *core.Locker {
	b.t.Helper()
	l, err := core.New(b.env.Client(b.t), append([]core.Option{core.WithPrefix(b.env.Prefix)}, opts...)...)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = l.Close() })
	return l
}

// quick is how workers of tests are configured: the shortest sensible waits.
func quick(opts ...delayqueue.WorkerOption) []delayqueue.WorkerOption {
	return append([]delayqueue.WorkerOption{
		delayqueue.WithRetryBackoff(time.Millisecond, 5*time.Millisecond),
		delayqueue.WithConflictBackoff(5*time.Millisecond, 20*time.Millisecond),
		delayqueue.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)
}

// start starts a worker that is stopped with the test.
func (b *bench) start(h delayqueue.Handler, opts ...delayqueue.WorkerOption) *delayqueue.Worker {
	b.t.Helper()
	return b.startOn(b.queue, h, opts...)
}

func (b *bench) startOn(q *delayqueue.Queue, h delayqueue.Handler, opts ...delayqueue.WorkerOption) *delayqueue.Worker {
	b.t.Helper()
	w, err := delayqueue.NewWorker(q, b.locker, h, quick(opts...)...)
	require.NoError(b.t, err)
	require.NoError(b.t, w.Start())
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			defer cancel()
			_ = w.Stop(ctx)
		}()
		select {
		case <-stopped:
		case <-time.After(time.Minute): // else go test ends all tests of the package for one that has failed
			b.t.Error("a handler goes on for ever")
		}
	})
	return w
}

func (b *bench) enqueue(job delayqueue.Job) string {
	b.t.Helper()
	ticket, err := b.queue.Enqueue(b.t.Context(), job)
	require.NoError(b.t, err)
	return ticket.ID
}

func (b *bench) status(id string) delayqueue.Status {
	b.t.Helper()
	s, err := b.queue.Status(b.t.Context(), id)
	require.NoError(b.t, err)
	return s
}

// now is the time of Redis.
func (b *bench) now() time.Time {
	b.t.Helper()
	now, err := b.rdb.Time(b.t.Context()).Result()
	require.NoError(b.t, err)
	return now
}

// inState tells how many messages are queued, running and dead.
func (b *bench) inState() [3]int64 {
	b.t.Helper()
	s, err := b.queue.Stats(b.t.Context())
	require.NoError(b.t, err)
	return [3]int64{s.Queued, s.Running, s.Dead}
}

// list returns all messages in a state.
func (b *bench) list(state delayqueue.State) []delayqueue.Entry {
	b.t.Helper()
	entries, next, err := b.queue.List(b.t.Context(), state, "", 1000)
	require.NoError(b.t, err)
	require.Empty(b.t, next)
	return entries
}

// reaches waits until the message is in the state.
func (b *bench) reaches(id string, state delayqueue.State) delayqueue.Status {
	b.t.Helper()
	redistest.Eventually(b.t, func() bool { return b.status(id).State == state }, "message "+id+" is not "+string(state))
	return b.status(id)
}

// key is the name in Redis of one of the queue's keys.
func (b *bench) key(suffix string) string { return b.env.Prefix + ":queue:{q}:" + suffix }

// ran records the messages that handlers got. It is a handler by itself.
type ran struct {
	mu       sync.Mutex
	messages []delayqueue.Message
}

func (r *ran) handle(_ context.Context, m delayqueue.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, m)
	return nil
}

func (r *ran) all() []delayqueue.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]delayqueue.Message(nil), r.messages...)
}

func (r *ran) ids() []string {
	ids := []string{}
	for _, m := range r.all() {
		ids = append(ids, m.ID)
	}
	return ids
}

// events is an observer that passes on what it is told.
type events struct {
	delayqueue.NopObserver
	settled chan delayqueue.Settled
	reaped  chan delayqueue.Reaped
}

func newEvents() events {
	return events{settled: make(chan delayqueue.Settled, 10_000), reaped: make(chan delayqueue.Reaped, 10_000)}
}

func (e events) OnSettled(_ context.Context, s delayqueue.Settled) { e.settled <- s }
func (e events) OnReaped(_ context.Context, s delayqueue.Reaped)   { e.reaped <- s }

// next returns the next event, and fails the test when none comes.
func next[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// hold takes a key as another process would, and waits until its lease is long:
// nothing but the release frees it during the test.
func (b *bench) hold(key string) *core.Lease {
	b.t.Helper()
	lease, err := b.other.TryAcquire(b.t.Context(), key, core.LeaseTTL(time.Hour))
	require.NoError(b.t, err)
	require.NoError(b.t, lease.Extend(b.t.Context(), time.Hour))
	b.t.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}

func redisZ(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }
