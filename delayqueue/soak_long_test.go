//go:build soak

package delayqueue_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The suite of make soak-queue. What it shows of faults the worlds of module sim show of every commit.

var soakMessages = flag.Int("messages", 100_000, "how many messages the rounds of faults come to at least")

// TestSoak is long since it is the list of the suite.
func TestSoak(t *testing.T) {
	// Workers and Redis are killed at random moments, and workers are stopped for longer than their leases.
	t.Run("everything", func(t *testing.T) {
		faults := map[string]time.Duration{faultKill: 300 * time.Millisecond, faultRestart: 900 * time.Millisecond, faultStop: 1500 * time.Millisecond}
		chaos{Messages: 5000, Keys: 40, Workers: 4, Lease: 600 * time.Millisecond, Faults: faults}.soak(t, *soakMessages, func(a *account) bool {
			return len(a.faults) == len(faults) && a.unknown > 0 && a.duplicates > 0
		})
	})
	t.Run("messages that are handed back delay no others", testHandedBackDelayNoOthers)
	t.Run("cluster, resharded", func(t *testing.T) {
		faults := map[string]time.Duration{faultKill: 400 * time.Millisecond, faultReshard: 300 * time.Millisecond}
		chaos{
			Messages: 3000, Keys: 40, Workers: 3, Lease: 600 * time.Millisecond, Partitions: 6, Cluster: redistest.StartCluster(t, 3, 0), Faults: faults,
		}.soak(t, *soakMessages/10, func(a *account) bool { return len(a.faults) == len(faults) && a.duplicates > 0 })
	})
	for name, move := range reshardings {
		for _, workers := range []int{1, 3} {
			t.Run(fmt.Sprintf("resharded by %s, workers=%d", name, workers), func(t *testing.T) {
				reshardingLoad{parked: *soakMessages / 5, workers: workers, pause: time.Millisecond, move: move}.test(t)
			})
		}
	}
	// At the default bounds of a Cluster the pairs on the same nodes are to be quick, also if each partition is full.
	const bar = 50 * time.Millisecond
	for name, load := range map[string]parkedLoad{
		"256 MiB in 33 partitions":        {messages: 108_000, payload: 2700, partitions: 33, p99: bar},
		"as many as a partition takes":    {messages: 5000, p99: bar},
		"all of it long and coalescing":   {messages: 5000, names: 64, p99: 2 * bar},
		"the longest keys and principals": {messages: 5000, names: 512},
		"few large":                       {messages: 51 << 20 / (64 << 10), payload: 64 << 10, p99: bar},
	} {
		load.ttl = time.Second
		t.Run("stalled at the default bounds, "+name, func(t *testing.T) {
			took := load.stall(t)
			t.Logf("two nodes compute for %s", took)
			if load.p99 > 0 {
				assert.LessOrEqual(t, took, bar)
			}
		})
		t.Run("resharded at the default bounds, "+name, func(t *testing.T) { load.test(t) })
	}
	for payload, p99 := range map[int]time.Duration{32 << 10: bar, 64 << 10: bar, 1 << 20: 2 * bar} {
		t.Run(fmt.Sprintf("resharded with 256 MiB in payloads of %d KiB", payload>>10), func(t *testing.T) {
			parkedLoad{messages: 256 << 20 / payload, payload: payload, most: 1 << 22, ttl: time.Second, p99: p99}.test(t)
		})
	}
	// By larger bounds a stall is longer.
	t.Run("resharded with 256 MiB in one partition", func(t *testing.T) {
		parkedLoad{messages: 256 << 20 / 2700, payload: 2700, most: 1 << 22, ttl: 15 * time.Second}.test(t)
	})
	t.Run("a million", testAMillion)
}

// testAMillion: a message costs more beside a million than beside ten thousand, since the caches of the processor miss. The same is so of plain
// commands that keep what a queue has to: so much is Redis's. It compares what Redis computes for a message, and logs the rates: on a
// machine that others use too, they tell of these.
func testAMillion(t *testing.T) {
	of := func(name string, rates func(parked int) (enqueued, ran rate)) (enqueue, run float64) {
		var enqueues, runs []float64
		for range 3 {
			var enqueued, ran [2]rate
			for i, parked := range []int{10_000, 1_000_000} {
				enqueued[i], ran[i] = rates(parked)
				t.Logf("%s, %d parked: enqueued %s, run %s", name, parked, enqueued[i], ran[i])
			}
			t.Logf("%s, rates beside 10,000 parked: enqueued %.2f, run %.2f", name, enqueued[1].perSecond/enqueued[0].perSecond, ran[1].perSecond/ran[0].perSecond)
			enqueues, runs = append(enqueues, enqueued[0].micros/enqueued[1].micros), append(runs, ran[0].micros/ran[1].micros)
		}
		slices.Sort(enqueues)
		slices.Sort(runs)
		t.Logf("%s, a million parked: for each microsecond of Redis %.2f of what is enqueued, and %.2f of what is run, beside 10,000", name, enqueues[1], runs[1])
		return enqueues[1], runs[1]
	}
	enqueue, run := of("plain commands", func(parked int) (rate, rate) { return plainRates(t, parked) })
	for _, partitions := range []int{1, 8} {
		e, r := of(fmt.Sprint(partitions, " partitions"), func(parked int) (rate, rate) { return rates(t, partitions, parked) })
		if partitions == 1 {
			assert.Greater(t, e, 0.8*enqueue)
			assert.Greater(t, r, 0.8*run)
		}
	}
}

