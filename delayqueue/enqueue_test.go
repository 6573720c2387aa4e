package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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

// watch is an observer that keeps what it is told.
type watch struct {
	delayqueue.NopObserver
	mu       sync.Mutex
	enqueued []delayqueue.Enqueued
	started  []delayqueue.Started
	warned   []delayqueue.Warning
}

func (w *watch) OnEnqueued(ctx context.Context, e delayqueue.Enqueued) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx != nil {
		w.enqueued = append(w.enqueued, e)
	}
}

func (w *watch) OnStarted(_ context.Context, e delayqueue.Started) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started = append(w.started, e)
}

func (w *watch) OnWarning(_ context.Context, e delayqueue.Warning) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warned = append(w.warned, e)
}

func (w *watch) warnings() []delayqueue.Warning {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]delayqueue.Warning{}, w.warned...)
}

// take returns what calls to store jobs came to, and forgets it.
func (w *watch) take() []delayqueue.Enqueued {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.enqueued
	w.enqueued = nil
	return all
}

const callsEach = 20

// fragile is a queue whose events are seen, and which reaches Redis through a proxy.
type fragile struct {
	*bench
	*watch
	proxy *redistest.Proxy
	rdb   *redis.Client
	queue *delayqueue.Queue
}

func setupFragile(t *testing.T, env *redistest.Env) *fragile {
	t.Helper()
	f := &fragile{bench: setup(t, env), watch: &watch{}, proxy: redistest.NewProxy(t, env.Addr)}
	f.rdb = redistest.Client(t, &redis.Options{
		Addr: f.proxy.Addr, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second, DialerRetries: 1,
		PoolTimeout: time.Second,
	})
	f.queue = f.newQueue(f.rdb, delayqueue.WithQueueObserver(f.watch), delayqueue.WithMaxPayload(100), delayqueue.WithMaxDepthPerKey(3))
	return f
}

// each makes calls at once, and returns how many came to what. Each has an event that says what it returned.
func (f *fragile) each(call func(i int) (delayqueue.Receipt, error)) map[delayqueue.EnqueueKind]int {
	f.t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	stored := 0
	for i := range callsEach {
		wg.Go(func() {
			receipt, err := call(i)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			if receipt.Stored {
				stored++
			}
		})
	}
	wg.Wait()
	events := f.take()
	require.Len(f.t, events, callsEach)
	kinds := map[delayqueue.EnqueueKind]int{}
	for _, e := range events {
		kinds[e.Kind]++
		require.Contains(f.t, errs, e.Err)
		require.NotEmpty(f.t, e.ID)
		require.NotEmpty(f.t, e.Queue)
		require.Equal(f.t, e.Err == nil, !e.ExpiresAt.IsZero())
	}
	require.Equal(f.t, stored, kinds[delayqueue.EnqueueStored])
	return kinds
}

func enqueuing(ctx context.Context, q *delayqueue.Queue, job delayqueue.Job) func(int) (delayqueue.Receipt, error) {
	return func(int) (delayqueue.Receipt, error) { return q.Enqueue(ctx, job) }
}

func only(kind delayqueue.EnqueueKind) map[delayqueue.EnqueueKind]int {
	return map[delayqueue.EnqueueKind]int{kind: callsEach}
}

