//go:build soak

package delayqueue_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The suite of make soak-queue. All of it runs in short among the other tests.

var soakMessages = flag.Int("messages", 100_000, "how many messages the rounds of faults come to at least")

func TestSoak(t *testing.T) {
	t.Run("everything", func(t *testing.T) {
		round := faultsRound
		round.Messages, round.Keys, round.Enqueuers, round.Workers = 5000, 40, 8, 4
		round.test(t, *soakMessages)
	})
	t.Run("workers killed", func(t *testing.T) { killedRound.test(t, *soakMessages/50) })
	t.Run("workers stopped", func(t *testing.T) { stoppedRound.test(t, *soakMessages/100) })
	t.Run("parked and fresh calls", func(t *testing.T) { parkedRound.test(t, *soakMessages/50) })
	idle := idleMessages{n: 10_000, length: 20 * time.Second}
	t.Run("messages under an unknown key", idle.underAnUnknownKey)
	t.Run("messages that are handed back", idle.known)
	t.Run("cluster", testFaultsInACluster)
	t.Run("cluster, resharded and repartitioned", func(t *testing.T) {
		round := soakRound{
			chaos: chaos{
				Messages: 3000, Keys: 40, Workers: 3, Enqueuers: 8, Lease: 600 * time.Millisecond, Partitions: 3, Fresh: 2,
				Cluster: redistest.StartCluster(t, 3, 0),
				Faults: map[string]time.Duration{
					faultKill: 400 * time.Millisecond, faultReshard: 300 * time.Millisecond, faultRepartition: time.Second,
				},
			},
			done: 80,
		}
		round.enough = func(a *account) bool { return len(a.faults) == len(round.Faults) && a.duplicates > 0 }
		round.test(t, *soakMessages/10)
	})
	for name, move := range reshardings {
		for _, workers := range []int{1, 3} {
			t.Run(fmt.Sprintf("resharded by %s, workers=%d", name, workers), func(t *testing.T) {
				reshardingLoad{parked: *soakMessages / 5, workers: workers, move: move}.test(t)
			})
		}
	}
	t.Run("resharded with 256 MiB, few large", func(t *testing.T) {
		parkedLoad{bytes: 256 << 20, payload: 64 << 10, ttl: 15 * time.Second}.test(t)
	})
	t.Run("resharded with 256 MiB, as many as a partition takes", func(t *testing.T) {
		parkedLoad{bytes: 256 << 20, payload: 2700, ttl: 15 * time.Second}.test(t)
	})
	t.Run("a million", testAMillion)
}

// testAMillion: what is parked slows down neither those who enqueue nor those who run.
func testAMillion(t *testing.T) {
	for _, partitions := range []int{1, 8} {
		var enqueued, drained [2]float64
		for round := range 2 {
			for i, parked := range []int{10_000, 1_000_000} {
				e, d := rates(t, partitions, parked)
				t.Logf("round %d, %d partitions, %d parked: %.0f enqueued and %.0f run per second", round, partitions, parked, e, d)
				enqueued[i], drained[i] = max(enqueued[i], e), max(drained[i], d)
			}
		}
		e, d := enqueued[1]/enqueued[0], drained[1]/drained[0]
		t.Logf("%d partitions, 1,000,000 parked beside 10,000: enqueued at %.2f, run at %.2f of the rate", partitions, e, d)
		require.Greater(t, min(e, d), 0.8)
	}
}

// rates are how many messages are enqueued, and run, per second, beside so many.
func rates(t *testing.T, partitions, parked int) (enqueued, ran float64) {
	t.Helper()
	const some = 50_000
	s := redistest.Start(t)
	b := setup(t, redistest.Real(t))
	b.rdb = redistest.Client(t, &redis.Options{Addr: s.Addr})
	b.queue = b.newQueue(b.rdb, delayqueue.WithMaxDepth(1<<22), delayqueue.WithMaxDepthPerKey(1<<22), delayqueue.WithPartitions(partitions))
	defer s.Kill()
	b.park(parked, 64)
	began := time.Now()
	b.park(some, 64)
	enqueued = some / time.Since(began).Seconds()
	var runs atomic.Int64
	done, once := make(chan struct{}), sync.Once{}
	began = time.Now()
	w := b.start(func(context.Context, delayqueue.Message) error {
		if runs.Add(1) == some/5 {
			once.Do(func() { close(done) })
		}
		return nil
	}, delayqueue.WithConcurrency(64))
	<-done
	ran = some / 5 / time.Since(began).Seconds()
	require.NoError(t, w.Stop(t.Context()))
	return enqueued, ran
}
