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
	"os"
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
	"github.com/perkey-go/perkey/internal/test/history"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What goes wrong around the queue. What goes wrong with a network, with clients and with scripts is played by the worlds of module sim.
const (
	faultKill        = "kill"        // kill -9 of a worker; another one starts
	faultReshard     = "reshard"     // a partition, or the manifest, moves to another node, slowly or not
	faultRestart     = "restart"     // kill -9 of Redis, which starts again on its data
	faultStop        = "stop"        // SIGSTOP of a worker for longer than its leases
	faultSubscribers = "subscribers" // CLIENT KILL TYPE pubsub
)

// chaos is a round: enqueuers, worker processes and fresh calls on one queue, while things go wrong.
type chaos struct {
	Messages, Keys, Workers, Partitions int
	Lease                               time.Duration // of claims and locks
	Plain                               bool          // all messages have a key, and work
	Fresh                               int           // fresh calls at a time, which retry
	Parking                             int           // fresh calls at a time, which are parked on a conflict
	Length                              time.Duration // of the round, at least
	SlowLocks                           time.Duration // how long a worker's locks are under way, at most
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

	mu    sync.Mutex
	sent  []*sent
	fresh []*run
}

// seedFlag replays the choices of a round. What the network and the scheduler do between them is not replayed.
var seedFlag = flag.Uint64("seed", 0, "of the faults; 0: a new one")

// soak runs rounds until they came to so many messages, and to enough to show anything. So many percent of the messages are done, at least.
func (c chaos) soak(t *testing.T, messages, done int, enough func(a *account) bool) {
	t.Helper()
	const most = 6 // times that a round may be repeated until enough happened
	total := newAccount(cmp.Or(*seedFlag, rand.Uint64N(1e9)+1))
	for n := uint64(0); total.messages < messages || n < most && !enough(total); n++ {
		if seed := total.seed + n; !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			a := c.run(t, seed)
			t.Log(a)
			for _, v := range a.violations[:min(10, len(a.violations))] {
				t.Errorf("seed %d: %s", a.seed, v)
			}
			total.add(a)
		}) {
			return
		}
	}
	t.Log("in all: ", total)
	require.True(t, enough(total), "too little happened")
	require.GreaterOrEqual(t, total.states["done"]*100, total.messages*done)
}

// run runs a round and returns its account.
func (c chaos) run(t *testing.T, seed uint64) *account {
	t.Helper()
	defer redistest.Busy()()
	const enqueuers = 8
	r := &chaosRunner{chaos: c, t: t, seed: seed, dir: t.TempDir(), account: newAccount(seed)}
	r.config = chaosConfig{Prefix: "p", Partitions: cmp.Or(c.Partitions, 1), Lease: c.Lease}
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
	if c.SlowLocks > 0 {
		slow := redistest.NewProxy(t, r.server.Addr)
		slow.Delay(func() time.Duration { return rand.N(c.SlowLocks) })
		r.config.Locks = slow.Addr
	}
	r.direct = r.config.client()
	t.Cleanup(func() { _ = r.direct.Close() })
	r.slots = make([]*redistest.Process, c.Workers)
	for slot := range r.slots {
		r.start(slot)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls, enqueues, faults sync.WaitGroup
	for i := range c.Fresh + c.Parking {
		calls.Go(func() { r.call(ctx, i, i < c.Parking) })
	}
	for i := range min(enqueuers, c.Keys) {
		enqueues.Go(func() { r.enqueue(i, min(enqueuers, c.Keys)) })
	}
	stop := make(chan struct{})
	faults.Go(func() { r.harm(stop) })
	ends := time.Now().Add(c.Length)
	enqueues.Wait()
	time.Sleep(time.Until(ends))
	cancel()
	calls.Wait()
	r.drain(20*time.Second, c.Messages/10) // faults go on while the last ones run
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
		m := &sent{id: fmt.Sprint("m", i), key: fmt.Sprint("key", who+of*rng.IntN(max(1, r.Keys/of))), name: nameWork, place: i}
		job := delayqueue.Job{ID: m.id, Payload: payloadOf(m.id)}
		if !r.Plain {
			switch dice := rng.IntN(1000); {
			case dice < 100:
				m.key = ""
			case dice < 130:
				m.name = nameFails
			case dice < 140:
				m.name = namePoison
			case dice < 142:
				m.name = namePanics
			case dice < 145:
				m.name = nameSlow
			case dice < 165:
				job.MaxAge = 50*time.Millisecond + rand.N(200*time.Millisecond)
			case dice < 185:
				job.Delay = rand.N(50 * time.Millisecond)
				m.due = history.Now() + int64(job.Delay)
			}
		}
		job.Key, job.Name = m.key, m.name
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
			if !r.Plain && rng.IntN(10) == 0 {
				break // never to be known
			}
			time.Sleep(20 * time.Millisecond)
		}
		if m.cancelling = m.known && !r.Plain && rng.IntN(50) == 0; m.cancelling && q.Cancel(context.Background(), m.id) == nil {
			m.cancelled = history.Now()
		}
		r.mu.Lock()
		r.sent = append(r.sent, m)
		r.mu.Unlock()
	}
}

