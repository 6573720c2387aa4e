package asynqlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// late brings refused tasks back by themselves only after the test.
var late = asynqlock.WithDelay(time.Hour, time.Hour)

// numbered is a task of the key that the tests fight for, with a number.
func numbered(n int) *asynq.Task {
	return asynq.NewTask(kind, fmt.Appendf(nil, `{"user_id":"`+secret+`","n":%d}`, n))
}

// listed waits until so many tasks wait for the key.
func (b *bench) listed(t *testing.T, n int) (tasks []asynqlock.WaitingTask) {
	t.Helper()
	redistest.Eventually(t, func() bool {
		var all int
		var err error
		tasks, all, err = asynqlock.Waiting(t.Context(), b.rdb, b.locker, key, 1000)
		require.NoError(t, err)
		require.Len(t, tasks, all)
		return all == n
	}, fmt.Sprintf("%d tasks wait", n))
	return tasks
}

// Whoever holds the key, and whatever the policy: its release wakes the task that has waited for longest, and no other, and each run's
// end the next, over several servers. A handler's panic or failure ends a run as any other end does.
func TestWake_DeferredTasksRunInOrderWhenTheKeyIsReleased(t *testing.T) {
	waits := retry.Policy{MaxWait: 20 * time.Millisecond}
	for name, c := range map[string]struct {
		policy   core.ConflictPolicy
		maxRetry int
		fails    bool
	}{
		"rejects": {}, "rejects, fails": {nil, 5, true}, "waits": {waits, 0, false}, "waits, retried": {waits, 5, false},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *bench) {
				release := b.hold(t, key)
				const servers, tasks = 3, 10
				ran := make(chan string, tasks)
				var inside alone
				cfg := b.config()
				cfg.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
				for range servers {
					b.serve(t, cfg, asynqlock.PerKey(b.subscribed(t, b.newLocker(t)).Guard(c.policy), walletKey, late)(asynq.HandlerFunc(
						func(_ context.Context, task *asynq.Task) error {
							defer inside.enter(t)()
							ran <- string(task.Payload())
							if c.fails && inside.runs.Load()%2 == 0 {
								panic("oops")
							} else if c.fails {
								return errOops
							}
							return nil
						})))
				}
				var want []string
				for n := range tasks {
					task := numbered(n)
					want = append(want, string(task.Payload()))
					b.enqueue(t, task, asynq.MaxRetry(c.maxRetry))
					b.listed(t, n+1)
				}
				require.Empty(t, ran)
				refused := b.conflicts.n.Load()
				release()
				for _, payload := range want {
					require.Equal(t, payload, get(t, ran))
				}
				require.Empty(t, b.listed(t, 0))
				b.requireArchived(t, 0)
				if c.policy == nil {
					require.LessOrEqual(t, b.conflicts.n.Load()-refused, int64(servers), "hardly any comes in vain")
				}
			})
		})
	}
}

// What is done, was archived or deleted is not run again by a release.
func TestWake_WhatIsNotPutAsideIsNotRun(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.subscribed(t, b.locker)
		release := b.hold(t, key)
		ran := make(chan string, 10)
		stop := b.serve(t, b.config(), b.perKey(late)(tellsID(ran)))
		var ids []string
		for n := range 4 {
			ids = append(ids, b.enqueue(t, numbered(n), asynq.MaxRetry(3), asynq.Retention(time.Hour)))
			b.listed(t, n+1)
			b.untilState(t, ids[n], asynq.TaskStateRetry)
		}
		stop()
		require.NoError(t, b.inspector.ArchiveTask(b.queue, ids[0]))
		require.NoError(t, b.inspector.DeleteTask(b.queue, ids[1]))
		// The third runs without the guard, and is done.
		require.NoError(t, b.inspector.RunTask(b.queue, ids[2]))
		done := b.start(t, b.config(), fails(nil))
		b.untilState(t, ids[2], asynq.TaskStateCompleted)
		done()
		b.listed(t, 4)
		b.serve(t, b.config(), b.perKey(late)(tellsID(ran)))
		last := b.enqueue(t, numbered(9), asynq.MaxRetry(3))
		b.listed(t, 5)
		release()
		require.Equal(t, ids[3], get(t, ran))
		require.Equal(t, last, get(t, ran))
		require.Equal(t, asynq.TaskStateArchived, b.info(t, ids[0]).State)
		require.Equal(t, asynq.TaskStateCompleted, b.info(t, ids[2]).State)
		require.Empty(t, b.listed(t, 0))
	})
}

