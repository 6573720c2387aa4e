package ops_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/ops"
)

func startWatch(t testing.TB, rdb redis.UniversalClient, prefix string, keys ops.Watched) *ops.Watcher {
	t.Helper()
	w, err := ops.Watch(t.Context(), rdb, prefix, keys)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

// seenBy is what a Watcher gets until there is an event for which last answers true.
func seenBy(t testing.TB, w *ops.Watcher, last func(ops.Event) bool) (all []ops.Event) {
	t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case e, open := <-w.Events():
			require.True(t, open)
			if all = append(all, e); last(e) {
				return all
			}
		case <-timeout:
			require.Fail(t, "an event is missing", "%v", all)
		}
	}
}

func words(events []ops.Event) (all []string) {
	for _, e := range events {
		all = append(all, e.Source+" "+e.Kind+" "+e.Name)
	}
	return all
}

// TestWatch_TellsWhatHappensToAKey is long since it is one story.
func TestWatch_TellsWhatHappensToAKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, odd := t.Context(), "pay \xff<i>\u2028"
		recorder, another := ops.NewRecorder(), ops.NewRecorder()
		locker, other := newLocker(t, env, core.WithObserver(recorder.Locks(nil))), newLocker(t, env, core.WithObserver(another.Locks(nil)))
		queue := testbed.NewQueue(t, env.Client(t), "ship", delayqueue.WithPrefix(env.Prefix), delayqueue.WithQueueObserver(recorder.Queues(nil)))
		worker, err := delayqueue.NewWorker(queue, locker, func(context.Context, delayqueue.Message) error { return nil })
		require.NoError(t, err)
		startBeacon(t, env.Client(t), recorder, locker)
		startBeacon(t, env.Client(t), another, other)

		one := startWatch(t, env.Client(t), env.Prefix, ops.Watched{Key: odd})
		all := startWatch(t, env.Client(t), env.Prefix, ops.Watched{Key: "pay", Prefix: true})
		redistest.Eventually(t, func() bool { return recorder.Watches() == 2 && another.Watches() == 2 }, "both processes know of both")

		lease, err := locker.TryAcquire(ctx, odd, core.Named("first", "1"))
		require.NoError(t, err)
		_, err = locker.TryAcquire(ctx, "order", core.Named("unseen", ""))
		require.NoError(t, err)
		another.Requests(nil).OnOutcome(ctx, httplock.Outcome{Kind: httplock.OutcomeShed, Key: odd, Name: "POST /pay", Took: time.Second})
		_, err = other.TryAcquire(ctx, odd, core.Named("second", "2"))
		require.ErrorIs(t, err, core.ErrConflict)
		set, err := locker.TryAcquireAll(ctx, []string{"a", "pay too"}, core.Named("several", "3"))
		require.NoError(t, err)
		require.NoError(t, set.Release(ctx))
		require.NoError(t, lease.Release(ctx))
		_, err = queue.Enqueue(ctx, delayqueue.Job{ID: "m", Key: odd, Name: "parked"})
		require.NoError(t, err)
		require.NoError(t, worker.Start())
		defer func() { require.NoError(t, worker.Stop(ctx)) }()
		both := func() func(ops.Event) bool { // the last event of each process, in either order
			seen := map[string]bool{}
			return func(e ops.Event) bool {
				seen[e.Kind] = true
				return seen[string(delayqueue.OutcomeDone)] && seen[string(core.OutcomeConflict)]
			}
		}

		events := seenBy(t, one, both())
		var mine, others []ops.Event
		for _, e := range events {
			assert.Equal(t, odd, e.Key)
			if e.Process == other.ID() {
				others = append(others, e)
			} else {
				assert.Equal(t, locker.ID(), e.Process)
				mine = append(mine, e)
			}
		}
		assert.Equal(t, []string{"requests shed POST /pay", "locks conflict second"}, words(others))
		assert.Equal(t, "2", others[1].ID)
		assert.NotEmpty(t, others[1].Detail)
		assert.ElementsMatch(t, words(mine), []string{
			"locks acquired first", "locks released first", "queues stored parked", "locks acquired ", "queues started parked", "locks released ", "queues done parked",
		})
		assert.Equal(t, lease.Fence(), mine[0].Fence)
		assert.Equal(t, lease.Fence(), mine[1].Fence)
		assert.Equal(t, [2]string{"ship", "m"}, [2]string{mine[2].Queue, mine[2].ID})
		for _, e := range mine {
			assert.WithinDuration(t, time.Now(), e.At, time.Minute)
		}

		several := map[string]int{}
		for _, e := range seenBy(t, all, both()) {
			assert.Contains(t, []string{odd, "pay too"}, e.Key)
			if e.Key == "pay too" {
				several[e.Kind]++
			}
		}
		assert.Equal(t, map[string]int{"acquired": 1, "released": 1}, several)
		assert.Zero(t, one.Dropped()+all.Dropped())

		one.Close()
		one.Close()
		_, open := <-one.Events()
		assert.False(t, open)
		redistest.Eventually(t, func() bool { return recorder.Watches() == 1 }, "it is forgotten")
		all.Close()
		redistest.Eventually(t, func() bool { return recorder.Watches() == 0 && another.Watches() == 0 }, "nothing is watched any more")
	})
}

