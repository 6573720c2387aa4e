//go:build soak

package asynqlock_test

import (
	"context"
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
	"github.com/perkey-go/perkey/retry"
)

// fleet is some servers that run tasks of some keys, all of which are enqueued before the servers start.
type fleet struct {
	servers, workers, keys, tasks int
	work                          time.Duration // of a task
	cfg                           asynq.Config
	policy                        core.ConflictPolicy
	opts                          []asynqlock.Option
	without                       bool // nothing guards the tasks
}

// documented are the settings of docs/asynq.md.
var documented = asynq.Config{TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: time.Second}

// drained is how a fleet ran its tasks.
type drained struct {
	took      time.Duration
	waits     []time.Duration // from the start, of each task, ascending
	inversion int             // how many places a task ran after one of its key that came later, at most
	conflicts int64
	commands  int64
}

func (d drained) String() string {
	return fmt.Sprintf("%s; a task waited %s at half of them, %s at 99 %%; %d places out of order; %d conflicts, %d commands",
		d.took.Round(10*time.Millisecond), d.waits[len(d.waits)/2].Round(10*time.Millisecond), d.waits[len(d.waits)*99/100].Round(10*time.Millisecond),
		d.inversion, d.conflicts, d.commands)
}

func (f fleet) drain(t *testing.T) (d drained) {
	t.Helper()
	server := redistest.Start(t)
	b := setup(t, &redistest.Env{Addr: server.Addr, Prefix: "fleet"})
	for n := range f.tasks {
		b.enqueue(t, asynq.NewTask(kind, fmt.Appendf(nil, `{"user_id":%d,"n":%d}`, n%f.keys, n/f.keys)))
	}
	var mu sync.Mutex
	order, inside, done := make([]int, f.keys), make([]atomic.Int64, f.keys), make(chan struct{})
	commands := commandsOf(t, b.rdb)
	start := time.Now()
	handler := asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		var of, n int
		if _, err := fmt.Sscanf(string(task.Payload()), `{"user_id":%d,"n":%d}`, &of, &n); err != nil {
			return err
		}
		if inside[of].Add(1) > 1 && !f.without {
			t.Error("two tasks of a key at once")
		}
		began := time.Since(start)
		time.Sleep(f.work)
		inside[of].Add(-1)
		mu.Lock()
		defer mu.Unlock()
		d.inversion = max(d.inversion, order[of]-n)
		order[of]++
		if d.waits = append(d.waits, began); len(d.waits) == f.tasks {
			d.took = time.Since(start)
			close(done)
		}
		return nil
	})
	for range f.servers {
		cfg, h := f.cfg, asynq.Handler(handler)
		cfg.Concurrency, cfg.Queues, cfg.Logger = f.workers, map[string]int{b.queue: 1}, quiet{}
		if f.without {
			b.start(t, cfg, h)
			continue
		}
		rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
		require.NoError(t, asynqlock.Configure(&cfg, rdb))
		guard := b.newLocker(t).Guard(f.policy)
		srv := asynq.NewServerFromRedisClient(rdb, cfg)
		require.NoError(t, srv.Start(asynqlock.PerKey(guard, walletKey, f.opts...)(h)))
		t.Cleanup(srv.Shutdown)
	}
	<-done
	d.commands, d.conflicts = commandsOf(t, b.rdb)-commands, b.conflicts.n.Load()
	slices.Sort(d.waits)
	return d
}

func commandsOf(t *testing.T, rdb *redis.Client) (n int64) {
	t.Helper()
	_, err := fmt.Sscan(rdb.InfoMap(t.Context(), "stats").Item("Stats", "total_commands_processed"), &n)
	require.NoError(t, err)
	return n
}

// shortWait is what was fastest without wakes: each worker waits a little for its key.
func shortWait(f fleet) fleet {
	f.cfg = asynq.Config{TaskCheckInterval: 200 * time.Millisecond, DelayedTaskCheckInterval: time.Second}
	f.policy, f.opts = retry.Policy{MaxWait: 100 * time.Millisecond}, []asynqlock.Option{asynqlock.WithDelay(time.Second, 2*time.Second)}
	return f
}

// See docs/asynq.md: go test -tags=soak -run=TestSoak_Hot -v ./asynqlock.
func TestSoak_HotKeys(t *testing.T) {
	f := fleet{servers: 4, workers: 10, keys: 10, tasks: 10_000, work: 10 * time.Millisecond, cfg: documented}
	woken := f.drain(t)
	t.Log("woken by releases:", woken)
	waited := shortWait(f).drain(t)
	t.Log("a wait of 100 ms:", waited)
	require.LessOrEqual(t, woken.took.Seconds(), 1.3*waited.took.Seconds())
	length := time.Duration(f.tasks/f.keys) * f.work
	require.LessOrEqual(t, woken.waits[len(woken.waits)*99/100], 2*length, "twice what the tasks of a key take one after the other")
}

// The same with -run=TestSoak_Many: keys that nobody fights for cost hardly anything.
func TestSoak_ManyKeys(t *testing.T) {
	f := fleet{servers: 4, workers: 10, keys: 10_000, tasks: 10_000, work: 10 * time.Millisecond, cfg: documented}
	var with, without time.Duration
	for range 3 {
		d := f.drain(t)
		t.Log("with perkey:", d)
		with += d.took
		bare := f
		bare.without = true
		d = bare.drain(t)
		t.Log("without:", d)
		without += d.took
	}
	require.LessOrEqual(t, with.Seconds(), 1.1*without.Seconds())
}
