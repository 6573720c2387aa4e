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

func TestConflict_OnTheLastAttemptKeepsThatAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
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
				return errOops
			})))
		id := b.enqueue(t, task(), asynq.MaxRetry(1))
		lease := get(t, rival)
		b.untilConflicts(t, 5)
		b.requireArchived(t, 0)
		require.NoError(t, lease.Release(context.Background()))

		archived := b.archived(t)
		require.EqualValues(t, 2, runs.Load(), "once, and one retry")
		require.Equal(t, "oops", archived.LastErr)
		require.True(t, strings.HasPrefix(archived.ID, id+"~"), archived.ID)
		require.Contains(t, archived.Headers[originHeader], `"retried":1,"max_retry":1`)
		require.Empty(t, b.all(t))
	})
}

// renamed is what middleware in front makes of a deferral.
type renamed struct{ error }

func (renamed) Error() string   { return "later" }
func (r renamed) Unwrap() error { return r.error }

func rename(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := next.ProcessTask(ctx, task)
		if errors.Is(err, asynqlock.ErrDeferred) {
			return renamed{err}
		}
		return err
	})
}

func TestConflict_PastItsAgeIsArchivedWithItsCause(t *testing.T) {
	for name, c := range map[string]struct {
		maxRetry  int
		renames   bool // middleware in front may say what it likes of a deferral
		elsewhere bool // Configure was given another Redis, which keeps the task in its worker
	}{
		"cloned": {}, "retried": {maxRetry: 5}, "renamed": {maxRetry: 3, renames: true}, "elsewhere": {elsewhere: true},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, b *bench) {
				release := b.hold(t, key)
				cfg := b.config()
				reported := make(chan error, 10)
				cfg.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { reported <- err })
				ran := make(chan struct{}, 10)
				handler := b.perKey(soon, asynqlock.WithMaxAge(time.Second))(tells(ran))
				if c.renames {
					handler = rename(handler)
				}
				if c.elsewhere {
					b.serveElsewhere(t, cfg, redistest.Another(t).Client(t), handler)
				} else {
					b.serve(t, cfg, handler)
				}
				start := time.Now()
				b.enqueue(t, task(), asynq.MaxRetry(c.maxRetry))
				err := get(t, reported)
				require.GreaterOrEqual(t, time.Since(start), time.Second)
				require.ErrorIs(t, err, asynqlock.ErrTooOld)
				require.ErrorIs(t, err, core.ErrConflict)
				require.Greater(t, b.conflicts.n.Load(), int64(1))
				archived := b.archived(t)
				require.Regexp(t, `^asynqlock: task was deferred for too long: it has waited since .*: the key is held$`, archived.LastErr)
				require.Zero(t, archived.Retried)
				require.Empty(t, b.all(t), "no clone goes on")

				// Run again by hand it waits anew, and runs.
				seen := b.conflicts.n.Load()
				require.NoError(t, b.inspector.RunTask(b.queue, archived.ID))
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
	virtually(t, func(t *testing.T, b *bench) {
		release := b.hold(t, key)
		ran := make(chan string, 10)
		b.serve(t, b.config(), b.perKey(soon)(does(func(_ context.Context, task *asynq.Task) { ran <- string(task.Payload()) })))
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

// asynq counts a task that is still waiting at the end of its Timeout as failed.
func TestPolicy_AWaitEndsBeforeTheTasksTimeout(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
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

func TestPolicy_TheTaskRunsAfterTheRelease(t *testing.T) {
	for name, c := range map[string]struct {
		policy    core.ConflictPolicy
		conflicts int64
		state     asynq.TaskState // before the release, if it stays one
	}{
		"waits in the worker": {retry.Policy{MaxWait: time.Minute}, 1, asynq.TaskStateActive},
		"parks":               {parker{}, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				release := b.hold(t, key)
				ran := make(chan struct{}, 1)
				b.serve(t, b.config(), asynqlock.PerKey(b.locker.Guard(c.policy), walletKey, soon)(tells(ran)))
				id := b.enqueue(t, task(), asynq.MaxRetry(0))
				b.untilConflicts(t, c.conflicts)
				if c.state != 0 {
					require.Equal(t, c.state, b.info(t, id).State)
				}
				release()
				get(t, ran)
			})
		})
	}
}

func TestLockRedisOutOfReach_SpendsNoAttempt(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
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

// What a policy, a key function or a handler says spends an attempt, also if it says the same as perkey would. A Locker that
// is closed spends none.
func TestTask_WhichErrorsAreItsFailures(t *testing.T) {
	down := errors.New("the directory is down")
	for name, c := range map[string]struct {
		guarded           func(b *bench) asynq.Handler
		maxRetry, retried int
		state             asynq.TaskState
		says              string
	}{
		"of the policy": {func(b *bench) asynq.Handler {
			return asynqlock.PerKey(b.locker.Guard(breaker{}), walletKey)(mustNotRun(t))
		}, 1, 1, asynq.TaskStateArchived, "the policy is broken"},
		"of the key function": {func(b *bench) asynq.Handler {
			fails := asynqlock.Func(func(context.Context, *asynq.Task) (string, error) { return "", down })
			return asynqlock.PerKey(b.locker.Guard(core.RejectConflicts), fails)(mustNotRun(t))
		}, 2, 2, asynq.TaskStateArchived, down.Error()},
		"a conflict of the handler's own": {func(b *bench) asynq.Handler {
			return b.perKey(soon)(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				_, err := b.locker.TryAcquire(ctx, "else")
				return err
			}))
		}, 2, 2, asynq.TaskStateArchived, "key is held"},
		"a lease that the handler lost": {func(b *bench) asynq.Handler {
			return b.perKey(soon)(fails(fmt.Errorf("no use: %w: %w", core.ErrLeaseLost, asynq.SkipRetry)))
		}, 1, 0, asynq.TaskStateArchived, "no use"},
		"a Locker that is closed": {func(b *bench) asynq.Handler {
			require.NoError(t, b.locker.Close())
			return b.perKey(asynqlock.WithLogger((&testbed.Log{}).Logger()))(mustNotRun(t))
		}, 3, 0, asynq.TaskStateRetry, "locker closed"},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				b.hold(t, "else")
				if name == "of the policy" {
					b.hold(t, key)
				}
				b.serve(t, b.config(), c.guarded(b))
				info := b.untilState(t, b.enqueue(t, task(), asynq.MaxRetry(c.maxRetry)), c.state)
				require.Equal(t, c.retried, info.Retried)
				require.Contains(t, info.LastErr, c.says)
				require.NotContains(t, info.LastErr, "outcome is unknown")
				requireNoSecret(t, info.LastErr)
			})
		})
	}
}

// breaker is a policy that fails.
type breaker struct{}

func (breaker) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Reject(), errors.New("the policy is broken")
}

func TestGuards_InsideOneAnother(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		release := b.hold(t, key)
		ran := make(chan string, 10)
		outer := asynqlock.PerKey(b.locker.Guard(core.RejectConflicts, core.Counted(2)), asynqlock.Type("type:"), soon)
		b.serve(t, b.config(), outer(b.perKey(soon)(does(func(_ context.Context, task *asynq.Task) { ran <- string(task.Payload()) }))))
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