// A Redis of the queues that hangs holds up the list, and not the workers.
func TestWake_AWorkerDoesNotWaitForARedisThatHangs(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		rdb := b.env.Client(t)
		answers := make(chan struct{})
		defer close(answers)
		rdb.AddHook(hook(func(next redis.ProcessHook) redis.ProcessHook {
			return func(ctx context.Context, cmd redis.Cmder) error {
				<-answers // whatever the ctx
				return next(ctx, cmd)
			}
		}))
		guarded := b.perKey()(fails(nil))
		done := make(chan error, 1)
		b.serveElsewhere(t, b.config(), rdb, asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := guarded.ProcessTask(ctx, task)
			done <- err
			return err
		}))
		b.enqueue(t, task())
		require.NoError(t, get(t, done))
	})
}

// A guard for n at a time keeps n at work.
func TestWake_NAtOnce(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		const tasks, most = 20, 3
		var inside, highest atomic.Int64
		started, end := make(chan struct{}, tasks), make(chan struct{}, tasks)
		b.serve(t, b.config(), asynqlock.PerKey(b.locker.Guard(core.RejectConflicts, core.Counted(most)), walletKey, late)(does(func(context.Context, *asynq.Task) {
			now := inside.Add(1)
			highest.Store(max(highest.Load(), now))
			started <- struct{}{}
			<-end
			inside.Add(-1)
		})))
		for n := range tasks {
			b.enqueue(t, numbered(n))
		}
		b.listed(t, tasks-most)
		for n := range tasks {
			get(t, started)
			if n%most == most-1 || n == tasks-1 {
				for range n%most + 1 {
					end <- struct{}{}
				}
			}
		}
		require.EqualValues(t, most, highest.Load())
		redistest.Eventually(t, func() bool { return inside.Load() == 0 }, "all ended")
	})
}

// The wait begins anew with each run, whatever ends that, and no text of a handler's is taken for it.
func TestWithMaxAge_DoesNotCountFromBeforeARun(t *testing.T) {
	virtually(t, func(t *testing.T, b *bench) {
		b.subscribed(t, b.locker)
		release := b.hold(t, key)
		ran := make(chan struct{}, 10)
		end := make(chan struct{})
		handler := func(b *bench) asynq.Handler {
			return b.perKey(soon, asynqlock.WithMaxAge(3*time.Second))(asynq.HandlerFunc(
				func(context.Context, *asynq.Task) error {
					ran <- struct{}{}
					<-end
					return fmt.Errorf("asynqlock: not run: the key is held (refusal 17 since 2020-11-21T12:00:00.005Z) (waiting since 2020-11-21T12:00:00.005Z)")
				}))
		}
		cfg := b.config()
		cfg.ShutdownTimeout = time.Millisecond
		stop := b.serve(t, cfg, handler(b))
		id := b.enqueue(t, task(), asynq.MaxRetry(3))
		first := b.listed(t, 1)[0].Since
		time.Sleep(time.Second)
		require.Equal(t, first, b.listed(t, 1)[0].Since, "refused again and again")
		release()
		get(t, ran)
		b.listed(t, 0)
		stop() // the task goes back to its queue, and its last error is that of the wait before
		require.Contains(t, b.info(t, id).LastErr, "waiting since")
		close(end)
		var again func()
		redistest.Eventually(t, func() bool {
			lease, err := b.rival.TryAcquire(t.Context(), key)
			if err == nil {
				again = func() { _ = lease.Release(context.Background()) }
			}
			return err == nil
		}, "the key is free")
		time.Sleep(time.Until(first.Add(3100 * time.Millisecond)))
		b.serve(t, b.config(), handler(b))
		require.Greater(t, b.listed(t, 1)[0].Since, first)
		b.requireArchived(t, 0)
		again()
		get(t, ran)
	})
}

// The clocks of servers differ: they neither order the tasks that wait nor make them old.
func TestWithMaxAge_CountsByTheClockOfRedis(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(server.Close)
	now := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	server.SetTime(now)
	b := setup(t, &redistest.Env{Addr: server.Addr(), Prefix: "behind"})
	b.hold(t, key)
	b.serve(t, b.config(), b.perKey(late, asynqlock.WithMaxAge(time.Minute))(mustNotRun(t)))
	id := b.enqueue(t, task(), asynq.MaxRetry(3))
	b.untilState(t, id, asynq.TaskStateRetry)
	require.WithinDuration(t, now, b.listed(t, 1)[0].Since, time.Minute)
}

