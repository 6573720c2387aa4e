package delayqueue_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestStop_AWorkerStartsOnce(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	var r ran
	w := b.start(r.handle)
	require.ErrorIs(t, w.Start(), delayqueue.ErrStarted)
	require.NoError(t, w.Stop(t.Context()))
	require.NoError(t, w.Stop(t.Context()), "twice")
	require.ErrorIs(t, w.Start(), delayqueue.ErrStopped)

	never := of(delayqueue.NewWorker(b.queue, b.locker, r.handle))(t)
	require.NoError(t, never.Stop(t.Context()), "before Start")
	require.ErrorIs(t, never.Start(), delayqueue.ErrStopped)

	var zero delayqueue.Worker
	require.ErrorIs(t, zero.Start(), delayqueue.ErrInvalidArgument)
	require.NoError(t, zero.Stop(t.Context()))
}

func TestStop_LetsHandlersFinish(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		started, block := make(chan struct{}), make(chan struct{})
		w := b.start(func(ctx context.Context, _ delayqueue.Message) error {
			close(started)
			<-block
			return context.Cause(ctx)
		})
		id := b.enqueue(delayqueue.Job{Key: "k"})
		next(t, started)
		var stops sync.WaitGroup
		for range 2 {
			stops.Go(func() { assert.NoError(t, w.Stop(context.Background())) })
		}
		b.enqueue(delayqueue.Job{}) // run by the last claim, or left for the next worker
		close(block)
		stops.Wait()
		require.Equal(t, delayqueue.StateDone, b.status(id).State)
		require.Zero(t, b.stats().Running)
	})
}

// What is done all the same keeps its key for nobody.
func TestStop_GivesBackWhatItInterrupts(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		started, returned := make(chan struct{}, 2), make(chan error, 2)
		w := b.start(func(ctx context.Context, m delayqueue.Message) error {
			started <- struct{}{}
			<-ctx.Done()
			returned <- context.Cause(ctx)
			if m.Name == "finishes" {
				return nil
			}
			return ctx.Err()
		})
		interrupted := b.enqueue(delayqueue.Job{Key: "k"})
		finishes, behind := b.enqueue(delayqueue.Job{Key: "l", Name: "finishes"}), b.enqueue(delayqueue.Job{Key: "l"})
		next(t, started)
		next(t, started)
		require.NoError(t, b.queue.Cancel(t.Context(), behind))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, w.Stop(ctx), context.Canceled)
		require.NoError(t, w.Stop(t.Context()), "it waits for the handlers")
		require.Len(t, returned, 2)
		require.ErrorIs(t, <-returned, delayqueue.ErrStopped)
		s := b.status(interrupted)
		require.Equal(t, delayqueue.StateQueued, s.State)
		require.Equal(t, []int{0, 0, 1}, []int{s.Attempts, s.Conflicts, s.Losses}, "it may have done a part")
		require.Equal(t, delayqueue.StateDone, b.status(finishes).State)
		b.isNotReserved("l")

		var r ran
		b.start(r.handle)
		b.reaches(interrupted, delayqueue.StateDone)
		require.Equal(t, 1, r.all()[0].Attempt)
	}, delayqueue.WithMaxAttempts(1))
}

// A handler that does not heed its ctx keeps its claim and its key, also if a handler of another Worker stops its own.
func TestStop_WaitsForAHandlerThatRunsOn(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		began, stopped := make(chan struct{}), make(chan error)
		var returned atomic.Bool
		w := b.start(func(context.Context, delayqueue.Message) error {
			close(began)
			time.Sleep(12 * time.Second)
			returned.Store(true)
			return nil
		})
		id := b.enqueue(delayqueue.Job{Key: "k"})
		<-began
		other := testbed.NewQueue(t, b.rdb, "other", delayqueue.WithPrefix(b.env.Prefix))
		b.startOn(other, func(ctx context.Context, _ delayqueue.Message) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			stopped <- w.Stop(ctx)
			return nil
		})
		enqueueOn(t, other, delayqueue.Job{})
		require.ErrorIs(t, <-stopped, context.Canceled)
		require.True(t, returned.Load(), "the caller closes the Locker now")
		require.Equal(t, delayqueue.StateDone, b.status(id).State)
	})
}

// A handler that stops its own Worker cannot be waited for: its ctx bounds that, and then its message goes back.
func TestStop_FromAHandlerEndsWithItsContext(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		const handlers = 4
		var own atomic.Pointer[delayqueue.Worker]
		stopped, known := make(chan error, handlers), make(chan struct{})
		w := b.start(func(ctx context.Context, m delayqueue.Message) error {
			<-known
			stop := func() {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
				defer cancel()
				stopped <- own.Load().Stop(ctx)
			}
			if m.Key != "0" {
				ctx = context.Background()
				stop()
				return nil
			}
			var elsewhere sync.WaitGroup
			elsewhere.Go(stop)
			elsewhere.Wait()
			return nil
		}, delayqueue.WithConcurrency(handlers))
		own.Store(w)
		close(known)
		var ids []string
		for i := range handlers {
			ids = append(ids, b.enqueue(delayqueue.Job{Key: fmt.Sprint(i)}))
		}
		require.Error(t, next(t, stopped))
		require.NoError(t, w.Stop(t.Context()), "elsewhere it waits for them")
		for _, id := range ids {
			require.NotEqual(t, delayqueue.StateRunning, b.status(id).State)
		}
	}, delayqueue.WithMaxAttempts(1))
}

func TestStop_AnIdleWorkerIsQuiet(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		var scripts atomic.Int64
		b.rdb.AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
			if redistest.IsScript(cmd) {
				scripts.Add(1)
			}
		}))
		b.start((&ran{}).handle)
		b.reaches(b.enqueue(delayqueue.Job{}), delayqueue.StateDone)
		before := scripts.Load()
		time.Sleep(2 * time.Second)
		require.LessOrEqual(t, scripts.Load()-before, int64(5))
	})
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
