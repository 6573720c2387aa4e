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
)

// parkCall has a call of a held key parked, and returns the id of its message.
func (b *bench) parkCall(key string) string {
	b.t.Helper()
	guard := b.other.Guard(delayqueue.Policy(b.queue))
	call := core.Call{Key: key, Encode: func() ([]byte, error) { return nil, nil }}
	var deferred *core.DeferredError
	require.ErrorAs(b.t, guard.Do(b.t.Context(), call, mustNotRun), &deferred)
	return deferred.Ticket.ID
}

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
			stored, err := b.queue.Payload(t.Context(), e.ID)
			require.NoError(t, err)
			require.NotEqual(t, "other", string(stored))
		}
	})
}

func TestRegression_APrefixWithASlashStillWakesWorkers(t *testing.T) {
	t.Parallel()
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		env.Prefix += "/team"
		b := setup(t, env)
		var r ran
		b.start(r.handle)
		time.Sleep(time.Second) // it sleeps, subscribed
		began := time.Now()
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		require.Less(t, time.Since(began), 2*time.Second, "nobody was woken")
	})
}

func TestRegression_AKeyWhoseLastParkedMessageDiedIsNotReserved(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		lease := b.hold("k")
		id := b.parkCall("k")
		require.NoError(t, lease.Release(t.Context()))
		redistest.Eventually(t, func() bool {
			require.NoError(t, b.queue.ClaimAndDie(20*time.Millisecond))
			return b.status(id).Attempts > 0
		}, "it was not waked")
		time.Sleep(50 * time.Millisecond)
		var r ran
		b.start(r.handle)
		b.reaches(id, delayqueue.StateDead)
		b.isNotReserved("k")
	}, delayqueue.WithMaxAttempts(1))
}

func TestRegression_AStopThatCancelsKeepsNoKeyForNobody(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		started := make(chan struct{})
		first := b.enqueue(delayqueue.Job{Key: "k"})
		second := b.enqueue(delayqueue.Job{Key: "k"})
		w := b.start(func(ctx context.Context, _ delayqueue.Message) error {
			close(started)
			<-ctx.Done()
			return nil // it was done all the same
		})
		next(t, started)
		require.NoError(t, b.queue.Cancel(t.Context(), second))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = w.Stop(ctx)
		require.Equal(t, delayqueue.StateDone, b.status(first).State)
		require.Zero(t, b.inState())
		b.isNotReserved("k")
	})
}

func TestRegression_AWorkerWithoutReservationWindowServesParkedMessages(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		lease := b.hold("k")
		id := b.parkCall("k")
		var r ran
		b.startOn(b.newQueue(b.rdb, delayqueue.WithReservationWindow(0)), r.handle)
		require.NoError(t, lease.Release(t.Context()))
		b.reaches(id, delayqueue.StateDone)
	})
}

func TestRegression_AShorterPauseEndsTheLongerOne(t *testing.T) {
	t.Parallel()
	b := setup(t, redistest.Real(t))
	var r ran
	require.NoError(t, b.queue.Pause(t.Context(), time.Hour))
	id := b.enqueue(delayqueue.Job{})
	b.start(r.handle)
	time.Sleep(600 * time.Millisecond) // it sleeps, subscribed
	require.NoError(t, b.queue.Pause(t.Context(), time.Second))
	b.reaches(id, delayqueue.StateDone)
}

// Its announcements are denied, and only they.
func TestRegression_AUserWithoutChannelsStoresAndCancelsAsAWhole(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := redistest.Client(t, &redis.Options{Addr: server.Addr})
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">pw", "~*", "resetchannels", "+@all").Err())
	b := &bench{t: t, env: &redistest.Env{Addr: server.Addr, Real: true, Prefix: "p"}}
	b.queue = b.newQueue(redistest.Client(t, &redis.Options{Addr: server.Addr, Username: "app", Password: "pw"}))
	ids := []string{b.enqueue(delayqueue.Job{})}
	for i := range 3 {
		ids = append(ids, b.enqueue(delayqueue.Job{Key: fmt.Sprint(i), Delay: time.Minute}))
	}
	require.EqualValues(t, len(ids), b.inState()[0])
	n, err := b.queue.CancelAll(t.Context(), delayqueue.Filter{})
	require.NoError(t, err)
	require.Equal(t, len(ids), n)
	for _, id := range ids {
		require.Equal(t, delayqueue.StateCancelled, b.status(id).State)
	}
	require.Zero(t, b.inState())
	require.Positive(t, admin.TTL(t.Context(), b.key("c")).Val())
}

// Only a message's own payload is another worker's business.
func TestRegression_AHandlersErrorAboutAnUnknownKeySpendsAnAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ring := func(id string) *delayqueue.Queue {
			q, err := delayqueue.New(b.rdb, "other", delayqueue.WithPrefix(b.env.Prefix), delayqueue.WithEncryption(
				delayqueue.Keyring{Current: id, Keys: map[string][]byte{id: []byte(strings.Repeat(id, 32))}}))
			require.NoError(t, err)
			return q
		}
		ticket, err := ring("a").Enqueue(t.Context(), delayqueue.Job{Payload: []byte("x")})
		require.NoError(t, err)
		reader := ring("b")
		b.start(func(ctx context.Context, _ delayqueue.Message) error {
			_, err := reader.Payload(ctx, ticket.ID)
			return err
		})
		s := b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDead)
		require.Equal(t, 2, s.Attempts)
	}, delayqueue.WithMaxAttempts(2))
}

