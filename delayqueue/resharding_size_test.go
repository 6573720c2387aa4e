package delayqueue_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// parkedLoad is a partition with so many bytes of payload in it, beside locks on the same nodes.
type parkedLoad struct {
	bytes, payload int
	ttl            time.Duration // of locks that outlast all of it
	pause          time.Duration // between two pairs on a node; zero: 2 ms
	p99            time.Duration // which pairs are to take at most in each phase; zero: any
}

// A partition that moves to another node and back, and ends, stops its nodes for a while, but not for so long
// that a lock is lost. make soak-queue does it with more.
func TestReshard_LosesNoLock(t *testing.T) {
	for name, load := range map[string]parkedLoad{
		"few large":  {bytes: 4 << 20, payload: 64 << 10, ttl: time.Second, pause: 10 * time.Millisecond},
		"many small": {bytes: 512 << 10, payload: 256, ttl: time.Second, pause: 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) { load.test(t) })
	}
}

func (l parkedLoad) test(t *testing.T) {
	t.Helper()
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.Client(t)
	require.NoError(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ConfigSet(ctx, "cluster-node-timeout", "15000").Err() // as it is by default
	}))
	b := onCluster(t, c, nameInSlot0, delayqueue.WithMaxDepth(1<<22), delayqueue.WithMaxDepthPerKey(1<<22), delayqueue.WithMaxBytes(1<<30))
	home, away := c.NodeOf(t, "{"+nameInSlot0+"}"), c.AnotherThan(t, "{"+nameInSlot0+"}")
	n := l.bytes / l.payload
	b.park(n, l.payload)

	held := map[time.Duration][]*core.Lease{}
	for _, ttl := range []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second, 15 * time.Second} {
		locker, err := core.New(c.Client(t), core.WithPrefix(b.env.Prefix), core.WithTTL(ttl))
		require.NoError(t, err)
		t.Cleanup(func() { _ = locker.Close() })
		for _, node := range []*redistest.Server{home, away} {
			for _, key := range keysOn(t, c, node, ttl.String(), 5) {
				lease, err := locker.TryAcquire(t.Context(), key)
				require.NoError(t, err)
				held[ttl] = append(held[ttl], lease)
			}
		}
	}
	var (
		pairs   pairs
		callers sync.WaitGroup
		nodes   []*redis.Client
	)
	for _, node := range []*redistest.Server{home, away} {
		nodes = append(nodes, redistest.Client(t, &redis.Options{Addr: node.Addr}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, node := range []*redistest.Server{home, away} {
		callers.Go(func() { pairs.make(ctx, b.locker, keysOn(t, c, node, "pair", 10), cmp.Or(l.pause, 2*time.Millisecond)) })
	}
	defer callers.Wait()
	defer cancel()
	phase := func(what string, do func()) {
		pairs.take()
		for _, node := range nodes {
			require.NoError(t, node.SlowLogReset(t.Context()).Err())
		}
		began := time.Now()
		do()
		time.Sleep(100 * time.Millisecond) // those that waited for it
		told, p99 := pairs.take()
		t.Logf("%s in %s: %s", what, time.Since(began), told)
		if l.p99 > 0 {
			assert.LessOrEqual(t, p99, l.p99, what)
		}
		for _, node := range nodes {
			for _, slow := range longestCommands(t, node) {
				t.Logf("%s: the longest %s", what, slow)
			}
		}
	}
	phase("nothing", func() { time.Sleep(time.Second) })
	phase("moved", func() { c.Reshard(t, home, away) })
	phase("moved back, key by key", func() { c.Reshard(t, away, home, "--cluster-pipeline", "1") })
	require.Equal(t, [3]int64{int64(n), 0, 0}, b.inState())
	if n < 10_000 { // else nothing expires
		phase("expired", func() {
			keys, err := rdb.ClusterGetKeysInSlot(t.Context(), 0, 1<<20).Result()
			require.NoError(t, err)
			_, err = rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
				for _, key := range keys {
					pipe.PExpire(t.Context(), key, 10*time.Millisecond)
				}
				return nil
			})
			require.NoError(t, err)
			redistest.Eventually(t, func() bool { return b.inState() == [3]int64{} }, "all of it is gone")
		})
	} else {
		phase("worked off", func() {
			w := b.start(func(context.Context, delayqueue.Message) error { return nil }, delayqueue.WithConcurrency(64))
			for b.inState()[0] > 0 {
				time.Sleep(100 * time.Millisecond)
			}
			require.NoError(t, w.Stop(t.Context()))
		})
	}
	for ttl, leases := range held {
		lost := 0
		for _, lease := range leases {
			if lease.Context().Err() != nil {
				lost++
			}
		}
		t.Logf("of %d locks with a TTL of %s %d were lost", len(leases), ttl, lost)
		if ttl >= l.ttl {
			assert.Zero(t, lost, ttl)
		}
	}
	all := pairs.percentile(99)
	t.Logf("p99 of all pairs: %s", all)
}

