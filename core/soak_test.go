//go:build soak

package core_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/history"
)

// seedFlag replays a schedule of faults. What the network and the scheduler do between them is not replayed.
var seedFlag = flag.Uint64("seed", 0, "of the faults; 0: a new one")

func soakSeed() uint64 {
	if *seedFlag != 0 {
		return *seedFlag
	}
	return rand.Uint64N(1e9) + 1
}

// lively is what clients do while things go wrong around them.
var lively = workload{
	Keys: 3, Epoch: time.Second, Modes: []mode{{}},
	MinLease: 100 * time.Millisecond, MaxLease: 350 * time.Millisecond,
	Fixed: 50, Try: 50, MaxWait: 300 * time.Millisecond,
	Abandon: 5, Overrun: 3, Deaf: 50, MaxWork: 4 * time.Millisecond, MaxIdle: 4 * time.Millisecond,
	Retries: -1,
}

// Modes of a workload, beside the exclusive one.
var (
	readersAndWriters = []mode{{Mode: history.Shared}, {Mode: history.Shared}, {Mode: history.Shared}, {}}
	threeAtATime      = []mode{{Mode: history.Counted, Limit: 3}}
	sixOrOne          = []mode{{Mode: history.Counted, Limit: 6}, {Mode: history.Counted, Limit: 6}, {}}
)

// everything that can go wrong without a loss of data, and how often.
var everything = map[faultKind]time.Duration{
	faultBlackhole:   1200 * time.Millisecond,
	faultCut:         500 * time.Millisecond,
	faultDelay:       1500 * time.Millisecond,
	faultFlush:       700 * time.Millisecond,
	faultKill:        900 * time.Millisecond,
	faultLoseReply:   200 * time.Millisecond,
	faultLoseRequest: 200 * time.Millisecond,
	faultPause:       1700 * time.Millisecond,
	faultRestart:     2500 * time.Millisecond,
	faultStop:        1300 * time.Millisecond,
	faultSubscribers: 600 * time.Millisecond,
}

// soakTotal is what rounds came to.
type soakTotal struct {
	counts     history.Counts
	followers  int
	faults     map[faultKind]int
	violations map[string]int
	undecided  int
	apart      apartTotal
	rounds     int
	undone     int // of them
	elapsed    time.Duration
}

// answered is how many operations had an outcome that is known.
func (n soakTotal) answered() int { return n.counts.Ops - n.counts.Unknown }

func (n soakTotal) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations in %s of work on %d keys: %d grants, %d of them seen at work, %d along with another of their process, %d refusals, %d leases lost, %d unknown outcomes\n",
		n.counts.Ops, n.elapsed, n.counts.Keys, n.counts.Grants, n.counts.Windows, n.followers, n.counts.Conflicts, n.counts.Lost, n.counts.Unknown)
	b.WriteString("faults:")
	for _, kind := range slices.Sorted(maps.Keys(n.faults)) {
		fmt.Fprintf(&b, " %s %d,", kind, n.faults[kind])
	}
	fmt.Fprintf(&b, "\nviolations: windows %d, fences %d, linear %d (%d pieces undecided)",
		n.violations["windows"], n.violations["fences"], n.violations["linear"], n.undecided)
	if n.apart != (apartTotal{}) {
		fmt.Fprintf(&b, ", failovers %d; apart: %s", n.violations["failovers"], n.apart)
	}
	return b.String()
}

// check has all checkers look at a history.
func check(ops []history.Op, rules history.Rules) (found []history.Violation, apart history.Apart, undecided int) {
	apart = history.SetApart(ops, rules.Failovers)
	found, undecided = history.Linear(apart.Ops, rules)
	return slices.Concat(found, history.Windows(apart.Ops, rules), history.Fences(apart.Ops, rules.Losses), apart.Violations), apart, undecided
}

// soak runs rounds until they came to ops operations, and checks each.
func soak(t *testing.T, round soakRound, ops int) soakTotal {
	t.Helper()
	total := soakTotal{faults: map[faultKind]int{}, violations: map[string]int{}}
	seed := soakSeed()
	for ; ; seed++ {
		round.Seed = seed
		var result soaked
		if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { result = round.run(t) }) {
			return total
		}
		if total.rounds++; result.undone {
			total.undone++
			t.Logf("seed %d: the sentinels have undone a failover", seed)
			require.LessOrEqual(t, total.undone, 2+total.rounds/2, "failovers that were undone")
			continue
		}
		total.elapsed += result.length
		total.counts.Add(history.Count(result.ops))
		total.followers += followers(result.ops)
		for kind, n := range result.faults {
			total.faults[kind] += n
		}
		found, apart, undecided := check(result.ops, result.rules)
		total.undecided += undecided
		total.apart.add(apart, result)
		for _, v := range found {
			if total.violations[v.Checker]++; total.violations[v.Checker] <= 3 {
				t.Errorf("seed %d: %s", seed, v)
			}
		}
		if total.answered() >= ops || t.Failed() {
			t.Logf("%s", total)
			return total
		}
	}
}

