package delayqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestClaim_ALateResultIsRefused(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		ev := newEvents()
		started, block := make(chan struct{}), make(chan struct{})
		b.start(func(context.Context, delayqueue.Message) error {
			close(started)
			<-block
			return delayqueue.SkipRetry(context.Canceled)
		}, delayqueue.WithObserver(ev), delayqueue.WithClaimLease(20*time.Minute), delayqueue.WithConcurrency(1))
		id := b.enqueue(delayqueue.Job{})
		next(t, started)

		// The claim ends, and another worker runs the message.
		require.NoError(t, b.rdb.ZAdd(t.Context(), b.key("w"), redisZ(0, id+" ")).Err())
		var r ran
		b.start(r.handle)
		s := b.reaches(id, delayqueue.StateDone)
		require.Equal(t, []int{2, 1}, []int{s.Attempts, s.Losses})
		require.Equal(t, 2, r.all()[0].Attempt)
		require.Equal(t, 1, r.all()[0].Losses)

		close(block)
		e := next(t, ev.settled)
		require.Equal(t, delayqueue.OutcomeLate, e.Outcome)
		require.ErrorIs(t, e.Err, delayqueue.ErrClaimLost)
		require.Equal(t, s, b.status(id), "the late result changed nothing")
	})
}

func TestClaim_AHandlerIsToldThatItsClaimWasLost(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		started, cause := make(chan struct{}), make(chan error, 1)
		b.start(func(ctx context.Context, m delayqueue.Message) error {
			if m.Attempt == 1 {
				close(started)
				<-ctx.Done()
				cause <- context.Cause(ctx)
			}
			return nil
		}, delayqueue.WithClaimLease(3*time.Second))
		id := b.enqueue(delayqueue.Job{Key: "k"})
		next(t, started)
		require.NoError(t, b.rdb.HSet(t.Context(), b.key("r"), id, "r------1 0 0 0 another ").Err())
		require.ErrorIs(t, next(t, cause), delayqueue.ErrClaimLost)
	})
}

// With options each message has a lease of its own: calls of a guard with MinHold, fresh and parked, come no closer than that, whichever
// of two workers runs them.
func TestWithAcquireOptions_MinHold(t *testing.T) {
	const calls, apart = 6, 200 * time.Millisecond
	each(t, func(t *testing.T, b *bench) {
		var mu sync.Mutex
		var granted []int64 // fences, which are times of Redis, in µs
		run := func(ctx context.Context) error {
			lease, _ := core.LeaseFrom(ctx)
			mu.Lock()
			defer mu.Unlock()
			granted = append(granted, lease.Fence())
			return nil
		}
		for range 2 {
			b.start(func(ctx context.Context, _ delayqueue.Message) error { return run(ctx) }, delayqueue.WithAcquireOptions(core.MinHold(apart)))
		}
		guard := b.other.Guard(delayqueue.Policy(b.queue), core.MinHold(apart))
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				if err := guard.Do(t.Context(), core.Call{Key: "k", Encode: nothing}, run); !errors.Is(err, core.ErrDeferred) {
					assert.NoError(t, err)
				}
			})
		}
		all.Wait()
		redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "all have run")
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, granted, calls)
		slices.Sort(granted)
		for i := 1; i < calls; i++ { // Redis counts in ms
			require.Greater(t, granted[i]-granted[i-1], (apart - 2*time.Millisecond).Microseconds())
		}
	})
}

func TestWithAcquireOptions_MaxHold(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		causes := make(chan error, 10)
		b.start(func(ctx context.Context, _ delayqueue.Message) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return ctx.Err()
		}, delayqueue.WithAcquireOptions(core.MaxHold(100*time.Millisecond)))
		require.Equal(t, 2, b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDead).Losses)
		for range 2 {
			require.ErrorIs(t, next(t, causes), core.ErrLeaseLost)
		}
	}, delayqueue.WithMaxAttempts(2))
}

// A grant that no replica has does not count: the message is not run.
func TestWithAcquireOptions_WaitReplicas(t *testing.T) {
	env := redistest.Real(t)
	b := setup(t, env)
	b.start(func(context.Context, delayqueue.Message) error {
		t.Error("it ran")
		return nil
	}, delayqueue.WithAcquireOptions(core.WaitReplicas(1, time.Millisecond)))
	id := b.enqueue(delayqueue.Job{Key: "k"})
	redistest.Eventually(t, func() bool { return strings.Contains(b.rdb.Info(t.Context(), "commandstats").Val(), "cmdstat_wait:") }, "it is asked for replicas")
	b.reaches(id, delayqueue.StateQueued)
}

func TestWithAcquireOptions_AreChecked(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	handler := func(context.Context, delayqueue.Message) error { return nil }
	for name, opts := range map[string][]core.AcquireOption{
		"nil": {nil}, "too short": {core.MinHold(0)}, "shared": {core.Shared()}, "counted": {core.Counted(2)},
	} {
		_, err := delayqueue.NewWorker(b.queue, b.locker, handler, delayqueue.WithAcquireOptions(opts...))
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		require.ErrorContains(t, err, "WithAcquireOptions", name)
	}
	of(delayqueue.NewWorker(b.queue, b.locker, handler, delayqueue.WithAcquireOptions(), delayqueue.WithAcquireOptions(core.Counted(1), core.Named("n", ""))))(t)
}

func TestHeartbeat_HeartbeatsDoNotWaitForTheUsersPool(t *testing.T) {
	for name, given := range map[string]bool{"of their own": false, "given": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				const pool, messages, lease = 4, 20, 3 * time.Second
				full := redistest.Client(t, redistest.OnePool(&redis.Options{
					Addr: b.env.Addr, PoolSize: pool, MaxActiveConns: pool, PoolTimeout: 100 * time.Millisecond,
				}))
				opts := []delayqueue.WorkerOption{delayqueue.WithClaimLease(lease), delayqueue.WithConcurrency(messages)}
				if given {
					opts = append(opts, delayqueue.WithHeartbeatClient(b.env.Client(t)))
				}
				var running, lost atomic.Int64
				done := make(chan struct{})
				b.startOn(b.newQueue(full), func(ctx context.Context, _ delayqueue.Message) error {
					running.Add(1)
					select {
					case <-done:
					case <-ctx.Done():
						lost.Add(1)
					}
					return nil
				}, opts...)
				ids := b.enqueueAll(messages, func(i int) delayqueue.Job { return delayqueue.Job{Key: []string{"", fmt.Sprint(i)}[i%2]} })
				redistest.Eventually(t, func() bool { return running.Load() == messages }, "all run")
				var redelivered ran
				b.start(redelivered.handle) // another process would run what is lost

				var blocked sync.WaitGroup
				for range 2 * pool { // more wait for their turn
					blocked.Go(func() {
						for end := time.Now().Add(3 * lease); time.Now().Before(end); {
							_ = full.BLPop(t.Context(), time.Until(end).Truncate(time.Second)+time.Second, b.env.Prefix+"nothing").Err()
						}
					})
				}
				blocked.Wait()
				require.Zero(t, lost.Load(), "claims were lost")
				close(done)
				for _, id := range ids {
					s := b.reaches(id, delayqueue.StateDone)
					require.Equal(t, [2]int{1, 0}, [2]int{s.Attempts, s.Losses})
				}
				require.Empty(t, redelivered.ids())
			})
		})
	}
}