// call makes fresh calls. One that is parking has those parked that meet a held key.
func (r *chaosRunner) call(ctx context.Context, who int, parking bool) {
	q, err := r.config.queue(r.direct)
	must(err)
	rdb := r.config.client()
	defer func() { _ = rdb.Close() }()
	locker, err := r.config.locker(rdb)
	must(err)
	defer func() { _ = locker.Close() }()
	guard, over := locker.Guard(core.RejectConflicts), ctx
	if parking {
		guard = locker.Guard(delayqueue.Policy(q))
		ctx = context.WithoutCancel(ctx) // a call that is given up may be stored, and nobody knows
	}
	for over.Err() == nil {
		f := &run{event: event{Kind: eventFresh, Key: fmt.Sprint("key", rand.IntN(r.Keys)), Process: -1 - who}, asked: history.Now()}
		err := guard.Do(ctx, core.Call{Key: f.Key, Name: nameWork, Encode: nothing}, func(ctx context.Context) error {
			lease, _ := core.LeaseFrom(ctx)
			f.Fence = lease.Fence()
			if f.At = history.Now(); ctx.Err() != nil {
				return ctx.Err()
			}
			r.mu.Lock()
			r.fresh = append(r.fresh, f)
			r.mu.Unlock()
			f.alive = f.At
			for until := time.Now().Add(rand.N(chaosWork)); time.Now().Before(until); time.Sleep(500 * time.Microsecond) {
				at := history.Now()
				if ctx.Err() != nil {
					return ctx.Err()
				}
				f.alive = at
			}
			return nil
		})
		if deferred, ok := errors.AsType[*core.DeferredError](err); ok {
			r.mu.Lock()
			r.sent = append(r.sent, &sent{id: deferred.Ticket.ID, key: f.Key, name: nameWork, known: true, deferred: history.Now(), place: -1})
			r.mu.Unlock()
		}
		pause := 4 * time.Millisecond
		if parking { // or nothing but parked calls would run
			pause *= 10
		}
		time.Sleep(rand.N(pause))
	}
}

// harm makes things go wrong until it is stopped.
func (r *chaosRunner) harm(stop <-chan struct{}) {
	type due struct {
		kind string
		at   time.Duration
	}
	rng := rand.New(rand.NewPCG(r.seed, 1<<32))
	var plan []due
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		for at := time.Duration(0); at < 10*time.Minute; {
			at += r.Faults[kind]/2 + time.Duration(rng.Int64N(int64(r.Faults[kind])))
			plan = append(plan, due{kind, at})
		}
	}
	slices.SortStableFunc(plan, func(a, b due) int { return cmp.Compare(a.at, b.at) })
	start := time.Now()
	for _, f := range plan {
		select {
		case <-stop:
			return
		case <-time.After(time.Until(start.Add(f.at))):
			r.account.faults[f.kind]++
			r.harmOnce(f.kind, rng)
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
		bases := append(r.config.bases(), r.config.Prefix+":queue:{q}")
		base := bases[rng.IntN(len(bases))]
		slot := r.Cluster.Migrate(r.t, base, r.Cluster.AnotherThan(r.t, base))
		pause := time.Duration(rng.Int64N(int64(r.Lease / 4))) // some last for longer than claims do
		for moved := 1; moved > 0; moved = slot.MoveSome(r.t, 1) {
			time.Sleep(pause)
		}
		slot.Finish(r.t)
	case faultSubscribers:
		_ = r.direct.Do(r.t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err()
	}
}

// bases are what the names of the partitions' keys begin with.
func (c chaosConfig) bases() (bases []string) {
	if c.Partitions == 1 {
		return []string{c.Prefix + ":queue:{q}"}
	}
	for i := range c.Partitions {
		bases = append(bases, fmt.Sprintf("%s:queue:{q/%d.%d}", c.Prefix, i+1, c.Partitions))
	}
	return bases
}

// drain waits until no more than so many messages are open.
func (r *chaosRunner) drain(most time.Duration, left int) {
	ctx := context.Background()
	var open int64
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		open = 0
		answered := true
		for _, base := range r.config.bases() {
			n, err := r.direct.HLen(ctx, base+":m").Result()
			dead, err2 := r.direct.ZCard(ctx, base+":x").Result()
			open, answered = open+n-dead, answered && err == nil && err2 == nil
		}
		if answered && open <= int64(left) {
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
	r.account.check(r.sent, events, r.fresh)
	if len(r.account.violations) > 0 && os.Getenv("PERKEY_CHAOS_KEEP") != "" {
		_ = os.CopyFS(os.Getenv("PERKEY_CHAOS_KEEP"), os.DirFS(r.dir))
	}
}