func TestRegression_AMessageIsFoundAlthoughAnotherPartitionIsDown(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		for down := 1; down <= 2; down++ {
			id := b.enqueue(delayqueue.Job{Key: inPartition(t, b, 3-down, 2)})
			rdb := b.env.Client(t)
			rdb.AddHook(hookFunc(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if args := cmd.Args(); len(args) > 1 && strings.HasPrefix(fmt.Sprint(args[1]), fmt.Sprintf("%s:queue:{q/%d.2}", b.env.Prefix, down)) {
					cmd.SetErr(context.DeadlineExceeded)
					return context.DeadlineExceeded
				}
				return next(ctx, cmd)
			}))
			_, err := b.newQueue(rdb, delayqueue.WithPartitions(2)).Status(t.Context(), id)
			require.NoError(t, err, "partition %d is down", down)
		}
	}, delayqueue.WithPartitions(2))
}

// What waits for its next attempt holds back those that were parked behind it, and no fresh calls.
func TestRegression_ARetryOfMoreThanADayKeepsNoFreshCallOut(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		lease := b.hold("k")
		b.parkCall("k")
		seen := newEvents()
		b.start(func(context.Context, delayqueue.Message) error { return errors.New("not now") },
			delayqueue.WithRetryBackoff(40*time.Hour, 40*time.Hour), delayqueue.WithObserver(seen))
		require.NoError(t, lease.Release(t.Context()))
		redistest.Eventually(t, func() bool { return next(t, seen.settled).Outcome == delayqueue.OutcomeRetry }, "it did not run")
		b.isNotReserved("k")
		lease = b.hold("k")
		behind := b.parkCall("k")
		require.NoError(t, lease.Release(t.Context()))
		b.isNotReserved("k")
		require.NoError(t, b.hold("k").Release(t.Context()))
		require.Equal(t, delayqueue.StateQueued, b.status(behind).State)
		require.Zero(t, b.status(behind).Attempts+b.status(behind).Conflicts, "it keeps its place")
	}, delayqueue.WithMaxAge(90*24*time.Hour))
}

func TestRegression_AKeyFullOfExpiredMessagesIsNotFull(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		for i := range 60 {
			b.enqueue(delayqueue.Job{Key: fmt.Sprint("other", i), MaxAge: 500 * time.Millisecond})
		}
		for range 5 {
			b.enqueue(delayqueue.Job{Key: "k", MaxAge: 550 * time.Millisecond})
		}
		time.Sleep(600 * time.Millisecond)
		b.enqueue(delayqueue.Job{Key: "k"})
	}, delayqueue.WithMaxDepthPerKey(5))
}

// The message that the end of another brings is given back.
func TestRegression_NoHandlerBeginsAfterStopWasCalled(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		proxy := redistest.NewProxy(t, b.env.Addr)
		b.enqueue(delayqueue.Job{Key: "k"})
		behind := b.enqueue(delayqueue.Job{Key: "k"})
		var runs atomic.Int64
		first := make(chan struct{})
		w := b.startOn(b.newQueue(redistest.Client(t, &redis.Options{Addr: proxy.Addr})), func(context.Context, delayqueue.Message) error {
			if runs.Add(1) == 1 {
				proxy.Delay(func() time.Duration { return 100 * time.Millisecond })
				close(first)
			}
			return nil
		})
		next(t, first)
		time.Sleep(50 * time.Millisecond) // the settlement that claims the next one is under way
		require.NoError(t, w.Stop(t.Context()))
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, delayqueue.StateQueued, b.status(behind).State)
	})
}

// mistaken is an observer that panics.
type mistaken struct{}

func (mistaken) OnEnqueuing(context.Context, delayqueue.Enqueuing) (context.Context, string) {
	panic("an observer's mistake")
}

func (mistaken) OnEnqueued(context.Context, delayqueue.Enqueued) { panic("an observer's mistake") }
func (mistaken) OnStarted(context.Context, delayqueue.Started)   { panic("an observer's mistake") }
func (mistaken) OnSettled(context.Context, delayqueue.Settled)   { panic("an observer's mistake") }
func (mistaken) OnReaped(context.Context, delayqueue.Reaped)     { panic("an observer's mistake") }
func (mistaken) OnWarning(context.Context, delayqueue.Warning)   { panic("an observer's mistake") }

func TestRegression_AnObserversPanicDoesNotTakeTheProcessDown(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		_, err := b.newQueue(b.rdb, delayqueue.WithQueueObserver(mistaken{})).Enqueue(t.Context(), delayqueue.Job{Delay: time.Minute})
		require.NoError(t, err)
		old := b.enqueue(delayqueue.Job{Key: "old", MaxAge: 20 * time.Millisecond})
		time.Sleep(50 * time.Millisecond)
		var r ran
		b.start(r.handle, delayqueue.WithObserver(mistaken{}))
		for range 2 {
			b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone)
		}
		b.reaches(old, delayqueue.StateExpired)
		require.Len(t, r.ids(), 2)
	})
}