// Each call to store a job is told exactly once, whatever it comes to.
func TestEnqueue_EachCallIsToldOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		f := setupFragile(t, env)
		q := f.queue
		tiny := testbed.NewQueue(t, f.rdb, "tiny", delayqueue.WithPrefix(env.Prefix), delayqueue.WithQueueObserver(f.watch), delayqueue.WithMaxDepth(3))
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, f.bench.rdb.HSet(t.Context(), f.key("m"), "junk", "junk").Err())

		require.Equal(t, only(delayqueue.EnqueueStored), f.each(enqueuing(t.Context(), q, delayqueue.Job{})))
		require.Equal(t, map[delayqueue.EnqueueKind]int{delayqueue.EnqueueStored: 1, delayqueue.EnqueueDuplicate: callsEach - 1},
			f.each(enqueuing(t.Context(), q, delayqueue.Job{ID: "one"})))
		require.NoError(t, q.Cancel(t.Context(), "one"))
		require.Equal(t, only(delayqueue.EnqueueDuplicate), f.each(enqueuing(t.Context(), q, delayqueue.Job{ID: "one"})), "it has ended")
		require.Equal(t, map[delayqueue.EnqueueKind]int{delayqueue.EnqueueStored: 3, delayqueue.EnqueueKeyFull: callsEach - 3},
			f.each(enqueuing(t.Context(), q, delayqueue.Job{Key: "k"})))
		require.Equal(t, map[delayqueue.EnqueueKind]int{delayqueue.EnqueueStored: 3, delayqueue.EnqueueQueueFull: callsEach - 3},
			f.each(enqueuing(t.Context(), tiny, delayqueue.Job{})))
		require.Equal(t, only(delayqueue.EnqueueTooLarge), f.each(enqueuing(t.Context(), q, delayqueue.Job{Payload: make([]byte, 101)})))
		require.Equal(t, only(delayqueue.EnqueueError), f.each(enqueuing(t.Context(), q, delayqueue.Job{Delay: -1})))
		require.Equal(t, only(delayqueue.EnqueueError), f.each(enqueuing(t.Context(), q, delayqueue.Job{ID: "junk"})))
		require.Equal(t, only(delayqueue.EnqueueCancelled), f.each(enqueuing(gone, q, delayqueue.Job{})))

		f.proxy.Blackhole(redistest.Requests)
		require.Equal(t, only(delayqueue.EnqueueUnavailable), f.each(enqueuing(t.Context(), q, delayqueue.Job{})), "it does not answer")
		require.Equal(t, only(delayqueue.EnqueueDeadline), f.each(func(i int) (delayqueue.Receipt, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return q.Enqueue(ctx, delayqueue.Job{ID: fmt.Sprint("late", i)})
		}))
		require.Equal(t, only(delayqueue.EnqueueCancelled), f.each(func(int) (delayqueue.Receipt, error) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			return q.Enqueue(ctx, delayqueue.Job{})
		}))
		f.proxy.Refuse(true)
		require.Equal(t, only(delayqueue.EnqueueUnavailable), f.each(enqueuing(t.Context(), q, delayqueue.Job{})), "it refuses")
	})
}

// So is each call that a policy parks.
func TestEnqueue_EachParkedCallIsToldOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		f := setupFragile(t, env)
		f.hold("held")
		guard := f.locker.Guard(delayqueue.Policy(f.newQueue(f.rdb, delayqueue.WithQueueObserver(f.watch))))
		park := func(int) (receipt delayqueue.Receipt, err error) {
			err = guard.Do(t.Context(), core.Call{Key: "held", Encode: nothing}, mustNotRun)
			if deferred, ok := errors.AsType[*core.DeferredError](err); ok {
				return delayqueue.Receipt{Ticket: deferred.Ticket, Stored: true}, nil
			}
			return receipt, err
		}
		require.Equal(t, only(delayqueue.EnqueueStored), f.each(park))
		// A call whose first reply is lost is stored by the policy all the same, and told of once.
		var lost sync.Once
		f.proxy.LoseReply(func(request []byte) (lose bool) {
			if strings.Contains(strings.ToLower(string(request)), "evalsha") {
				lost.Do(func() { lose = true })
			}
			return lose
		})
		require.Equal(t, only(delayqueue.EnqueueStored), f.each(park))
	})
}

// What a Queue and its Worker are told of one message.
func TestObserver_AMessage(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		seen := &watch{}
		opts := append(b.opts, delayqueue.WithQueueObserver(seen))
		q := b.newQueue(b.rdb, opts...)
		held := b.hold("k")
		first := enqueueOn(t, q, delayqueue.Job{Key: "k", Name: "work", Principal: "p", Payload: []byte("12345"), Delay: 20 * time.Millisecond})
		require.True(t, first.Stored)
		second := enqueueOn(t, q, delayqueue.Job{Key: "k", Delay: 30 * time.Millisecond})
		e := seen.take()[0]
		require.Positive(t, e.Took)
		e.Took = 0
		require.Equal(t, delayqueue.Enqueued{
			Queue: "q", Kind: delayqueue.EnqueueStored, ID: first.ID, Key: "k", Name: "work", Principal: "p", Size: 5,
			Delay: 20 * time.Millisecond, ExpiresAt: first.ExpiresAt,
		}, e)
		b.startOn(q, (&ran{}).handle) // the Worker has the Queue's observer
		redistest.Eventually(t, func() bool { return b.status(first.ID).Conflicts > 0 }, "it met the held key")
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, held.Release(t.Context()))
		b.reaches(second.ID, delayqueue.StateDone)
		seen.mu.Lock()
		defer seen.mu.Unlock()
		require.Len(t, seen.started, 2)
		s := seen.started[0]
		require.Equal(t, "q", s.Queue)
		require.Equal(t, first.ID, s.Message.ID)
		require.Positive(t, s.Message.Conflicts)
		require.GreaterOrEqual(t, s.Age, 100*time.Millisecond)
		require.Less(t, s.Age, 30*time.Second)
		require.Less(t, s.Lag, s.Age-20*time.Millisecond, "it was delayed")
		require.Positive(t, s.KeyWait)
		require.Less(t, s.KeyWait, s.Age)
		require.False(t, seen.started[1].QueuedAfter)
	})
}