// plainRates are those of the commands that a queue cannot do without: one call of each for 16 messages, as its scripts make them for as many
// callers, in a pipeline.
func plainRates(t *testing.T, parked int) (enqueued, ran rate) {
	t.Helper()
	const some, batch = 50_000 - 50_000%16, 16
	s := redistest.Start(t)
	defer s.Kill()
	rdb, ctx := redistest.Client(t, &redis.Options{Addr: s.Addr}), t.Context()
	exec := func(add func(pipe redis.Pipeliner)) {
		pipe := rdb.Pipeline()
		add(pipe)
		require.NoError(t, errOf(pipe.Exec(ctx)))
	}
	record := strings.Repeat("r", 130) // with a payload of 64 bytes
	enqueue := func(n int) {
		for range n / batch {
			var records []any
			var waiting []redis.Z
			for range batch {
				id := ident.Random(16)
				records, waiting = append(records, id, record), append(waiting, redis.Z{Score: float64(time.Now().UnixMilli()), Member: id + " "})
			}
			exec(func(pipe redis.Pipeliner) {
				pipe.HSet(ctx, "m", records...)
				pipe.ZAdd(ctx, "z", waiting...)
			})
		}
	}
	enqueue(parked)
	enqueued = measure(t, rdb, some, func() { enqueue(some) })
	ran = measure(t, rdb, some, func() {
		for range some / batch {
			members, err := rdb.ZRange(ctx, "z", 0, batch-1).Result() // as ZRANGEBYSCORE does it, from the first on
			require.NoError(t, err)
			var ids []string
			var waiting, tries, endings []any
			var claims []redis.Z
			for _, member := range members {
				id := strings.TrimSpace(member)
				ids, waiting = append(ids, id), append(waiting, member)
				tries, endings = append(tries, id, record[:30]), append(endings, id, record[:60])
				claims = append(claims, redis.Z{Score: 1e12, Member: member})
			}
			exec(func(pipe redis.Pipeliner) {
				pipe.HMGet(ctx, "m", ids...)
				pipe.ZRem(ctx, "z", waiting...)
				pipe.ZAdd(ctx, "w", claims...)
				pipe.HSet(ctx, "r", tries...)
			})
			exec(func(pipe redis.Pipeliner) {
				pipe.ZRem(ctx, "w", waiting...)
				pipe.HDel(ctx, "m", ids...)
				pipe.HDel(ctx, "r", ids...)
				pipe.HSet(ctx, "d", endings...)
			})
		}
	})
	return enqueued, ran
}

// rate is how many messages a second, and how many microseconds of Redis each.
type rate struct{ perSecond, micros float64 }

func (r rate) String() string {
	return fmt.Sprintf("%.0f/s (%.1f µs of Redis)", r.perSecond, r.micros)
}

// measure tells at what rate do deals with n messages.
func measure(t *testing.T, rdb *redis.Client, n float64, do func()) rate {
	t.Helper()
	began, before := time.Now(), computed(t, rdb)
	do()
	return rate{n / time.Since(began).Seconds(), (computed(t, rdb) - before) / n * 1e6}
}

// computed is how long servers have computed what they were asked for, in seconds.
func computed(t *testing.T, servers ...*redis.Client) (seconds float64) {
	t.Helper()
	for _, rdb := range servers {
		info := of(rdb.InfoMap(t.Context(), "cpu").Result())(t)
		for _, name := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
			s := of(strconv.ParseFloat(info["CPU"][name], 64))(t)
			seconds += s
		}
	}
	return seconds
}