// Redis has the errors of an encrypted queue sealed: what is published, and what the process tells of itself, does not have them in clear.
func TestWatch_HidesTheErrorsOfEncryptedQueues(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb, recorder := env.Client(t), ops.NewRecorder()
		locker := newLocker(t, env, core.WithObserver(recorder.Locks(nil)))
		startBeacon(t, rdb, recorder, locker)
		watch := startWatch(t, rdb, env.Prefix, ops.Watched{Prefix: true})
		redistest.Eventually(t, func() bool { return recorder.Watches() == 1 }, "it is known")
		keyring := delayqueue.WithEncryption(delayqueue.Keyring{Current: "k", Keys: map[string][]byte{"k": []byte("thirty-two bytes that do not lie")}})
		for name, opts := range map[string][]delayqueue.Option{"sealed": {keyring}, "open": nil} {
			queue := testbed.NewQueue(t, rdb, name, append(opts, delayqueue.WithPrefix(env.Prefix), delayqueue.WithMaxAttempts(1), delayqueue.WithQueueObserver(recorder.Queues(delayqueue.NopObserver{})))...)
			testbed.Work(t, queue, locker, func(context.Context, delayqueue.Message) error { return fmt.Errorf("the card of %s", name) },
				delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
			testbed.Enqueue(t, queue, delayqueue.Job{Key: "k", Name: name})
		}
		details, dead := map[string]string{}, map[string]string{}
		for len(details) < 2 {
			all := seenBy(t, watch, func(e ops.Event) bool { return e.Kind == string(delayqueue.OutcomeDead) })
			last := all[len(all)-1]
			details[last.Queue] = last.Detail
		}
		assert.Contains(t, details["open"], "the card of open")
		assert.Equal(t, "an error that is not shown, since the queue is encrypted", details["sealed"])
		for _, e := range recorder.Snapshot().Events {
			if e.Kind == string(delayqueue.OutcomeDead) {
				dead[e.Queue] = e.Detail
			}
		}
		assert.Equal(t, details, dead)
	})
}

// A registration whose reply is lost does not keep one of the 16 places.
func TestWatch_ThatDidNotBeginKeepsNoPlace(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: -1})
	startWatch(t, rdb, "p", ops.Watched{Key: "first"}) // loads the script
	proxy.LoseReply(func(request []byte) bool { return bytes.Contains(request, []byte("evalsha")) })
	_, err := ops.Watch(t.Context(), rdb, "p", ops.Watched{Key: "second"})
	require.ErrorIs(t, err, core.ErrUnavailable)
	left, err := redistest.Client(t, &redis.Options{Addr: server.Addr}).ZRange(t.Context(), "p:ops:{fleet}:watches", 0, -1).Result()
	require.NoError(t, err)
	for _, watch := range left {
		require.NotContains(t, watch, "second")
	}
}