// lastClaimIsLongAgo makes the last claim so old that there seems to be no worker.
func (b *bench) lastClaimIsLongAgo() {
	b.t.Helper()
	for _, name := range redistest.Keys(b.t, b.rdb, b.env.Prefix) {
		if strings.HasSuffix(name, ":c") {
			require.NoError(b.t, b.rdb.HSet(b.t.Context(), name, "claimed", b.now().Add(-31*time.Second).UnixMilli()).Err())
		}
	}
}

func TestWarning_NobodyHasClaimedIsLoggedByDefault(t *testing.T) {
	log := testbed.CaptureLog(t)
	b := setup(t, redistest.Embedded(t))
	guard := b.locker.Guard(delayqueue.Policy(b.queue))
	b.hold("k")
	park := func() {
		_ = guard.Do(t.Context(), core.Call{Key: "k", Encode: nothing}, mustNotRun)
	}
	park()
	b.lastClaimIsLongAgo()
	b.enqueue(delayqueue.Job{Key: "k"})
	require.NotContains(t, log.String(), "kind=no_worker", "nothing was parked")
	park()
	park()
	require.Equal(t, 1, strings.Count(log.String(), "kind=no_worker"), log.String())
	require.Regexp(t, "no worker has claimed for 3.s: start one with this queue's name and prefix", log.String())
}

// A policy that parks while nobody works is warned of once, and told when that is over. Nobody need park anything later to be told.
func TestWarning_NobodyHasClaimedAfterOneBurst(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		seen := &watch{}
		rdb := b.env.Client(t)
		var away atomic.Bool
		rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if away.Load() {
				cmd.SetErr(errors.New("i/o timeout"))
				return cmd.Err()
			}
			return next(ctx, cmd)
		}))
		q := b.newQueue(rdb, append(b.opts, delayqueue.WithQueueObserver(seen))...)
		q.LookForWorkersAfter(200 * time.Millisecond)
		guard := b.locker.Guard(delayqueue.Policy(q))
		b.hold("k")
		var calls sync.WaitGroup
		for range callsEach {
			calls.Go(func() {
				_ = guard.Do(t.Context(), core.Call{Key: "k", Encode: nothing}, mustNotRun)
			})
		}
		calls.Wait()
		time.Sleep(500 * time.Millisecond) // it has looked, and may have found a worker that has died since
		away.Store(true)
		time.Sleep(500 * time.Millisecond) // it could not look
		away.Store(false)
		b.lastClaimIsLongAgo()
		require.Empty(t, seen.warnings())
		redistest.Eventually(t, func() bool { return len(seen.warnings()) > 0 }, "the queue looks again")
		require.Never(t, func() bool { return len(seen.warnings()) > 1 }, 500*time.Millisecond, 10*time.Millisecond)
		require.Equal(t, delayqueue.WarnNoWorker, seen.warnings()[0].Kind)
		require.False(t, seen.warnings()[0].Resolved)
		b.startOn(q, (&ran{}).handle)
		redistest.Eventually(t, func() bool { return len(seen.warnings()) > 1 }, "the queue sees the worker, with nothing enqueued since")
		require.True(t, seen.warnings()[1].Resolved)
	}, delayqueue.WithPartitions(3))
}

// Cancelled messages need no worker either, nor do dead letters.
func TestWarning_NobodyHasClaimedIsOverWhenNothingIsQueued(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		seen := &watch{}
		b.queue = b.newQueue(b.rdb, delayqueue.WithQueueObserver(seen))
		b.queue.LookForWorkersAfter(100 * time.Millisecond)
		held := b.hold("k")
		id := b.parkCall("k")
		b.lastClaimIsLongAgo()
		redistest.Eventually(t, func() bool { return len(seen.warnings()) > 0 }, "nobody works")
		require.NoError(t, b.queue.Cancel(t.Context(), id))
		redistest.Eventually(t, func() bool { return len(seen.warnings()) > 1 }, "nothing is queued")
		require.True(t, seen.warnings()[1].Resolved)
		redistest.Eventually(t, func() bool { return !b.queue.LooksForWorkers() }, "nobody looks any more")

		w := b.start(func(context.Context, delayqueue.Message) error { return delayqueue.SkipRetry(errors.New("it fails")) })
		_, err := b.newQueue(b.rdb).Enqueue(t.Context(), delayqueue.Job{ID: "first"})
		require.NoError(t, err)
		b.reaches("first", delayqueue.StateDead) // its claims are known
		id = b.parkCall("k")
		require.NoError(t, held.Release(t.Context()))
		b.reaches(id, delayqueue.StateDead)
		require.NoError(t, w.Stop(t.Context()))
		b.lastClaimIsLongAgo()
		redistest.Eventually(t, func() bool { return !b.queue.LooksForWorkers() }, "nobody looks any more")
		require.Len(t, seen.warnings(), 2)
	})
}