// stall is how long two servers compute to move a partition from one to the other, the ten largest of its keys in one step: for so long
// neither serves others. It is the shortest of some moves, and more on a machine that others use too.
func (l parkedLoad) stall(t *testing.T) (shortest time.Duration) {
	t.Helper()
	type node struct {
		*redis.Client
		host, port string
	}
	var nodes [2]node
	for i := range nodes {
		s := redistest.Start(t)
		t.Cleanup(s.Kill)
		host, port, err := net.SplitHostPort(s.Addr)
		require.NoError(t, err)
		nodes[i] = node{redistest.Client(t, &redis.Options{Addr: s.Addr, ReadTimeout: time.Minute}), host, port}
	}
	b := setup(t, redistest.Real(t))
	b.rdb = nodes[0].Client
	b.queue = b.newQueue(b.rdb, delayqueue.WithMaxDepth(delayqueue.DefaultClusterDepth), delayqueue.WithMaxDepthPerKey(1<<22))
	l.park(b)
	size := map[string]int64{}
	var keys []string
	for _, name := range [...]string{"m", "z", "w", "r", "f", "c", "x", "y", "e", "k", "u", "h"} {
		key := b.key(name)
		size[key] = b.rdb.MemoryUsage(t.Context(), key).Val() // 0: there is none
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(size[b], size[a]) })
	for i := range 12 {
		from, to := nodes[i%2], nodes[1-i%2]
		args := []any{"migrate", to.host, to.port, "", 0, 60_000, "keys"}
		for _, key := range keys[:10] {
			args = append(args, key)
		}
		before := computed(t, from.Client, to.Client)
		require.NoError(t, from.Do(t.Context(), args...).Err())
		took := time.Duration((computed(t, from.Client, to.Client) - before) * 1e9)
		if shortest == 0 || took < shortest {
			shortest = took
		}
	}
	return shortest
}

// rates are those of messages that are enqueued, and run, beside so many.
func rates(t *testing.T, partitions, parked int) (enqueued, ran rate) {
	t.Helper()
	const some = 50_000
	s := redistest.Start(t)
	defer s.Kill()
	b := setup(t, redistest.Real(t))
	b.rdb = redistest.Client(t, &redis.Options{Addr: s.Addr})
	b.queue = b.newQueue(b.rdb, delayqueue.WithMaxDepth(1<<22), delayqueue.WithMaxDepthPerKey(1<<22), delayqueue.WithMaxBytes(1<<30), delayqueue.WithPartitions(partitions))
	b.park(parked, 64)
	enqueued = measure(t, b.rdb, some, func() { b.park(some, 64) })
	ran = measure(t, b.rdb, some, func() {
		var runs atomic.Int64
		done := make(chan struct{})
		w := b.start(func(context.Context, delayqueue.Message) error {
			if runs.Add(1) == some {
				close(done)
			}
			return nil
		}, delayqueue.WithConcurrency(64))
		<-done
		require.NoError(t, w.Stop(t.Context()))
	})
	return enqueued, ran
}

// Messages that are handed back delay one of a hundred others by 100 ms at most, when they have been looked at for some time.
func testHandedBackDelayNoOthers(t *testing.T) {
	const messages, length = 10_000, 20 * time.Second
	b := setup(t, redistest.Real(t), delayqueue.WithMaxDepth(1<<20))
	started, known := make(chan time.Time, 1), atomic.Int64{}
	b.start(func(ctx context.Context, msg delayqueue.Message) error {
		if msg.Name != "ours" {
			known.Add(1)
			return handsBack(ctx, msg)
		}
		started <- time.Now()
		return nil
	})
	lateness := func(length time.Duration) (late []time.Duration) {
		for i, end := 0, time.Now().Add(length); time.Now().Before(end); i++ {
			b.enqueue(delayqueue.Job{Key: fmt.Sprint("ours:", i), Name: "ours"})
			stored := time.Now()
			late = append(late, next(t, started).Sub(stored))
			time.Sleep(time.Duration(1+i%40) * time.Millisecond) // at any moment between two looks
		}
		slices.Sort(late)
		return late
	}
	at := func(late []time.Duration) time.Duration { return late[int(float64(len(late)-1)*0.99)] }
	alone := lateness(length / 4)
	var all sync.WaitGroup
	for worker := range 50 {
		all.Go(func() {
			for i := worker; i < messages; i += 50 {
				b.enqueue(delayqueue.Job{Key: fmt.Sprint("order:", i), Name: "POST /orders/{id}", Payload: []byte("x")})
			}
		})
	}
	all.Wait()
	require.Eventually(t, func() bool { return known.Load() >= messages }, 5*time.Minute, 10*time.Millisecond)
	time.Sleep(40 * time.Second) // their delays have grown
	beside := lateness(length)
	t.Logf("start after enqueue, p99: %s alone, %s beside %d messages that nobody runs (%d and %d samples)", at(alone), at(beside), messages, len(alone), len(beside))
	require.LessOrEqual(t, at(beside), at(alone)+100*time.Millisecond)
}
