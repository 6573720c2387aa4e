package asynqlock_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

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
	handler := asynqlock.PerKey(locker.Guard(core.RejectConflicts), walletKey)(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
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
	const tasks, keys, kills = 1000, 5, 3
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
		require.True(t, killed[pid], "two tasks of a key at once")
	}
	for _, p := range running {
		p.Finish()
		p.Wait(t)
	}
	requireNoneArchived(t, asynq.NewInspectorFromRedisClient(rdb), "default")
}
