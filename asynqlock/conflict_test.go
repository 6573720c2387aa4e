package asynqlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

func TestConflict_AHundredLeaveRetriedAtZero(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		release := b.hold(t, key)
		ran := make(chan int, 10)
		b.serve(t, b.config(), b.perKey(soon)(asynq.HandlerFunc(
			func(ctx context.Context, _ *asynq.Task) error {
				retried, _ := asynq.GetRetryCount(ctx)
				ran <- retried
				return nil
			})))
		id := b.enqueue(t, task(), asynq.MaxRetry(3), asynq.Retention(time.Minute))
		b.untilConflicts(t, 100)
		var last string
		redistest.Eventually(t, func() bool {
			info := b.info(t, id)
			assert.Zero(t, info.Retried)
			last = info.LastErr
			return strings.Contains(last, " (waiting since ")
		}, "the wait is stored")
		require.Contains(t, last, "asynqlock: not run: the key is held")
		requireNoSecret(t, last)
		release()
		require.Zero(t, get(t, ran))
		b.untilState(t, id, asynq.TaskStateCompleted)
		b.requireArchived(t, 0)
	})
}

func TestConflict_ArchivesNoTaskWithMaxRetryZero(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		release := b.hold(t, key)
		origins := make(chan asynqlock.Origin, 10)
		b.serve(t, b.config(), b.perKey(soon)(asynq.HandlerFunc(
			func(ctx context.Context, task *asynq.Task) error {
				origin, _ := asynqlock.OriginOf(ctx, task)
				origins <- origin
				return nil
			})))
		before := time.Now()
		id := b.enqueue(t, task(), asynq.MaxRetry(0))
		b.untilConflicts(t, 10)
		b.requireArchived(t, 0)
		release()
		origin := get(t, origins)
		require.Equal(t, id, origin.ID)
		require.GreaterOrEqual(t, origin.Clone, 5)
		require.WithinRange(t, origin.Since, before.Add(-time.Second), time.Now())
		redistest.Eventually(t, func() bool { return len(b.all(t)) == 0 }, "the queue is empty")
		require.Empty(t, origins, "it ran once")
		b.requireArchived(t, 0)
		b.requireFree(t, key)
	})
}

func TestConflict_OnTheLastAttemptKeepsThatAttempt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		oops := errors.New("oops")
		rival := make(chan *core.Lease, 1)
		var runs atomic.Int64
		b.serve(t, b.config(), b.perKey(soon)(asynq.HandlerFunc(
			func(context.Context, *asynq.Task) error {
				if runs.Add(1) == 1 {
					// The rival stands in line for the key before the first failure.
					go func() {
						lease, err := b.rival.Acquire(context.Background(), key)
						assert.NoError(t, err)
						rival <- lease
					}()
					redistest.Eventually(t, func() bool {
						info, err := b.rival.Inspect(context.Background(), key)
						return err == nil && len(info.Waiters) == 1
					}, "the rival waits")
				}
				return oops
			})))
		id := b.enqueue(t, task(), asynq.MaxRetry(1))
		lease := get(t, rival)
		b.untilConflicts(t, 5)
		b.requireArchived(t, 0)
		require.NoError(t, lease.Release(context.Background()))

		var archived []*asynq.TaskInfo
		redistest.Eventually(t, func() bool {
			var err error
			archived, err = b.inspector.ListArchivedTasks(b.queue)
			return err == nil && len(archived) == 1
		}, "the task is archived")
		require.EqualValues(t, 2, runs.Load(), "once, and one retry")
		require.Equal(t, "oops", archived[0].LastErr)
		require.True(t, strings.HasPrefix(archived[0].ID, id+"~"), archived[0].ID)
		require.Contains(t, archived[0].Headers["Perkey-Origin"], `"retried":1,"max_retry":1`)
		require.Empty(t, b.all(t))
	})
}

func TestConflict_PastItsAgeIsArchivedWithItsCause(t *testing.T) {
	for _, maxRetry := range []int{0, 5} {
		t.Run(fmt.Sprint("MaxRetry ", maxRetry), func(t *testing.T) {
			virtually(t, func(t *testing.T, env *redistest.Env) {
				b := setup(t, env)
				release := b.hold(t, key)
				cfg := b.config()
				reported := make(chan error, 10)
				cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { reported <- err })
				ran := make(chan struct{}, 10)
				b.serve(t, cfg, b.perKey(soon, asynqlock.WithMaxAge(time.Second))(tells(ran)))
				start := time.Now()
				b.enqueue(t, task(), asynq.MaxRetry(maxRetry))
				err := get(t, reported)
				require.GreaterOrEqual(t, time.Since(start), time.Second)
				require.ErrorIs(t, err, asynqlock.ErrTooOld)
				require.ErrorIs(t, err, core.ErrConflict)
				require.Greater(t, b.conflicts.n.Load(), int64(1))
				var archived []*asynq.TaskInfo
				redistest.Eventually(t, func() bool {
					var err error
					archived, err = b.inspector.ListArchivedTasks(b.queue)
					return err == nil && len(archived) == 1
				}, "the task is archived")
				require.Regexp(t, `^asynqlock: task was deferred for too long: it has waited since .*: the key is held$`, archived[0].LastErr)
				require.Zero(t, archived[0].Retried)
				require.Empty(t, b.all(t), "no clone goes on")

				// Run again by hand it waits anew, and runs.
				seen := b.conflicts.n.Load()
				require.NoError(t, b.inspector.RunTask(b.queue, archived[0].ID))
				b.untilConflicts(t, seen+3)
				release()
				get(t, ran)
				require.Empty(t, reported)
			})
		})
	}
}

