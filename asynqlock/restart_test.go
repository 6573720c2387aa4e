package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
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
	const servers, keys, callers, each, restarts, woken = 3, 5, 4, 40, 2, kind + ":woken"
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
	const more = 20
	for n := range more {
		enqueue(woken, tasks+n*keys)
	}
	reach(tasks + more - leased)
	requireNoneArchived(t, b.inspector, b.queue)
}

// expired reports whether asynq took back a task whose server died, or never got it, or whether a task outlived its lease of a key: on a
// machine so slow that its lease of half a minute, or of a second, is over, asynq hands out again such a task, or archives it.
func expired(info *asynq.TaskInfo) bool {
	return info.LastErr == asynq.ErrLeaseExpired.Error() || strings.Contains(info.LastErr, "the lease was lost")
}

func requireNoneArchived(t *testing.T, inspector *asynq.Inspector, queue string) {
	t.Helper()
	archived, err := inspector.ListArchivedTasks(queue)
	require.NoError(t, err)
	for _, info := range archived {
		require.True(t, expired(info), info.LastErr)
	}
}

// serverVar makes the test's binary a server of tasks, for the Redis that it names.
const serverVar = "PERKEY_TEST_ASYNQ"

func TestMain(m *testing.M) {
	if addr := os.Getenv(serverVar); addr != "" {
		if err := beServer(addr); err != nil {
			panic(err)
		}
		return
	}
	redistest.Main(m)
}

const processWorkers = 4

// beServer runs tasks until its standard input ends. A task marks its key as busy while it runs.
func beServer(addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	locker, err := core.New(rdb, core.WithTTL(time.Second))
	if err != nil {
		return err
	}
	pid := fmt.Sprint(os.Getpid())
	handler := asynqlock.PerKey(locker.Guard(core.RejectConflicts), walletKey)(asynq.HandlerFunc(func(lease context.Context, task *asynq.Task) error {
		ctx := context.Background()
		var of, n int
		if _, err := fmt.Sscanf(string(task.Payload()), `{"user_id":%d,"n":%d}`, &of, &n); err != nil {
			return err
		}
		busy := fmt.Sprint("busy:", of)
		if other, err := rdb.SetArgs(ctx, busy, pid, redis.SetArgs{Get: true}).Result(); err == nil {
			rdb.RPush(ctx, "overlaps", other)
		}
		time.Sleep(10 * time.Millisecond)
		rdb.Del(ctx, busy)
		if lease.Err() != nil { // the machine was so busy that its lease is over
			rdb.SAdd(ctx, "late", pid)
		}
		return rdb.SAdd(ctx, "ran", n).Err()
	}))
	cfg := asynq.Config{Concurrency: processWorkers, TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: time.Second, Logger: quiet{}}
	srv, err := asynqlock.NewServer(rdb, cfg)
	if err != nil {
		return err
	}
	if err := srv.Start(handler); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	srv.Shutdown()
	return locker.Shutdown(context.Background())
}

// Servers are killed while they hold keys, and while tasks that were woken are on their way to them: the others go
// on, and nothing is lost but to asynq's own leases, which last for longer than this test.
func TestWake_ServersThatAreKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
	client := asynq.NewClientFromRedisClient(rdb)
	const tasks, keys, kills = 250, 5, 3
	for n := range tasks {
		_, err := client.Enqueue(asynq.NewTask(kind, fmt.Appendf(nil, `{"user_id":%d,"n":%d}`, n%keys, n)), asynq.MaxRetry(n%2))
		require.NoError(t, err)
	}
	reach := func(n int64) {
		for rdb.SCard(t.Context(), "ran").Val() < n {
			time.Sleep(10 * time.Millisecond)
		}
	}
	start := func() *redistest.Process { return redistest.StartProcess(t, "", serverVar+"="+server.Addr) }
	running := []*redistest.Process{start(), start(), start()}
	killed := map[string]bool{}
	for n := range kills {
		reach(int64((n + 1) * tasks / (kills + 2)))
		killed[fmt.Sprint(running[0].Pid())] = true
		running[0].Kill()
		running = append(running[1:], start())
	}
	reach(tasks - kills*processWorkers) // all but those that asynq has leased to the dead
	for _, pid := range rdb.LRange(t.Context(), "overlaps", 0, -1).Val() {
		require.True(t, killed[pid] || rdb.SIsMember(t.Context(), "late", pid).Val(), "two tasks of a key at once")
	}
	for _, p := range running {
		p.Finish()
		p.Wait(t)
	}
	requireNoneArchived(t, asynq.NewInspectorFromRedisClient(rdb), "default")
}