// Nobody looks any more when the client is closed.
func TestWarning_IsNotLookedForOnceTheClientIsClosed(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	rdb := b.env.Client(t)
	b.queue = b.newQueue(rdb)
	b.queue.LookForWorkersAfter(100 * time.Millisecond)
	b.hold("k")
	b.parkCall("k")
	redistest.Eventually(t, b.queue.LooksForWorkers, "it looks")
	require.NoError(t, rdb.Close())
	redistest.Eventually(t, func() bool { return !b.queue.LooksForWorkers() }, "it looks once more")
	require.Never(t, b.queue.LooksForWorkers, 300*time.Millisecond, 10*time.Millisecond)
}

// A worker with nothing to do, and one that is busy with one message, claim often enough.
func TestWarning_AWorkerThatLives(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		busy := testbed.NewQueue(t, b.rdb, "busy", delayqueue.WithPrefix(env.Prefix))
		block := make(chan struct{})
		defer close(block)
		b.start((&ran{}).handle)
		b.startOn(busy, func(context.Context, delayqueue.Message) error { <-block; return nil }, delayqueue.WithConcurrency(1))
		enqueueOn(t, busy, delayqueue.Job{})
		for range 60 {
			time.Sleep(time.Second)
			for _, queue := range []string{"q", "busy"} {
				claimed := of(b.rdb.HGet(t.Context(), env.Prefix+":queue:{"+queue+"}:c", "claimed").Int64())(t)
				require.Less(t, b.now().Sub(time.UnixMilli(claimed)), 15*time.Second, queue) // a warning comes at 30
			}
		}
	})
}

// Lag counts from when a message could have run: the next of a key from its predecessor's end.
func TestObserver_Lag(t *testing.T) {
	eachKind(t, func(t *testing.T, b *bench) {
		seen := &watch{}
		q := b.newQueue(b.rdb, append(b.opts, delayqueue.WithQueueObserver(seen))...)
		b.enqueue(delayqueue.Job{Key: "k"})
		last := b.enqueue(delayqueue.Job{Key: "k"})
		time.Sleep(500 * time.Millisecond)
		b.startOn(q, func(context.Context, delayqueue.Message) error { time.Sleep(60 * time.Millisecond); return nil })
		b.reaches(last, delayqueue.StateDone)
		seen.mu.Lock()
		defer seen.mu.Unlock()
		require.Len(t, seen.started, 2)
		first, second := seen.started[0], seen.started[1]
		require.GreaterOrEqual(t, first.Lag, 500*time.Millisecond)
		require.InDelta(t, first.Age, first.Lag, float64(5*time.Millisecond))
		require.True(t, first.QueuedAfter)
		require.GreaterOrEqual(t, second.Age, 560*time.Millisecond)
		require.Less(t, second.Lag, second.Age-500*time.Millisecond)
	})
}

// A job that can be started only for a moment after its Delay is warned of, once.
func TestEnqueue_WarnsOfADelayJustBelowTheMaxAge(t *testing.T) { // not parallel: it looks at slog's default
	said := testbed.CaptureLog(t)
	b := setup(t, redistest.Embedded(t))
	for _, job := range []delayqueue.Job{
		{Delay: 15*time.Minute - 10*time.Second}, {Delay: 4 * time.Second, MaxAge: 5 * time.Second}, {MaxAge: time.Millisecond},
	} {
		b.enqueue(job)
	}
	require.NotContains(t, said.String(), "MaxAge")
	for _, job := range []delayqueue.Job{
		{Name: "remind", Delay: 15*time.Minute - 9*time.Second}, {Delay: 4600 * time.Millisecond, MaxAge: 5 * time.Second},
	} {
		b.enqueue(job)
	}
	require.Equal(t, 1, strings.Count(said.String(), "just below its MaxAge"))
	require.Contains(t, said.String(), "remind")
}

// Who gave up has its buffer back.
func TestRegression_APayloadIsNotReadAfterEnqueueReturned(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		rdb := b.env.Client(t)
		q := b.newQueue(rdb)
		_, err := q.Enqueue(t.Context(), delayqueue.Job{}) // loads the script
		require.NoError(t, err)
		rdb.AddHook(redistest.BeforeEach(func(redis.Cmder) { time.Sleep(100 * time.Millisecond) }))
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*10*time.Millisecond)
				defer cancel()
				buffer := []byte("order")
				_, _ = q.Enqueue(ctx, delayqueue.Job{Payload: buffer})
				copy(buffer, "other")
			})
		}
		callers.Wait()
		time.Sleep(time.Second) // what is on its way arrives
		entries := b.list(delayqueue.StateQueued)
		require.Greater(t, len(entries), 2)
		for _, e := range entries {
			require.NotEqual(t, "other", b.payload(e.ID))
		}
	})
}
