package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// A Redis with a log is killed and started again while servers run tasks of few keys, and while others enqueue more: no
// two of a key run at once, none is archived, and all run but those that asynq has leased to a server that never got
// them, which asynq hands out again when that lease is over, later than this test. Afterwards releases wake tasks as
// before. It is long since it is one story.
func TestWake_ARedisThatRestarts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Logged...)
	const servers, keys, callers, each, restarts, woken = 3, 5, 4, 100, 2, kind + ":woken"
	const tasks, leased = callers * each, servers * restarts // one a server and restart: asynq fetches one at a time
	connect := func() *redis.Client { return redistest.Client(t, &redis.Options{Addr: server.Addr}) }
	b := setup(t, &redistest.Env{Addr: server.Addr, Prefix: "restarts"})
	var (
		inside [keys]alone
		ran    sync.Map
		done   atomic.Int64
	)
	handler := asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		var of, n int
		if _, err := fmt.Sscanf(string(task.Payload()), `{"user_id":%d,"n":%d}`, &of, &n); err != nil {
			return err
		}
		defer inside[of].enter(t)()
		time.Sleep(5 * time.Millisecond)
		if _, again := ran.LoadOrStore(n, true); !again {
			done.Add(1)
		}
		return nil
	})
	for range servers {
		rdb := connect()
		locker := testbed.NewLocker(t, rdb, core.WithPrefix(b.queue), core.WithObserver(b.conflicts))
		srv, err := asynqlock.NewServer(rdb, b.config())
		require.NoError(t, err)
		mux := asynq.NewServeMux()
		mux.Handle(kind, asynqlock.PerKey(locker.Guard(core.RejectConflicts), walletKey, asynqlock.WithDelay(time.Second, 2*time.Second))(handler))
		mux.Handle(woken, asynqlock.PerKey(locker.Guard(core.RejectConflicts), walletKey, asynqlock.WithDelay(5*time.Minute, 10*time.Minute))(handler))
		startServer(t, srv, mux)
	}
	enqueue := func(kind string, n int) {
		task := asynq.NewTask(kind, fmt.Appendf(nil, `{"user_id":%d,"n":%d}`, n%keys, n))
		for ; t.Context().Err() == nil; time.Sleep(10 * time.Millisecond) {
			_, err := b.client.Enqueue(task, asynq.Queue(b.queue), asynq.TaskID(fmt.Sprint("task", n)), asynq.MaxRetry(n%2))
			if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) {
				return
			}
		}
	}
	var enqueued sync.WaitGroup
	for caller := range callers {
		enqueued.Go(func() {
			for n := range each {
				enqueue(kind, caller*each+n)
			}
		})
	}
	reach := func(n int64) {
		for done.Load() < n {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for n := range restarts {
		reach(int64((n + 1) * tasks / (restarts + 2)))
		server.Kill()
		time.Sleep(300 * time.Millisecond)
		server.Restart(t)
	}
	enqueued.Wait()
	reach(tasks - leased) // all run but those that asynq has leased to nobody
	redistest.Eventually(t, func() bool {
		left := b.all(t)
		waits := func(info *asynq.TaskInfo) bool { return info.State != asynq.TaskStateActive && !expired(info) }
		return len(left) <= leased && !slices.ContainsFunc(left, waits)
	}, "nothing else is left")
	require.Positive(t, b.conflicts.n.Load())
	requireNoneArchived(t, b.inspector, b.queue)

	// Each of these waits for the one before: by themselves they come back after five minutes and more.
	const more = 50
	for n := range more {
		enqueue(woken, tasks+n*keys)
	}
	reach(tasks + more - leased)
	requireNoneArchived(t, b.inspector, b.queue)
}

// expired reports whether asynq took back a task whose server died, or never got it: on a machine so slow that its lease of half a minute
// is over, it hands out again such a task, or archives it.
func expired(info *asynq.TaskInfo) bool { return info.LastErr == asynq.ErrLeaseExpired.Error() }

func requireNoneArchived(t *testing.T, inspector *asynq.Inspector, queue string) {
	t.Helper()
	archived, err := inspector.ListArchivedTasks(queue)
	require.NoError(t, err)
	for _, info := range archived {
		require.True(t, expired(info), info.LastErr)
	}
}
