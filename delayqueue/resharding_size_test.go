//go:build soak

package delayqueue_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
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

// parkedLoad is a queue with so many messages in it, beside locks on the same nodes.
type parkedLoad struct {
	messages   int
	payload    int           // bytes of each; zero: the longest that records keep
	most       int           // messages that a partition takes; zero: by default, and as many of the messages are parked
	partitions int           // zero: 1
	names      int           // bytes of key, name and principal each, of calls that coalesce; zero: short keys alone
	ttl        time.Duration // of locks that outlast all of it
	p99        time.Duration // which pairs are to take at most in each phase; zero: any
}

// test: a partition that moves to another node and back, and ends, stops its nodes for a while, but not for so long that a lock is lost. It is
// long since it is one story.
func (l parkedLoad) test(t *testing.T) {
	t.Helper()
	m := l.onCluster(t)
	n := l.park(m.bench)
	held := m.hold()
	var pairs pairs
	var callers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, node := range m.nodes {
		callers.Go(func() {
			pairs.make(ctx, m.locker, keysOn(t, m.cluster, node, "pair", 10), 2*time.Millisecond)
		})
	}
	defer callers.Wait()
	defer cancel()
	phase := func(what string, do func()) {
		pairs.take()
		began := time.Now()
		do()
		time.Sleep(100 * time.Millisecond) // those that waited for it
		told, p99 := pairs.take()
		t.Logf("%s in %s: %s", what, time.Since(began), told)
		if l.p99 > 0 {
			assert.LessOrEqual(t, p99, l.p99, what)
		}
	}
	phase("nothing", func() { time.Sleep(time.Second) })
	phase("moved", func() { m.move(0, 1, 10) })
	phase("moved back, key by key", func() { m.move(1, 0, 1) })
	require.Equal(t, [3]int64{n, 0, 0}, m.inState())
	if n/int64(len(m.tags)) <= 10_000 { // else nothing expires
		expireAt(t, redistest.Client(t, &redis.Options{Addr: m.nodes[0].Addr}), m.tags, time.Now().Add(2*time.Second+time.Duration(n)*30*time.Microsecond))
		phase("expired", func() {
			redistest.Eventually(t, func() bool { return m.inState() == [3]int64{} }, "all of it is gone")
		})
	} else {
		phase("worked off", func() {
			w := m.start(func(context.Context, delayqueue.Message) error { return nil }, delayqueue.WithConcurrency(64))
			for m.inState()[0] > 0 {
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
}

// moving is a queue whose partitions are on one of two nodes.
type moving struct {
	*bench
	cluster *redistest.Cluster
	nodes   [2]*redistest.Server
	tags    []string // of the partitions
}

// onCluster makes a queue whose partitions are on the first node.
func (l parkedLoad) onCluster(t *testing.T) *moving {
	t.Helper()
	c := redistest.StartCluster(t, 3, 0)
	require.NoError(t, c.Client(t).ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ConfigSet(ctx, "cluster-node-timeout", "15000").Err() // as it is by default
	}))
	opts := []delayqueue.Option{delayqueue.WithPartitions(max(1, l.partitions))}
	if l.most > 0 {
		opts = append(opts, delayqueue.WithMaxDepth(l.most), delayqueue.WithMaxBytes(1<<30))
	}
	tag := "{" + nameInSlot0 + "}"
	m := &moving{onCluster(t, c, nameInSlot0, opts...), c, [2]*redistest.Server{c.NodeOf(t, tag), c.AnotherThan(t, tag)}, []string{tag}}
	if l.partitions > 1 {
		m.tags = nil
		for i := range l.partitions {
			m.tags = append(m.tags, fmt.Sprintf("{%s/%d.%d}", nameInSlot0, i+1, l.partitions))
		}
		moveTags(t, c, m.tags, m.nodes[0], 1)
	}
	return m
}

// move moves the partitions from one node to the other, so many keys in one step.
func (m *moving) move(from, to, together int) {
	m.t.Helper()
	if len(m.tags) > 1 {
		moveTags(m.t, m.cluster, m.tags, m.nodes[to], together)
	} else {
		m.cluster.Reshard(m.t, m.nodes[from], m.nodes[to], "--cluster-pipeline", fmt.Sprint(together))
	}
}

// hold takes locks on both nodes, for each of some TTLs.
func (m *moving) hold() map[time.Duration][]*core.Lease {
	m.t.Helper()
	held := map[time.Duration][]*core.Lease{}
	for _, ttl := range []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second, 15 * time.Second} {
		locker := of(core.New(m.cluster.Client(m.t), core.WithPrefix(m.env.Prefix), core.WithTTL(ttl)))(m.t)
		m.t.Cleanup(func() { _ = locker.Close() })
		for _, node := range m.nodes {
			for _, key := range keysOn(m.t, m.cluster, node, ttl.String(), 5) {
				lease := of(locker.TryAcquire(m.t.Context(), key))(m.t)
				held[ttl] = append(held[ttl], lease)
			}
		}
	}
	return held
}

// moveTags moves one slot after the other, of each so many keys in one step.
func moveTags(t *testing.T, c *redistest.Cluster, tags []string, to *redistest.Server, together int) {
	t.Helper()
	for _, tag := range tags {
		if c.NodeOf(t, tag).Addr == to.Addr {
			continue
		}
		slot := c.Migrate(t, tag, to)
		for moved := 1; moved > 0; {
			moved = slot.MoveTogether(t, together)
		}
		slot.Finish(t)
	}
}

// expireAt has all keys of these slots expire at once.
func expireAt(t *testing.T, node *redis.Client, tags []string, at time.Time) {
	t.Helper()
	for _, tag := range tags {
		slot := of(node.ClusterKeySlot(t.Context(), tag).Result())(t)
		keys, err := node.ClusterGetKeysInSlot(t.Context(), int(slot), 1<<20).Result()
		require.NoError(t, err)
		_, err = node.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for _, key := range keys {
				pipe.PExpireAt(t.Context(), key, at)
			}
			return nil
		})
		require.NoError(t, err)
	}
	require.Less(t, time.Now(), at, "all at once")
}