// followers counts the grants that came along with another one of their process: the fences of
// one admission are consecutive numbers.
func followers(ops []history.Op) (n int) {
	type grant struct {
		client int
		key    string
		fence  int64
	}
	granted := map[grant]bool{}
	for _, op := range ops {
		if op.Kind == history.Acquire && op.Outcome == history.OK && op.Mode != history.Exclusive {
			granted[grant{op.Client, op.Key, op.Fence}] = true
		}
	}
	for g := range granted {
		if g.fence--; granted[g] {
			n++
		}
	}
	return n
}

// requireSubstance fails a run in which too little happened to show anything.
func requireSubstance(t *testing.T, total soakTotal, round soakRound) {
	t.Helper()
	require.Greater(t, total.counts.Windows*10, total.counts.Grants*8, "grants whose holders were seen at work")
	answered := total.answered() // while Redis is down calls fail at once: a slow machine has any number of those
	require.Greater(t, total.counts.Windows*20, answered, "grants")
	require.Greater(t, total.counts.Conflicts*100, answered, "refusals")
	if total.counts.Ops > 10_000 {
		require.Positive(t, total.counts.Lost, "lost leases")
	}
	require.LessOrEqual(t, total.undecided*100, total.counts.Keys, "pieces of history that were too hard to decide on")
	enough := 5000 // permits are admitted together only while nobody else waits
	if slices.Contains(round.Workload.Modes, mode{Mode: history.Shared}) {
		enough = 100
	}
	if round.Crowded && total.counts.Grants > enough {
		require.Positive(t, total.followers, "grants along with another of their process")
	}
	rounds := int(total.elapsed / round.Length)
	for kind, gap := range round.Faults {
		require.GreaterOrEqual(t, total.faults[kind], rounds*max(1, int(round.Length/gap)/3), "faults: %s", kind)
	}
	require.GreaterOrEqual(t, total.counts.Unknown, rounds*len(round.Faults), "unknown outcomes")
}

// crowded has several calls of a client wait for one key.
func (round soakRound) crowded() soakRound {
	round.Crowded, round.Goroutines = true, 10
	round.Workload.Keys, round.Workload.Try, round.Workload.MaxIdle = 3, 20, 12*time.Millisecond
	return round
}

func (round soakRound) test(t *testing.T, ops int) {
	t.Helper()
	if total := soak(t, round, ops); !t.Failed() {
		requireSubstance(t, total, round)
	}
}

// soakRounds are the rounds by what is special in each.
func soakRounds() map[string]soakRound {
	lossless := soakRound{Length: 2500 * time.Millisecond, Clients: 4, Workload: lively, Faults: everything, Durable: true, Share: 30}
	shared, counted, retries, losses, mixed := lossless, lossless, lossless, lossless, lossless
	mixed.Share, mixed.Mixed = 5, true
	mixed.Workload.Modes = []mode{{}, {}, {Mode: history.Shared}}
	shared.Share, shared.Workload.Modes = 25, readersAndWriters
	counted.Share, counted.Workload.Modes = 18, threeAtATime
	readers, permits := shared.crowded(), counted.crowded()
	permits.Workload.Modes = sixOrOne
	readers.Share, permits.Share = 1, 1
	retries.Share, retries.Length = 15, 2*time.Second
	retries.Workload.Retries = 3
	losses.Share, losses.Length, losses.Durable = 5, 2*time.Second, false
	losses.Faults = map[faultKind]time.Duration{faultRestart: 500 * time.Millisecond, faultCut: 700 * time.Millisecond}
	losses.Workload.Epoch = time.Hour // the same keys before and after a loss
	return map[string]soakRound{
		"exclusive": lossless, "shared": shared, "counted": counted,
		"shared, several of a process": readers, "counted, several of a process": permits, "retries": retries, "losses of data": losses,
		"two versions": mixed,
	}
}

func TestFaults_AScheduleOfFaultsDependsOnItsSeedAlone(t *testing.T) {
	t.Parallel()
	faults := func(seed uint64) []fault { return schedule(seed, time.Minute, 4, everything) }
	one, again := faults(1), faults(1)
	require.Equal(t, one, again)
	require.NotEqual(t, one, faults(2))
	seen := map[faultKind]int{}
	for _, f := range one {
		seen[f.kind]++
	}
	for kind, gap := range everything {
		require.Greater(t, seen[kind], int(time.Minute/gap)/2, kind)
	}
}