func TestWaiting_ListsTheTasksOfAKey(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.subscribed(t, b.locker)
		b.hold(t, key)
		b.serve(t, b.config(), b.perKey(late)(mustNotRun(t)))
		var ids []string
		before := time.Now()
		for n := range 5 {
			ids = append(ids, b.enqueue(t, numbered(n), asynq.MaxRetry(3)))
			b.listed(t, n+1)
		}
		tasks, all, err := asynqlock.Waiting(t.Context(), b.rdb, b.locker, key, 2)
		require.NoError(t, err)
		require.Equal(t, 5, all)
		require.Len(t, tasks, 2)
		for n, task := range tasks {
			assert.Equal(t, ids[n], task.ID)
			assert.Equal(t, b.queue, task.Queue)
			assert.False(t, task.Woken)
			assert.WithinRange(t, task.Since, before.Add(-time.Second), time.Now().Add(time.Second))
		}
		require.Greater(t, b.rdb.PTTL(t.Context(), b.queue+":asynq{}:"+key).Val(), 23*time.Hour)
		for _, most := range []int{0, -1} {
			tasks, all, err = asynqlock.Waiting(t.Context(), b.rdb, b.locker, key, most)
			require.NoError(t, err)
			require.Equal(t, 5, all)
			require.Empty(t, tasks)
		}
		_, all, err = asynqlock.Waiting(t.Context(), b.rdb, b.locker, "none", 2)
		require.NoError(t, err)
		require.Zero(t, all)
	})
}

// A task that waits for its key for a moment, and leaves, is no release: nothing is woken by it, again and again.
func TestWake_NobodyIsWokenWhileTheKeyIsHeld(t *testing.T) {
	for name, policy := range map[string]core.ConflictPolicy{"rejects": nil, "waits": retry.Policy{MaxWait: 5 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, b *bench) {
				b.hold(t, key)
				b.serve(t, b.config(), asynqlock.PerKey(b.locker.Guard(policy), walletKey, late)(mustNotRun(t)))
				for n := range 3 {
					b.enqueue(t, numbered(n), asynq.MaxRetry(0))
				}
				b.listed(t, 3)
				time.Sleep(500 * time.Millisecond) // the subscription has everybody look once
				before := b.conflicts.n.Load()
				time.Sleep(time.Second)
				require.Equal(t, before, b.conflicts.n.Load())
			})
		})
	}
}

// A task that asynq is slow to put aside after its refusal is woken nevertheless, whoever saw the release.
func TestWake_ATaskThatIsSlowToBePutAside(t *testing.T) {
	each(t, func(t *testing.T, b *bench) {
		b.rdb.AddHook(hook(slowRetry))
		const keys = 10
		ran, end := make(chan struct{}, 2*keys), make(chan struct{})
		cfg := b.config()
		cfg.Concurrency = 2 * keys
		b.serve(t, cfg, b.perKey(late)(does(func(context.Context, *asynq.Task) {
			ran <- struct{}{}
			<-end
		})))
		for range 2 {
			for n := range keys {
				b.enqueue(t, asynq.NewTask(kind, fmt.Appendf(nil, `{"user_id":%d}`, n)))
			}
		}
		for range keys {
			get(t, ran)
		}
		redistest.Eventually(t, func() bool {
			waiting := 0
			for n := range keys {
				_, all, err := asynqlock.Waiting(t.Context(), b.rdb, b.locker, fmt.Sprint("wallet:", n), 1)
				require.NoError(t, err)
				waiting += all
			}
			return waiting == keys
		}, "the others were refused")
		close(end)
		for range keys {
			get(t, ran)
		}
	})
}

// No release tells of a key that is free again since a MinHold is over, or the lease of a holder that died.
func TestWake_WhenALeaseIsOver(t *testing.T) {
	const hold = 700 * time.Millisecond
	for name, opts := range map[string][]core.AcquireOption{"MinHold": {core.MinHold(hold)}, "died": nil} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, b *bench) {
				b.subscribed(t, b.locker)
				began := time.Now()
				died := opts == nil
				if died {
					testbed.Take(t, b.rival, key, core.FixedLease(hold))
				}
				const tasks = 4
				runs := make(chan time.Time, tasks)
				b.serve(t, b.config(), asynqlock.PerKey(b.locker.Guard(core.RejectConflicts, opts...), walletKey, late)(does(func(context.Context, *asynq.Task) {
					runs <- time.Now()
				})))
				for n := range tasks {
					b.enqueue(t, numbered(n), asynq.MaxRetry(n%2))
				}
				last := began
				for n := range tasks {
					run := get(t, runs)
					if died == (n == 0) {
						require.GreaterOrEqual(t, run.Sub(last), hold-20*time.Millisecond)
					}
					last = run
				}
				b.listed(t, 0)
				b.requireArchived(t, 0)
			})
		})
	}
}

// slowRetry delays asynq's putting aside of a task.
func slowRetry(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		var fromActive, toRetry bool
		for _, arg := range cmd.Args() {
			name, _ := arg.(string)
			fromActive = fromActive || strings.HasSuffix(name, ":active")
			toRetry = toRetry || strings.HasSuffix(name, ":retry")
		}
		if fromActive && toRetry {
			time.Sleep(300 * time.Millisecond)
		}
		return next(ctx, cmd)
	}
}
