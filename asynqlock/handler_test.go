package asynqlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestHandler_RunsUnderItsLease(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		done := make(chan struct{})
		b.serve(t, b.config(), b.perKey()(does(func(ctx context.Context, task *asynq.Task) {
			defer close(done)
			lease, held := core.LeaseFrom(ctx)
			if assert.True(t, held) {
				assert.Equal(t, key, lease.Key())
				assert.Positive(t, lease.Fence())
			}
			id, _ := asynq.GetTaskID(ctx)
			assert.Equal(t, task.ResultWriter().TaskID(), id)
			seen, err := b.rival.Inspect(ctx, key)
			if assert.NoError(t, err) && assert.Len(t, seen.Holders, 1) {
				assert.Equal(t, kind, seen.Holders[0].Name)
				assert.Equal(t, id, seen.Holders[0].ID)
			}
		})))
		id := b.enqueue(t, task())
		get(t, done)
		redistest.Eventually(t, func() bool { return b.info(t, id) == nil }, "the task has ended")
		b.requireFree(t, key)
	})
}

func TestHandler_CopiesOfADeafOneNeverOverlap(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		var only alone
		var cut atomic.Int64
		done := make(chan struct{})
		b.serve(t, b.config(), b.perKey(soon)(asynq.HandlerFunc(
			func(ctx context.Context, _ *asynq.Task) error {
				defer only.enter(t)()
				if only.runs.Load() == 0 {
					// Deaf: long after its time is over, and the copy has come several times.
					b.untilConflicts(t, 5)
					if ctx.Err() != nil {
						cut.Add(1)
					}
					return nil
				}
				close(done)
				return nil
			})))
		b.enqueue(t, task(), asynq.Timeout(time.Second), asynq.MaxRetry(20)) // a busy machine may need some
		get(t, done)
		require.EqualValues(t, 1, cut.Load(), "the first was cut off")
		redistest.Eventually(t, func() bool { return only.runs.Load() == 2 }, "both have ended")
		b.requireArchived(t, 0)
	})
}

func TestHandler_ThatRunsOnIsLoggedOnce(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		log := &testbed.Log{}
		end, ran := make(chan struct{}), make(chan struct{}, 10)
		b.serve(t, b.config(), b.perKey(soon, asynqlock.WithLogger(log.Logger()))(asynq.HandlerFunc(
			func(ctx context.Context, task *asynq.Task) error {
				ran <- struct{}{}
				if task.Type() == "obeys" {
					<-ctx.Done()
					return ctx.Err()
				}
				<-end
				return nil
			})))
		b.enqueue(t, asynq.NewTask("obeys", []byte(payload)), asynq.Timeout(time.Second), asynq.MaxRetry(0))
		get(t, ran)
		time.Sleep(2500 * time.Millisecond)
		require.NotContains(t, log.String(), "still runs")
		for n := range 3 {
			b.enqueue(t, asynq.NewTask("deaf", fmt.Appendf(nil, `{"user_id":%d}`, n)), asynq.Timeout(time.Second), asynq.MaxRetry(1))
			get(t, ran)
		}
		redistest.Eventually(t, func() bool { return strings.Contains(log.String(), "still runs") }, "it is logged while it runs")
		time.Sleep(500 * time.Millisecond)
		close(end)
		require.Equal(t, 1, strings.Count(log.String(), "a handler still runs although its ctx has ended"), log.String())
		require.Contains(t, log.String(), "type=deaf")
		requireNoSecret(t, log.String())
	})
}

func TestShutdown_MidHandler(t *testing.T) {
	t.Parallel()
	for name, maxRetry := range map[string]int{"first attempt": 3, "last attempt": 0} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				var only alone
				started, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
				cfg := b.config()
				cfg.ShutdownTimeout = 50 * time.Millisecond
				stop := b.serve(t, cfg, asynqlock.PerKey(b.newLocker(t).Guard(core.RejectConflicts), walletKey, soon)(does(func(context.Context, *asynq.Task) {
					defer only.enter(t)()
					close(started)
					<-end
				})))
				id := b.enqueue(t, task(), asynq.MaxRetry(maxRetry))
				get(t, started)
				stop()
				require.Equal(t, asynq.TaskStatePending, b.info(t, id).State, "asynq put it back, though its handler runs")

				b.serve(t, b.config(), b.perKey(soon)(does(func(context.Context, *asynq.Task) {
					defer only.enter(t)()
					close(done)
				})))
				b.untilConflicts(t, 5)
				require.EqualValues(t, 1, only.inside.Load())
				close(end)
				get(t, done)
				redistest.Eventually(t, func() bool { return only.runs.Load() == 2 }, "both have ended")
				b.requireArchived(t, 0)
			})
		})
	}
}

func TestHandler_ALostLeaseEndsItsContext(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]error{"success": nil, "error": errOops} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				cfg := b.config()
				cfg.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
				reported := make(chan error, 1)
				cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { reported <- err })
				causes := make(chan error, 1)
				b.serve(t, cfg, b.perKey()(asynq.HandlerFunc(
					func(ctx context.Context, _ *asynq.Task) error {
						lease, _ := core.LeaseFrom(ctx)
						_, err := b.rival.ForceRelease(context.WithoutCancel(ctx), key, lease.Fence())
						assert.NoError(t, err)
						<-ctx.Done()
						causes <- context.Cause(ctx)
						return result
					})))
				id := b.enqueue(t, task(), asynq.MaxRetry(1))
				require.ErrorIs(t, get(t, causes), core.ErrLeaseLost)
				err := get(t, reported)
				require.ErrorIs(t, err, core.ErrLeaseLost)
				require.NotErrorIs(t, err, asynqlock.ErrDeferred)
				if result != nil {
					require.ErrorIs(t, err, result)
				}
				info := b.untilState(t, id, asynq.TaskStateRetry)
				require.Equal(t, 1, info.Retried, "it ran, so it is a failure")
				require.Contains(t, info.LastErr, "its outcome is unknown")
				requireNoSecret(t, info.LastErr)
			})
		})
	}
}

func TestRefusal_FurtherInIsNoFailureOfALostLease(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.hold(t, key)
		inner := b.perKey(asynqlock.WithDelay(time.Hour, time.Hour))(mustNotRun(t))
		b.serve(t, b.config(), asynqlock.PerKey(b.locker.Guard(core.RejectConflicts), asynqlock.Type("type:"))(asynq.HandlerFunc(
			func(ctx context.Context, task *asynq.Task) error {
				err := inner.ProcessTask(ctx, task)
				lease, _ := core.LeaseFrom(ctx)
				_, forced := b.rival.ForceRelease(context.WithoutCancel(ctx), lease.Key(), lease.Fence())
				assert.NoError(t, forced)
				<-ctx.Done()
				return err
			})))
		info := b.untilState(t, b.enqueue(t, task(), asynq.MaxRetry(1)), asynq.TaskStateRetry)
		require.Zero(t, info.Retried)
		require.Contains(t, info.LastErr, "(waiting since ")
		require.NotContains(t, info.LastErr, "outcome", "nothing ran")
	})
}
