//go:build soak

package delayqueue_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What goes wrong around the queue. What goes wrong with a network, with clients and with scripts is played by the worlds of module sim,
// and so is what becomes of messages that fail, are delayed or cancelled, and of calls beside them.
const (
	faultKill    = "kill"    // kill -9 of a worker; another one starts
	faultReshard = "reshard" // a partition, or the manifest, moves to another node, slowly or not
	faultRestart = "restart" // kill -9 of Redis, which starts again on its data
	faultStop    = "stop"    // SIGSTOP of a worker for longer than its leases
)

// chaos is a round: enqueuers and worker processes on one queue, while things go wrong.
type chaos struct {
	Messages, Keys, Workers, Partitions int
	Lease                               time.Duration // of claims and locks
	Cluster                             *redistest.Cluster
	Faults                              map[string]time.Duration // about how often
}

type chaosRunner struct {
	chaos
	t       *testing.T
	seed    uint64
	server  *redistest.Server
	direct  redis.UniversalClient
	config  chaosConfig
	dir     string
	slots   []*redistest.Process
	files   []string
	account *account

	mu   sync.Mutex
	sent []*sent
}

// seedFlag replays the choices of a round. What the network and the scheduler do between them is not replayed.
var seedFlag = flag.Uint64("seed", 0, "of the faults; 0: a new one")

// soak runs rounds until they came to so many messages, and to enough to show anything.
func (c chaos) soak(t *testing.T, messages int, enough func(a *account) bool) {
	t.Helper()
	const most = 6 // times that a round may be repeated until enough happened
	total, seed := &account{faults: map[string]int{}}, cmp.Or(*seedFlag, rand.Uint64N(1e9)+1)
	for n := 0; total.messages < messages || n < most && !enough(total); n++ {
		if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			a := c.run(t, seed)
			t.Logf("%d messages, faults %v, %d unknown enqueues, %d duplicates", a.messages, a.faults, a.unknown, a.duplicates)
			for _, v := range a.violations[:min(10, len(a.violations))] {
				t.Errorf("seed %d: %s", seed, v)
			}
			total.add(a)
		}) {
			return
		}
		seed++
	}
	require.True(t, enough(total), "too little happened")
}

// run runs a round and returns its account.
func (c chaos) run(t *testing.T, seed uint64) *account {
	t.Helper()
	defer redistest.Busy()()
	const enqueuers = 8
	r := &chaosRunner{chaos: c, t: t, seed: seed, dir: t.TempDir(), account: &account{faults: map[string]int{}}}
	r.config = chaosConfig{Partitions: cmp.Or(c.Partitions, 1), Lease: c.Lease}
	if c.Cluster != nil {
		rdb := c.Cluster.Client(t)
		r.config.Addrs = rdb.Options().Addrs
		require.NoError(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
			return node.FlushAll(ctx).Err() // of the round before
		}))
	} else {
		r.server = redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
		r.config.Addrs = []string{r.server.Addr}
	}
	r.direct = r.config.client()
	t.Cleanup(func() { _ = r.direct.Close() })
	r.slots = make([]*redistest.Process, c.Workers)
	for slot := range r.slots {
		r.start(slot)
	}

	var enqueues, faults sync.WaitGroup
	for i := range enqueuers {
		enqueues.Go(func() { r.enqueue(i, enqueuers) })
	}
	stop := make(chan struct{})
	faults.Go(func() { r.harm(stop) })
	enqueues.Wait()
	r.drain(20*time.Second, int64(c.Messages/10)) // faults go on while the last ones run
	close(stop)
	faults.Wait()
	r.drain(60*time.Second, 0)
	r.finish()
	return r.account
}

// start starts a new worker in a slot.
func (r *chaosRunner) start(slot int) {
	config := r.config
	config.Process = len(r.files) + 1
	config.File = filepath.Join(r.dir, fmt.Sprint(config.Process))
	text, err := json.Marshal(config)
	require.NoError(r.t, err)
	r.slots[slot] = redistest.StartProcess(r.t, "", chaosVar+"="+string(text))
	r.files = append(r.files, config.File)
}

