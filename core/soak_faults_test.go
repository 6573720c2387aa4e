//go:build soak

package core_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/history"
	"github.com/perkey-go/perkey/internal/test/mutant"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// faultKind is something that goes wrong around the lock.
type faultKind string

const (
	faultBlackhole   faultKind = "blackhole"    // the network takes and does not give
	faultCut         faultKind = "cut"          // every connection breaks
	faultDelay       faultKind = "delay"        // the network is slow
	faultFlush       faultKind = "flush"        // SCRIPT FLUSH
	faultKill        faultKind = "kill"         // kill -9 of a client; another one starts
	faultLoseReply   faultKind = "lose reply"   // a command runs, and its reply is lost
	faultLoseRequest faultKind = "lose request" // a command is lost, with its connection
	faultPause       faultKind = "pause"        // CLIENT PAUSE
	faultRestart     faultKind = "restart"      // kill -9 of Redis, which starts again
	faultStop        faultKind = "stop"         // SIGSTOP of a client, for longer than its leases
	faultSubscribers faultKind = "subscribers"  // CLIENT KILL TYPE pubsub
)

// faultLength is how long a fault lasts, and how much longer at most.
var faultLength = map[faultKind][2]time.Duration{
	faultBlackhole: {50 * time.Millisecond, 300 * time.Millisecond},
	faultDelay:     {200 * time.Millisecond, 400 * time.Millisecond},
	faultPause:     {50 * time.Millisecond, 250 * time.Millisecond},
	faultStop:      {400 * time.Millisecond, 400 * time.Millisecond},
}

// maxDelay is how long the slow network holds a piece of what passes.
const maxDelay = 60 * time.Millisecond

type fault struct {
	at     time.Duration // since the start
	kind   faultKind
	client int // whom it meets, if it meets one
	length time.Duration
	choice uint64 // what else there is to choose
	ends   bool   // it is the end of the fault
}