// A Timeout bounds a run, and no deferral; a Deadline both.
func TestTimeout_DoesNotBoundTheWaitAndDeadlineDoes(t *testing.T) {
	virtually(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		release := b.hold(t, key)
		ran := make(chan string, 10)
		b.serve(t, b.config(), b.perKey(soon)(asynq.HandlerFunc(
			func(ctx context.Context, task *asynq.Task) error {
				ran <- string(task.Payload())
				return nil
			})))
		const timeout = 3 * time.Second
		began := time.Now()
		for retries := range 2 {
			b.enqueue(t, numbered(retries), asynq.MaxRetry(retries), asynq.Timeout(timeout))
			b.enqueue(t, numbered(10), asynq.MaxRetry(retries), asynq.Deadline(time.Now().Add(2*time.Second)))
		}
		overdue := func(info *asynq.TaskInfo) bool { return bytes.Equal(info.Payload, numbered(10).Payload()) }
		redistest.Eventually(t, func() bool {
			archived, err := b.inspector.ListArchivedTasks(b.queue)
			require.NoError(t, err)
			for _, info := range archived {
				require.True(t, overdue(info))
				require.Equal(t, context.DeadlineExceeded.Error(), info.LastErr)
			}
			return len(archived) >= 2 && !slices.ContainsFunc(b.all(t), overdue) // more if a Deadline came while a task was cloned
		}, "those with a Deadline are archived")
		time.Sleep(time.Until(began.Add(timeout + time.Second)))
		require.Empty(t, ran)
		release()
		for range 2 {
			require.NotContains(t, get(t, ran), "10")
		}
	})
}

func TestPolicy_AShortWaitInTheWorker(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		release := b.hold(t, key)
		ran := make(chan int, 1)
		guard := b.locker.Guard(retry.Policy{MaxWait: time.Minute})
		b.serve(t, b.config(), asynqlock.PerKey(guard, walletKey)(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			ran <- 1
			return nil
		})))
		id := b.enqueue(t, task(), asynq.MaxRetry(0))
		b.untilConflicts(t, 1)
		require.Equal(t, asynq.TaskStateActive, b.info(t, id).State)
		release()
		get(t, ran)
	})
}

// asynq counts a task that is still waiting at the end of its Timeout as failed.
func TestPolicy_AWaitEndsBeforeTheTasksTimeout(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, key)
		guard := b.locker.Guard(retry.Policy{MaxWait: time.Hour})
		b.serve(t, b.config(), asynqlock.PerKey(guard, walletKey)(mustNotRun(t)))
		var ids []string
		for range 4 {
			ids = append(ids, b.enqueue(t, task(), asynq.MaxRetry(3), asynq.Timeout(10*time.Second)))
		}
		for _, id := range ids {
			info := b.untilState(t, id, asynq.TaskStateRetry)
			require.Zero(t, info.Retried, info.LastErr)
			require.Contains(t, info.LastErr, "not run: the key is held")
		}
	})
}

// parker stores nothing, but says it did.
type parker struct{}

func (parker) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Deferred(core.Ticket{ID: "1", Queue: "q"}), nil
}

func TestPolicy_ThatParksIsAConflict(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		release := b.hold(t, key)
		ran := make(chan struct{}, 1)
		b.serve(t, b.config(), asynqlock.PerKey(b.locker.Guard(parker{}), walletKey, soon)(tells(ran)))
		b.enqueue(t, task(), asynq.MaxRetry(0))
		b.untilConflicts(t, 3)
		release()
		get(t, ran)
	})
}

func TestLockRedisOutOfReach_SpendsNoAttempt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		locks, err := embedded.Start() // not the Redis of the queues
		require.NoError(t, err)
		t.Cleanup(locks.Close)
		rdb := redistest.Client(t, redisAt(locks.Addr()))
		locker := testbed.NewLocker(t, rdb)
		log := &testbed.Log{}
		ran := make(chan struct{}, 10)
		b.serve(t, b.config(), asynqlock.PerKey(locker.Guard(core.RejectConflicts), walletKey, soon, asynqlock.WithLogger(log.Logger()))(tells(ran)))
		locks.SetError("LOADING Redis is loading the dataset in memory")
		b.enqueue(t, task(), asynq.MaxRetry(0))
		id := b.enqueue(t, asynq.NewTask(kind, []byte(`{"user_id":"other-`+secret+`"}`)), asynq.MaxRetry(1))
		redistest.Eventually(t, func() bool {
			info := b.info(t, id)
			return info != nil && strings.Contains(info.LastErr, "(waiting since")
		}, "it waits")
		info := b.info(t, id)
		require.Zero(t, info.Retried)
		require.Contains(t, info.LastErr, "redis unavailable")
		requireNoSecret(t, info.LastErr)
		b.requireArchived(t, 0)
		require.Empty(t, ran)
		locks.SetError("")
		get(t, ran)
		get(t, ran)
		require.Contains(t, log.String(), "task not run")
		requireNoSecret(t, log.String())
	})
}

