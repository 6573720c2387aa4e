package lockprom_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

// series is one of a counter: the metric, whose it is, and the outcome.
type series struct{ metric, of, outcome string }

// tally counts calls as they come back to those who made them.
type tally struct {
	mu   sync.Mutex
	made map[series]int64
}

func (l *tally) add(metric, of, outcome string) { l.addAll(metric, of, outcome, 1) }

func (l *tally) addAll(metric, of, outcome string, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[series{metric, of, outcome}] += n
}

func (l *tally) all() map[series]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.made)
}

// counted are the series of a Snapshot, which lockprom exports as they are: those that are zero too.
func counted(s ops.Snapshot) map[series]int64 {
	all := map[series]int64{}
	for _, q := range s.Queues {
		put(all, "perkey_enqueue_total", q.Queue, q.Enqueued)
		put(all, "perkey_queue_events_total", q.Queue, q.Settled)
		put(all, "perkey_queue_events_total", q.Queue, map[string]int64{"redelivered": q.Redelivered, "overdue": q.Expired})
	}
	put(all, "perkey_idempotency_total", "", s.Idempotency)
	return all
}

func put[K ~string](all map[series]int64, metric, of string, counts map[K]int64) {
	for outcome, n := range counts {
		all[series{metric, of, string(outcome)}] = n
	}
}

// broken says what of the law does not hold: each call that was made is counted once, as what it came to, and
// nothing else is.
func broken(made, counted map[series]int64) (why []string) {
	for s, n := range made {
		if counted[s] != n {
			why = append(why, fmt.Sprintf("%v: %d were made, and %d are counted", s, n, counted[s]))
		}
	}
	for s, n := range counted {
		if n != 0 && made[s] == 0 {
			why = append(why, fmt.Sprintf("%v: none was made, and %d are counted", s, n))
		}
	}
	slices.Sort(why)
	return why
}

// Each call of a queue and of an Idempotency-Key that was made, for every reason for which one can end, is counted once, as the
// outcome that its caller got.
func TestLaw_EachCallIsCountedOnceAsWhatItCameTo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		c := &calls{T: t, env: env, rdb: env.Client(t), recorder: ops.NewRecorder(), tally: tally{made: map[series]int64{}}}
		c.toQueues()
		c.ofIdempotencyKeys()

		made := c.all()
		var why []string
		t.Cleanup(func() { assert.Empty(t, why) })
		redistest.Eventually(t, func() bool { // a message is settled after its handler
			why = broken(made, counted(c.recorder.Snapshot()))
			return len(why) == 0
		}, "each is counted")

		reasons := map[series]bool{}
		for s := range counted(c.recorder.Snapshot()) {
			reasons[series{s.metric, "", s.outcome}] = true
		}
		for s := range made {
			delete(reasons, series{s.metric, "", s.outcome})
			without := counted(c.recorder.Snapshot())
			delete(without, s)
			require.NotEmpty(t, broken(made, without), "a recorder that drops %v", s)
		}
		assert.Empty(t, reasons, "reasons for which no call ended")
	})
}

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

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

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