// schedule is what goes wrong in a run, and when: a fault of each kind about every
// so often. It depends on nothing but its arguments.
func schedule(seed uint64, run time.Duration, clients int, every map[faultKind]time.Duration) []fault {
	var all []fault
	for i, kind := range slices.Sorted(maps.Keys(every)) {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		gap := every[kind]
		for at := gap/4 + upTo(rng, gap/2); at < run; at += gap*3/4 + upTo(rng, gap/2) {
			f := fault{at: at, kind: kind, client: rng.IntN(clients), choice: rng.Uint64()}
			f.length = faultLength[kind][0] + upTo(rng, faultLength[kind][1])
			all = append(all, f)
			if f.length > 0 {
				f.at, f.ends = at+f.length, true
				all = append(all, f)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return all
}

// soakRound is one run of client processes on a Redis of its own, while things go wrong.
type soakRound struct {
	Seed     uint64
	Length   time.Duration
	Clients  int // processes
	Workload workload
	// Goroutines of a client; zero: 6.
	Goroutines int
	Crowded    bool                        // several calls of a client wait for one key
	Faults     map[faultKind]time.Duration // about how often
	Durable    bool                        // Redis keeps its data when it is killed
	Binary     string                      // of the clients; this one if empty
	Broken     string                      // what is broken in that binary
	Abrupt     bool                        // the clients are killed at the end
	Failovers  int                         // of a Sentinel trio, in place of Faults and Length
	Way        faultKind                   // of all of them; if empty the seed chooses
	Mixed      bool                        // every second client runs the scripts of before thin records
	Share      int                         // of the operations of make soak-locks, in percent
}

// soaked is the result of a round.
type soaked struct {
	ops    []history.Op
	rules  history.Rules
	faults map[faultKind]int
	length time.Duration
	undone bool // a failover was undone: the history shows nothing
}

// soakRunner is a round while it runs. Its methods are for one goroutine.
type soakRunner struct {
	t      *testing.T
	round  soakRound
	dir    string
	server *redistest.Server
	proxy  *redistest.Proxy
	direct *redis.Client
	// In place of the server.
	sentinel *redistest.Sentinel

	slots  []*soakProcess
	files  []string
	dead   map[int]int64 // clients that were killed, and when
	soaked soaked
}

type soakProcess struct {
	*redistest.Process
	client int
}

// run runs the round and returns its history.
func (round soakRound) run(t *testing.T) soaked {
	t.Helper()
	if round.Failovers > 0 {
		return round.runFailovers(t)
	}
	defer redistest.Busy()()
	var args []string
	if round.Durable {
		args = []string{"--appendonly", "yes", "--appendfsync", "always"}
	}
	server := redistest.Start(t, args...)
	r := &soakRunner{
		t: t, round: round, dir: t.TempDir(), server: server,
		proxy: redistest.NewProxy(t, server.Addr),
		direct: redistest.Client(t, &redis.Options{
			Addr: server.Addr, ReadTimeout: 2 * time.Second, // and again: a restart breaks its connections
		}),
		slots:  make([]*soakProcess, round.Clients),
		dead:   map[int]int64{},
		soaked: round.soaked(),
	}
	for i := range r.slots {
		r.start(i)
	}
	r.awaitClients() // a busy machine starts them slowly
	start := time.Now()
	for _, f := range schedule(round.Seed, round.Length, round.Clients, round.Faults) {
		time.Sleep(time.Until(start.Add(f.at)))
		if f.ends {
			r.end(f)
		} else if r.begin(f) {
			r.soaked.faults[f.kind]++
		}
	}
	time.Sleep(time.Until(start.Add(round.Length)))
	r.finish()
	return r.soaked
}

// soaked is that of a round that has not begun.
func (round soakRound) soaked() soaked {
	return soaked{
		// A dead waiter stays in the queue for 20 s, and can be granted the key.
		rules:  history.Rules{Late: 22 * time.Second, Copies: round.Workload.Retries > 0, Line: round.Workload.standsInLine(), Patience: 25 * time.Second},
		faults: map[faultKind]int{}, length: round.Length,
	}
}

// start starts a new client in a slot. Every second slot talks to Redis through the
// proxy, so that those in trouble meet others that are well.
func (r *soakRunner) start(slot int) {
	client := len(r.files) + 1
	config := soakClient{
		Prefix: "p", File: filepath.Join(r.dir, fmt.Sprint(client)),
		Client: client, Seed: r.round.Seed, Goroutines: cmp.Or(r.round.Goroutines, 6), Timeout: 300 * time.Millisecond, Workload: r.round.Workload,
		Older: r.round.Mixed && slot/2%2 == 0, // with both of them behind the proxy, and not
	}
	switch {
	case r.sentinel != nil:
		config.Sentinels = r.sentinel.Addrs()
	case slot%2 == 0:
		config.Addr = r.proxy.Addr
	default:
		config.Addr = r.server.Addr
	}
	text, err := json.Marshal(&config)
	require.NoError(r.t, err)
	r.slots[slot] = &soakProcess{
		redistest.StartProcess(r.t, r.round.Binary, clientVar+"="+string(text), mutant.Var+"="+r.round.Broken), client,
	}
	r.files = append(r.files, config.File)
}

// awaitClients waits until every client works.
func (r *soakRunner) awaitClients() {
	for _, file := range r.files {
		redistest.Eventually(r.t, func() bool {
			info, err := os.Stat(file)
			return err == nil && info.Size() > 0
		}, "a client's first call")
	}
}

// begin makes something go wrong. It reports whether it did.
func (r *soakRunner) begin(f fault) bool {
	ctx := r.t.Context()
	switch f.kind {
	case faultDelay:
		r.proxy.Delay(func() time.Duration { return rand.N(maxDelay) })
	case faultCut:
		r.proxy.Cut()
	case faultLoseRequest:
		r.proxy.LoseRequest(nextOf(f.choice))
	case faultLoseReply:
		r.proxy.LoseReply(nextOf(f.choice))
	case faultBlackhole:
		r.proxy.Blackhole([]redistest.Direction{redistest.Requests, redistest.Replies, redistest.Requests | redistest.Replies}[f.choice%3])
	case faultKill:
		p := r.slots[f.client]
		p.Kill()
		r.dead[p.client] = history.Now()
		r.start(f.client)
	case faultStop:
		r.slots[f.client].Signal(syscall.SIGSTOP)
	case faultSubscribers:
		return r.direct.ClientKillByFilter(ctx, "TYPE", "pubsub").Val() > 0
	case faultFlush:
		return r.direct.ScriptFlush(ctx).Err() == nil
	case faultPause:
		return r.direct.Do(ctx, "CLIENT", "PAUSE", f.length.Milliseconds(), "ALL").Err() == nil
	case faultRestart:
		loss := history.Loss{From: history.Now()}
		r.server.Kill()
		r.server.Restart(r.t)
		if loss.To = history.Now(); !r.round.Durable {
			r.soaked.rules.Losses = append(r.soaked.rules.Losses, loss)
		}
	}
	return true
}

// nextOf matches one request out of the next few that concern a lock.
func nextOf(choice uint64) func([]byte) bool {
	var left atomic.Int64
	left.Store(int64(choice % 8))
	return func(request []byte) bool { return bytes.Contains(request, []byte("lock{}")) && left.Add(-1) == -1 }
}

func (r *soakRunner) end(f fault) {
	switch f.kind {
	case faultDelay:
		r.proxy.Delay(nil)
	case faultBlackhole:
		r.proxy.Blackhole(0)
		if f.choice&4 != 0 {
			r.proxy.Cut() // or the clients have to find out by themselves
		}
	case faultStop:
		r.slots[f.client].Signal(syscall.SIGCONT)
	}
}

// finish lets the clients end their work and reads what they wrote.
func (r *soakRunner) finish() {
	if r.proxy != nil {
		r.proxy.Delay(nil)
		r.proxy.LoseRequest(nil)
		r.proxy.LoseReply(nil)
		r.proxy.Blackhole(0)
	}
	for _, p := range r.slots {
		p.Finish()
	}
	for _, p := range r.slots {
		if r.round.Abrupt {
			p.Kill()
		} else {
			p.Wait(r.t)
		}
		r.dead[p.client] = history.Now()
	}
	ops, err := history.Read(r.files...)
	require.NoError(r.t, err)
	for client, at := range r.dead {
		history.Died(ops, client, at)
	}
	r.soaked.ops = ops
}
