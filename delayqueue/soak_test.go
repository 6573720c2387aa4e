//go:build soak

package delayqueue_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func init() { processes[chaosVar] = chaosProcess }

// seedFlag replays the choices of a round. What the network and the scheduler do between them is not replayed.
var seedFlag = flag.Uint64("seed", 0, "of the faults; 0: a new one")

func chaosSeed() uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return rand.Uint64N(1e9) + 1
}

// soak runs rounds until they came to so many messages, and to enough to show anything, and returns what they came to.
func (c chaos) soak(t *testing.T, messages int, enough func(a *account) bool) *account {
	t.Helper()
	first := chaosSeed()
	seed := first
	total := &account{seed: seed, faults: map[string]int{}, states: map[string]int{}}
	for ; ; seed++ {
		if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			a := c.run(t, seed)
			settleUp(t, a)
			total.add(a)
		}) {
			return total
		}
		if n := seed - first; total.messages >= messages && (enough(total) || n >= mostRounds) {
			t.Log("in all: ", total)
			require.True(t, enough(total), "too little happened")
			return total
		}
	}
}

// mostRounds is how often a round may be repeated until enough happened.
const mostRounds = 6

// soakRound is a round that make soak-queue runs for as long as is asked for. What it shows of every message is shown by the worlds of
// module sim too; these are on real servers and processes.
type soakRound struct {
	chaos
	enough func(a *account) bool
	done   int // how many percent of the messages end so, at least
}

func (r soakRound) test(t *testing.T, messages int) {
	t.Helper()
	a := r.soak(t, messages, r.enough)
	require.GreaterOrEqual(t, a.states["done"]*100, a.messages*r.done)
}

// everything that can go wrong, and about how often.
var everything = map[string]time.Duration{
	faultKill: 300 * time.Millisecond, faultRestart: 900 * time.Millisecond, faultStop: 1500 * time.Millisecond,
	faultLoseReply: 50 * time.Millisecond, faultLoseRequest: 80 * time.Millisecond, faultCut: 300 * time.Millisecond,
	faultDelay: 500 * time.Millisecond, faultFlush: 500 * time.Millisecond, faultSubscribers: 400 * time.Millisecond,
}

// Workers and Redis are killed at random moments, enqueuers meet a bad network, and fresh calls want the same keys.
var faultsRound = soakRound{
	chaos: chaos{
		Messages: 600, Keys: 12, Workers: 3, Lease: 600 * time.Millisecond, Fresh: 2,
		Faults: everything,
	},
	enough: func(a *account) bool {
		return len(a.faults) == len(everything) && a.unknown > 0 && a.duplicates > 0 && a.fresh > 10 &&
			a.states["dead"] > 0 && a.states["expired"] > 0 && a.states["cancelled"] > 0
	},
	done: 80,
}

// One key, four worker processes, which are killed again and again.
var killedRound = soakRound{
	chaos: chaos{
		Messages: 200, Keys: 1, Workers: 4, Lease: 400 * time.Millisecond, Work: 30 * time.Millisecond, Plain: true,
		Faults: map[string]time.Duration{faultKill: 200 * time.Millisecond},
	},
	enough: func(a *account) bool { return a.faults[faultKill] >= 5 && a.duplicates > 0 },
	done:   100,
}

// A worker is stopped for longer than its leases, and goes on.
var stoppedRound = soakRound{
	chaos: chaos{
		Messages: 150, Keys: 3, Workers: 2, Lease: 300 * time.Millisecond, Work: 15 * time.Millisecond, Plain: true, Fresh: 1,
		Faults: map[string]time.Duration{faultStop: 150 * time.Millisecond},
	},
	enough: func(a *account) bool { return a.faults[faultStop] >= 2 && a.late > 0 && a.duplicates > 0 },
	done:   100,
}

var parkedRound = soakRound{
	chaos: chaos{
		Messages: 30, Keys: 3, Workers: 2, Lease: 500 * time.Millisecond, Work: 4 * time.Millisecond, Plain: true, Fresh: 3, Parking: 2,
		Length: 4 * time.Second, SlowLocks: 10 * time.Millisecond, // room for calls between a claim and its lock
		Faults: map[string]time.Duration{faultKill: 700 * time.Millisecond, faultSubscribers: 400 * time.Millisecond},
	},
	enough: func(a *account) bool { return a.fresh > 5 && a.overtaking > 5 },
	done:   100,
}

func testFaultsInACluster(t *testing.T) {
	t.Helper()
	round := chaos{
		Messages: 600, Keys: 12, Workers: 3, Lease: 600 * time.Millisecond, Partitions: 6, Fresh: 1,
		Length:  2 * time.Second,
		Cluster: redistest.StartCluster(t, 3, 0),
		Faults:  map[string]time.Duration{faultKill: 400 * time.Millisecond, faultReshard: 400 * time.Millisecond},
	}
	rdb := round.Cluster.Client(t)
	nodes := map[string]int{}
	var bases []string
	for i := range 6 {
		bases = append(bases, fmt.Sprintf("p:queue:{q/%d.6}", i+1))
	}
	for _, base := range bases {
		node := round.Cluster.NodeOf(t, base)
		nodes[node.Addr]++
	}
	require.Len(t, nodes, 3, "partitions are on every node")
	a := round.run(t, chaosSeed())
	settleUp(t, a)
	require.GreaterOrEqual(t, a.faults[faultKill], 2)
	require.GreaterOrEqual(t, a.faults[faultReshard], 2)
	require.Greater(t, a.states["done"]*10, a.messages*8)
	for _, base := range bases {
		n, err := rdb.HGet(t.Context(), base+":c", "enqueued").Int()
		require.NoError(t, err)
		require.Positive(t, n, base)
	}
}