func TestWatch_HasABoundedRate(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) { // 5,000 calls within one second
		ctx, recorder := t.Context(), ops.NewRecorder()
		observer := recorder.Locks(nil)
		startBeacon(t, env.Client(t), recorder, newLocker(t, env))
		w := startWatch(t, env.Client(t), env.Prefix, ops.Watched{Prefix: true})
		redistest.Eventually(t, func() bool { return recorder.Watches() == 1 }, "it is known")
		const most, calls = 200, 5000
		for i := range calls {
			if i == calls/2 {
				time.Sleep(400 * time.Millisecond) // what came so far is published
			}
			observer.OnOutcome(ctx, core.Outcome{Kind: core.OutcomeConflict, Key: fmt.Sprint(i), Cause: errors.New("held")})
		}
		for i := range most {
			assert.Equal(t, fmt.Sprint(i), (<-w.Events()).Key, "in order")
		}
		redistest.Eventually(t, func() bool { return w.Dropped() == calls-most }, "the others are counted")
		time.Sleep(time.Second)
		assert.Empty(t, w.Events())
		observer.OnOutcome(ctx, core.Outcome{Kind: core.OutcomeAcquired, Key: "last"})
		assert.Equal(t, "last", (<-w.Events()).Key, "a second later there is room")
		w.Close()
	})
}

func TestWatch_IsBounded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		for _, keys := range []ops.Watched{
			{}, {Key: string(make([]byte, 513))}, {Key: "k", For: time.Millisecond}, {Key: "k", For: time.Hour}, {Key: "k", For: -time.Second},
		} {
			_, err := ops.Watch(t.Context(), rdb, env.Prefix, keys)
			require.ErrorIs(t, err, core.ErrInvalidOption)
		}
		_, err := ops.Watch(t.Context(), rdb, "{}", ops.Watched{Key: "k"})
		require.ErrorIs(t, err, core.ErrInvalidOption)
		_, err = ops.Watch(t.Context(), (*redis.Client)(nil), "", ops.Watched{Key: "k"})
		require.ErrorIs(t, err, core.ErrInvalidOption)

		var watchers []*ops.Watcher
		for range 15 {
			watchers = append(watchers, startWatch(t, rdb, env.Prefix, ops.Watched{Key: "k"}))
		}
		short := startWatch(t, rdb, env.Prefix, ops.Watched{Key: "k", For: time.Second})
		_, err = ops.Watch(t.Context(), rdb, env.Prefix, ops.Watched{Key: "k"})
		require.ErrorIs(t, err, ops.ErrTooManyWatches)
		for range short.Events() {
		}
		watchers = append(watchers, startWatch(t, rdb, env.Prefix, ops.Watched{Key: "k"}))
		watchers[0].Close()
		startWatch(t, rdb, env.Prefix, ops.Watched{Key: "k"})

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = ops.Watch(ctx, rdb, env.Prefix, ops.Watched{Key: "k"})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// What is watched ends in a process by its time, also if Redis does not say so.
func TestWatch_IgnoresWhatItDoesNotKnow(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb, recorder := env.Client(t), ops.NewRecorder()
		now, err := rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		for _, junk := range []string{"", " ", "id", "id key", "id colour red", "\xff\x00", " key k", "id2 key " + string(make([]byte, 1000))} {
			require.NoError(t, rdb.ZAdd(t.Context(), env.Prefix+":ops:{fleet}:watches", redis.Z{Score: float64(now.Add(time.Hour).UnixMilli()), Member: junk}).Err())
		}
		startBeacon(t, env.Client(t), recorder, newLocker(t, env))
		w := startWatch(t, rdb, env.Prefix, ops.Watched{Key: "k"})
		redistest.Eventually(t, func() bool { return recorder.Watches() == 2 }, `the watch, and "id key", of the empty key`)
		for _, junk := range []string{"junk", "{}", "[]", `{"events":7}`, `{"dropped":-5}`, `{"process":"p","events":[{"kind":"new","key":["/w=="]}]}`} {
			require.NoError(t, rdb.Publish(t.Context(), env.Prefix+":ops:watch:"+w.ID(), junk).Err())
		}
		e := seenBy(t, w, func(ops.Event) bool { return true })[0]
		assert.Equal(t, [3]string{"p", "new", "\xff"}, [3]string{e.Process, e.Kind, e.Key})
		assert.Zero(t, w.Dropped())
	})
}