func TestLocker_ThatIsClosedSpendsNoAttempt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		log := &testbed.Log{}
		require.NoError(t, b.locker.Close())
		b.serve(t, b.config(), b.perKey(asynqlock.WithLogger(log.Logger()))(mustNotRun(t)))
		id := b.enqueue(t, task(), asynq.MaxRetry(3))
		info := b.untilState(t, id, asynq.TaskStateRetry)
		require.Zero(t, info.Retried)
		require.Contains(t, info.LastErr, "locker closed")
		requireNoSecret(t, info.LastErr)
	})
}

// breaker is a policy that fails.
type breaker struct{}

func (breaker) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Reject(), errors.New("the policy is broken")
}

func TestPolicy_AnErrorIsAFailure(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, key)
		b.serve(t, b.config(), asynqlock.PerKey(b.locker.Guard(breaker{}), walletKey)(mustNotRun(t)))
		id := b.enqueue(t, task(), asynq.MaxRetry(1))
		info := b.untilState(t, id, asynq.TaskStateArchived)
		require.Equal(t, 1, info.Retried)
		require.Contains(t, info.LastErr, "the policy is broken")
		requireNoSecret(t, info.LastErr)
	})
}

func TestGuards_InsideOneAnother(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		release := b.hold(t, key)
		ran := make(chan string, 10)
		mux := asynq.NewServeMux()
		mux.Use(
			asynqlock.PerKey(b.locker.Guard(core.RejectConflicts, core.Counted(2)), asynqlock.Type("type:"), soon),
			b.perKey(soon),
		)
		mux.HandleFunc(kind, func(ctx context.Context, task *asynq.Task) error {
			ran <- string(task.Payload())
			return nil
		})
		b.serve(t, b.config(), mux)
		b.enqueue(t, task(), asynq.MaxRetry(0))
		b.untilConflicts(t, 5)
		// A task that is refused further in gives its place back.
		other := `{"user_id":"other"}`
		b.enqueue(t, asynq.NewTask(kind, []byte(other)), asynq.MaxRetry(0))
		require.Equal(t, other, get(t, ran))
		release()
		require.JSONEq(t, payload, get(t, ran))
		b.requireArchived(t, 0)
	})
}

func TestHandler_AnInnerConflictIsItsOwnFailure(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, "else")
		b.serve(t, b.config(), b.perKey(soon)(asynq.HandlerFunc(
			func(ctx context.Context, _ *asynq.Task) error {
				_, err := b.locker.TryAcquire(ctx, "else")
				return err
			})))
		id := b.enqueue(t, task(), asynq.MaxRetry(2))
		require.Equal(t, 2, b.untilState(t, id, asynq.TaskStateArchived).Retried)
	})
}

// Middleware in front may say what it likes of a deferral, and its age is known still.
func TestAge_IsKnownWhateverMiddlewareInFrontSays(t *testing.T) {
	virtually(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, key)
		mux := asynq.NewServeMux()
		mux.Use(func(next asynq.Handler) asynq.Handler {
			return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
				if err := next.ProcessTask(ctx, task); errors.Is(err, asynqlock.ErrDeferred) {
					return renamed{err}
				} else if err != nil {
					return err
				}
				return nil
			})
		}, b.perKey(soon, asynqlock.WithMaxAge(time.Second)))
		mux.Handle(kind, mustNotRun(t))
		b.serve(t, b.config(), mux)
		id := b.enqueue(t, task(), asynq.MaxRetry(3))
		require.Contains(t, b.untilState(t, id, asynq.TaskStateArchived).LastErr, "deferred for too long")
	})
}

type renamed struct{ error }

func (renamed) Error() string   { return "later" }
func (r renamed) Unwrap() error { return r.error }

// What a handler says of a lease of its own is no loss of the task's.
func TestHandler_ALeaseThatItLostIsItsOwnFailure(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.serve(t, b.config(), b.perKey(soon)(asynq.HandlerFunc(
			func(context.Context, *asynq.Task) error {
				return fmt.Errorf("no use: %w: %w", core.ErrLeaseLost, asynq.SkipRetry)
			})))
		id := b.enqueue(t, task(), asynq.MaxRetry(1))
		info := b.untilState(t, id, asynq.TaskStateArchived)
		require.Zero(t, info.Retried, "SkipRetry is honored")
		require.NotContains(t, info.LastErr, "outcome is unknown")
	})
}