// park enqueues the messages, and returns how many there are then. Payloads cannot be compressed.
func (l parkedLoad) park(b *bench) (n int64) {
	b.t.Helper()
	random := make([]byte, max(l.payload, delayqueue.MaxInline)+1000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random) // never fails
	b.parkJobs(l.messages, l.most == 0, func(i int) delayqueue.Job {
		text, size := random[i%1000:], l.payload
		if size == 0 && i < 350 { // so many take about as much as may be in records of that size
			size = delayqueue.MaxInline
		}
		job := delayqueue.Job{Key: fmt.Sprintf("key %08d", i), MaxAge: time.Hour, Payload: text[:cmp.Or(size, delayqueue.MaxInlineFull)]}
		if l.names > 0 {
			job.Key = fmt.Sprintf("%x%08d", text[:(l.names-8)/2], i)
			job.Name = job.Key[max(0, l.names-256):]
			job.Principal, job.Coalesce = job.Name, true
		}
		return job
	})
	stats := b.stats()
	b.t.Logf("%d messages are parked, which count as %d MiB", stats.Queued, stats.Bytes>>20)
	return stats.Queued
}

// park enqueues n messages under 1,000 keys.
func (b *bench) park(n, payload int) {
	b.t.Helper()
	text := make([]byte, payload)
	b.enqueueAll(n, func(i int) delayqueue.Job {
		return delayqueue.Job{Key: fmt.Sprint("k", i%1000), MaxAge: time.Hour, Payload: text}
	})
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

// pairs is how long acquiring and releasing took, from when it was to begin.
type pairs struct {
	mu     sync.Mutex
	took   []time.Duration
	failed int
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
	p.took, p.failed = nil, 0
	if len(took) == 0 {
		return "no pairs", 0
	}
	slices.Sort(took)
	p99 = took[len(took)*99/100]
	return fmt.Sprintf("%d pairs, p50 %s, p99 %s, longest %s, %d failed", len(took), took[len(took)/2], p99, took[len(took)-1], failed), p99
}
