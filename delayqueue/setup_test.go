package delayqueue_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
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
	return testbed.NewQueue(b.t, rdb, "q", append([]delayqueue.Option{delayqueue.WithPrefix(b.env.Prefix)}, opts...)...)
}

// open opens the queue as an operator.
func (b *bench) open() *delayqueue.Queue {
	return of(delayqueue.Open(b.t.Context(), b.env.Client(b.t), "q", delayqueue.WithPrefix(b.env.Prefix)))(b.t)
}

// unencrypted is the queue as somebody has it without its keys, who has read the manifest before it was encrypted.
func (b *bench) unencrypted() *delayqueue.Queue {
	q := b.newQueue(b.env.Client(b.t))
	of(q.Stats(b.t.Context()))(b.t)
	return q
}

func (b *bench) newLocker(opts ...core.Option) *core.Locker {
	return b.lockerOn(b.env.Client(b.t), opts...)
}

func (b *bench) lockerOn(rdb redis.UniversalClient, opts ...core.Option) *core.Locker {
	return testbed.NewLocker(b.t, rdb, append(opts, core.WithPrefix(b.env.Prefix))...)
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
	w := of(delayqueue.NewWorker(q, b.locker, h, quick(opts...)...))(b.t)
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
	return enqueueOn(b.t, b.queue, job).ID
}

func enqueueOn(t *testing.T, q *delayqueue.Queue, job delayqueue.Job) delayqueue.Receipt {
	t.Helper()
	return of(q.Enqueue(t.Context(), job))(t)
}

// enqueueAll enqueues from many callers at once.
func (b *bench) enqueueAll(n int, job func(i int) delayqueue.Job) []string {
	b.t.Helper()
	return b.parkJobs(n, false, job)
}

// parkJobs does so too; if full, for those that there is room for.
func (b *bench) parkJobs(n int, full bool, job func(i int) delayqueue.Job) []string {
	b.t.Helper()
	const callers = 64
	ids := make([]string, n)
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for i := c; i < n; i += callers {
				receipt, err := b.queue.Enqueue(b.t.Context(), job(i))
				if ids[i] = receipt.ID; !full || !errors.Is(err, delayqueue.ErrQueueFull) {
					assert.NoError(b.t, err)
				}
			}
		})
	}
	all.Wait()
	return ids
}

// of returns what a call returned, without an error.
func of[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// errOf and errOf3 are the error of a call.
func errOf[T any](_ T, err error) error          { return err }
func errOf3[T, U any](_ T, _ U, err error) error { return err }

func (b *bench) status(id string) delayqueue.Status {
	return of(b.queue.Status(b.t.Context(), id))(b.t)
}

// now is the time of Redis.
func (b *bench) now() time.Time { return of(b.rdb.Time(b.t.Context()).Result())(b.t) }

// inState tells how many messages are queued, running and dead.
func (b *bench) inState() [3]int64 {
	s := b.stats()
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
	lease := of(b.other.TryAcquire(b.t.Context(), key, core.LeaseTTL(time.Hour)))(b.t)
	require.NoError(b.t, lease.Extend(b.t.Context(), time.Hour))
	b.t.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}

func redisZ(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }

// parkCall has a call of a held key parked, and returns the id of its message.
func (b *bench) parkCall(key string) string {
	b.t.Helper()
	return park(b.t, b.other.Guard(delayqueue.Policy(b.queue)), core.Call{Key: key, Encode: nothing})
}

// nothing is a payload.
func nothing() ([]byte, error) { return nil, nil }

// mustNotRun is the work of a call that is not to get its key.
func mustNotRun(context.Context) error { return errors.New("the key was free") }

// isNotReserved waits until nothing keeps a key for parked messages.
func (b *bench) isNotReserved(key string) {
	b.t.Helper()
	redistest.Eventually(b.t, func() bool {
		info, err := b.other.Inspect(b.t.Context(), key)
		return err == nil && info.Reserved == 0
	}, "the key is kept for nobody")
}

// park has a guard park a call, and returns its ticket.
func park(t *testing.T, guard *core.Guard, call core.Call) string {
	t.Helper()
	err := guard.Do(t.Context(), call, mustNotRun)
	var deferred *core.DeferredError
	if !assert.ErrorAs(t, err, &deferred) {
		return ""
	}
	return deferred.Ticket.ID
}

// cancelAll, purgeAll and redriveAll return how many messages they dealt with.
func (b *bench) cancelAll(f delayqueue.Filter) int {
	return of(b.queue.CancelAll(b.t.Context(), f))(b.t)
}

func (b *bench) purgeAll(f delayqueue.Filter) int { return of(b.queue.PurgeAll(b.t.Context(), f))(b.t) }

func (b *bench) redriveAll(f delayqueue.Filter, o delayqueue.RedriveOptions) int {
	return of(b.queue.RedriveAll(b.t.Context(), f, o))(b.t)
}

// result returns a message's.
func (b *bench) result(id string) string { return string(of(b.queue.Result(b.t.Context(), id))(b.t)) }

func (b *bench) payload(id string) string        { return string(of(b.queue.Payload(b.t.Context(), id))(b.t)) }
func (b *bench) peek(id string) delayqueue.Entry { return of(b.queue.Peek(b.t.Context(), id))(b.t) }

// waitFor waits for the end of a message.
func (b *bench) waitFor(id string) delayqueue.Status { return of(b.queue.Wait(b.t.Context(), id))(b.t) }