// park enqueues n messages under 1,000 keys.
func (b *bench) park(n, payload int) {
	b.t.Helper()
	const producers = 64
	var all sync.WaitGroup
	text := make([]byte, payload)
	for p := range producers {
		all.Go(func() {
			for i := p; i < n; i += producers {
				_, err := b.queue.Enqueue(context.Background(), delayqueue.Job{Key: fmt.Sprint("k", i%1000), Payload: text, MaxAge: time.Hour})
				if !assert.NoError(b.t, err) {
					return
				}
			}
		})
	}
	all.Wait()
}

// keysOn returns n keys whose locks are on a node.
func keysOn(t *testing.T, c *redistest.Cluster, node *redistest.Server, name string, n int) (keys []string) {
	t.Helper()
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint(name, i); c.NodeOf(t, "p:lock{}:"+key).Addr == node.Addr {
			keys = append(keys, key)
		}
	}
	return keys
}

// longestCommands are the longest of each kind that took 10 ms at least.
func longestCommands(t *testing.T, node *redis.Client) (told []string) {
	t.Helper()
	longest := map[string]time.Duration{}
	calls, err := node.SlowLogGet(t.Context(), -1).Result()
	require.NoError(t, err)
	for _, call := range calls {
		name := strings.ToLower(call.Args[0])
		for script, hash := range delayqueue.ScriptHashes {
			if len(call.Args) > 1 && call.Args[1] == hash {
				name = script
			}
		}
		longest[name] = max(longest[name], call.Duration)
	}
	for name, took := range longest {
		told = append(told, fmt.Sprintf("%s on %s: %s", name, node.Options().Addr, took))
	}
	return told
}

// pairs is how long acquiring and releasing took, from when it was to begin.
type pairs struct {
	mu        sync.Mutex
	took, all []time.Duration
	failed    int
}

func (p *pairs) make(ctx context.Context, locker *core.Locker, keys []string, pause time.Duration) {
	var under sync.WaitGroup
	defer under.Wait()
	due := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		due = due.Add(pause)
		time.Sleep(time.Until(due))
		at := due
		under.Go(func() {
			lease, err := locker.Acquire(ctx, keys[i%len(keys)])
			if err == nil {
				_ = lease.Release(ctx)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.took = append(p.took, time.Since(at)); err != nil {
				p.failed++
			}
		})
	}
}

// take tells of those since it was called before.
func (p *pairs) take() (told string, p99 time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took, failed := p.took, p.failed
	p.took, p.failed, p.all = nil, 0, append(p.all, took...)
	if len(took) == 0 {
		return "no pairs", 0
	}
	slices.Sort(took)
	p99 = took[len(took)*99/100]
	return fmt.Sprintf("%d pairs, p50 %s, p99 %s, longest %s, %d failed", len(took), took[len(took)/2], p99, took[len(took)-1], failed), p99
}

func (p *pairs) percentile(n int) time.Duration {
	slices.Sort(p.all)
	return p.all[len(p.all)*n/100]
}