// enqueue stores an enqueuer's share, those of a key one after the other.
func (r *chaosRunner) enqueue(who, of int) {
	rng := rand.New(rand.NewPCG(r.seed, uint64(who)))
	rdb := r.config.client()
	defer func() { _ = rdb.Close() }()
	q, err := r.config.queue(rdb)
	must(err)
	for i := who; i < r.Messages; i += of {
		m := &sent{id: fmt.Sprint("m", i), key: fmt.Sprint("key", who+of*rng.IntN(max(1, r.Keys/of))), place: i}
		job := delayqueue.Job{ID: m.id, Payload: payloadOf(m.id)}
		switch dice := rng.IntN(1000); {
		case dice < 100:
			m.key = ""
		case dice < 103:
			job.Name = "slow"
		}
		job.Key = m.key
		for try := 0; !m.known && try < 200; try++ {
			_, err := q.Enqueue(context.Background(), job)
			if m.known = err == nil; m.known {
				break
			}
			r.mu.Lock()
			r.account.unknown++
			r.mu.Unlock()
			if !errors.Is(err, core.ErrUnavailable) {
				panic(err)
			}
			if rng.IntN(10) == 0 {
				break // never to be known
			}
			time.Sleep(20 * time.Millisecond)
		}
		r.mu.Lock()
		r.sent = append(r.sent, m)
		r.mu.Unlock()
	}
}

// harm makes things go wrong until it is stopped.
func (r *chaosRunner) harm(stop <-chan struct{}) {
	rng, next := rand.New(rand.NewPCG(r.seed, 1<<32)), map[string]time.Time{}
	for kind, often := range r.Faults {
		next[kind] = time.Now().Add(often)
	}
	for {
		kind := slices.MinFunc(slices.Sorted(maps.Keys(next)), func(a, b string) int { return next[a].Compare(next[b]) })
		select {
		case <-stop:
			return
		case <-time.After(time.Until(next[kind])):
			r.account.faults[kind]++
			r.harmOnce(kind, rng)
			next[kind] = next[kind].Add(r.Faults[kind]/2 + time.Duration(rng.Int64N(int64(r.Faults[kind]))))
		}
	}
}

func (r *chaosRunner) harmOnce(kind string, rng *rand.Rand) {
	slot := rng.IntN(len(r.slots))
	switch kind {
	case faultKill:
		r.slots[slot].Kill()
		r.start(slot)
	case faultStop:
		r.slots[slot].Signal(syscall.SIGSTOP)
		time.Sleep(r.Lease * 3 / 2)
		r.slots[slot].Signal(syscall.SIGCONT)
	case faultRestart:
		r.server.Kill()
		r.server.Restart(r.t)
	case faultReshard:
		bases := append(r.config.bases(), "p:queue:{q}")
		base := bases[rng.IntN(len(bases))]
		slot := r.Cluster.Migrate(r.t, base, r.Cluster.AnotherThan(r.t, base))
		pause := time.Duration(rng.Int64N(int64(r.Lease / 4))) // some last for longer than claims do
		for moved := 1; moved > 0; moved = slot.MoveSome(r.t, 1) {
			time.Sleep(pause)
		}
		slot.Finish(r.t)
	}
}

// bases are what the names of the partitions' keys begin with.
func (c chaosConfig) bases() (bases []string) {
	if c.Partitions == 1 {
		return []string{"p:queue:{q}"}
	}
	for i := range c.Partitions {
		bases = append(bases, fmt.Sprintf("p:queue:{q/%d.%d}", i+1, c.Partitions))
	}
	return bases
}

// drain waits until no more than so many messages are open.
func (r *chaosRunner) drain(most time.Duration, left int64) {
	var open int64
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		answered := true
		open = 0
		for _, base := range r.config.bases() {
			n, err := r.direct.HLen(context.Background(), base+":m").Result()
			open, answered = open+n, answered && err == nil
		}
		if answered && open <= left {
			return
		}
	}
	r.t.Logf("%d messages are open after %s", open, most)
}

// finish ends the workers, reads what became of everything, and checks it.
func (r *chaosRunner) finish() {
	for _, w := range r.slots {
		w.Finish()
	}
	for _, w := range r.slots {
		w.Wait(r.t)
	}
	q, err := r.config.queue(r.direct)
	require.NoError(r.t, err)
	for _, m := range r.sent {
		m.status, err = q.Status(context.Background(), m.id)
		m.found = err == nil
		require.True(r.t, m.found || errors.Is(err, delayqueue.ErrNotFound), err)
	}
	for _, base := range r.config.bases() {
		for _, set := range []string{":z", ":w", ":f"} {
			left, err := r.direct.ZRange(context.Background(), base+set, 0, 5).Result()
			require.NoError(r.t, err)
			if len(left) > 0 {
				r.account.violate("left in %s: %q", base+set, left)
			}
		}
	}
	events, err := readEvents(r.files)
	require.NoError(r.t, err)
	r.account.check(r.sent, events)
}
