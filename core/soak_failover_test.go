//go:build soak

package core_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/history"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Ways in which a replica takes the primary's place.
const (
	faultFailover  faultKind = "failover"         // a sentinel is told to
	faultPrimary   faultKind = "primary killed"   // it comes back as a replica
	faultIsolation faultKind = "primary isolated" // the clients still reach it, and it serves them
)

var failoverWays = []faultKind{faultFailover, faultPrimary, faultIsolation}

const failoverLease = 2500 * time.Millisecond

// failoverMargin is how long after every sentinel names the new primary a process's renewals
// may go to the old one: its subscription is checked once a second. The rest is for a busy machine.
const failoverMargin = 2500 * time.Millisecond

// runFailovers runs a round on a Sentinel trio.
func (round soakRound) runFailovers(t *testing.T) soaked {
	t.Helper()
	defer redistest.Busy()()
	r := &soakRunner{
		t: t, round: round, dir: t.TempDir(), sentinel: redistest.StartSentinel(t, redistest.Logged...),
		slots: make([]*soakProcess, round.Clients), dead: map[int]int64{}, soaked: round.soaked(),
	}
	r.sentinel.Calm(t)
	r.sentinel.AllowApp(t)
	for i := range r.slots {
		r.start(i)
	}
	start := time.Now()
	rng := rand.New(rand.NewPCG(round.Seed, 0))
	order := rng.Perm(len(failoverWays))
	for i := 0; i < round.Failovers && !r.soaked.undone; i++ {
		way := cmp.Or(round.Way, failoverWays[order[i%len(order)]])
		r.failOver(way, rng)
		r.soaked.faults[way]++
	}
	time.Sleep(time.Second)
	r.soaked.length = time.Since(start)
	r.finish()
	return r.soaked
}

// failOver has another server become the primary, and notes what that had of the old one's grants.
func (r *soakRunner) failOver(way faultKind, rng *rand.Rand) {
	s := r.sentinel
	for _, replica := range s.Replicas(r.t) {
		replica.AwaitLog(r.t)
	}
	old := s.Primary(r.t)
	begun := history.Now()
	ended := r.beat(old)
	time.Sleep(500*time.Millisecond + upTo(rng, time.Second))
	f := history.Failover{Margin: failoverMargin}
	heal, apart := func() {}, time.Duration(0)
	switch way {
	case faultFailover:
		s.Failover(r.t, rng.IntN(3))
	case faultPrimary:
		old.Kill()
		f.To = history.Now()
		heal = func() {
			old.Restart(r.t)
			s.AllowApp(r.t)
		}
	case faultIsolation:
		_, heal = s.Isolate(r.t, func() {})
		apart = 4*time.Second + upTo(rng, 1500*time.Millisecond)
	}
	promoted := s.AwaitOther(r.t, old)
	f.Followed = history.Now()
	life := promoted.Life(r.t)
	time.Sleep(apart)
	heal()
	f.To = cmp.Or(f.To, <-ended)
	s.AwaitReplicas(r.t)

	// The sentinels of these tests are hasty. One that has not heard of the new primary in time
	// makes it a replica of the old one again: then nobody can tell what had which grant.
	if !strings.HasPrefix(life, "role:master") || promoted.Life(r.t) != life || s.Primary(r.t) != promoted {
		r.t.Logf("%s: the promoted server was %s, is %s", way, life, promoted.Life(r.t))
		r.soaked.undone = true
		return
	}
	at, err := promoted.AppClient(r.t).Get(r.t.Context(), beatKey).Int64()
	require.NoError(r.t, err)
	require.Greater(r.t, at, begun, "the promoted server followed the old one")
	f.From = at
	// A lease that the promoted server does not hear of again is over then.
	time.Sleep(time.Duration(f.From-history.Now()) + failoverLease + 100*time.Millisecond)
	f.Read = history.Now()
	f.Grants = grantsOf(r.t, promoted)
	r.soaked.rules.Failovers = append(r.soaked.rules.Failovers, f)
}

const beatKey = "beat"

// beat writes the time to a primary, again and again. The last that a replica has says what else it has: all from
// before. The channel gets the time at which the server serves nobody any more.
func (r *soakRunner) beat(primary *redistest.Server) <-chan int64 {
	rdb, ended := primary.AppClient(r.t), make(chan int64, 1)
	go func() {
		for {
			err := rdb.Set(context.Background(), beatKey, history.Now(), 0).Err()
			// One that is killed may come back, and wait for its new primary.
			if err != nil && (strings.HasPrefix(err.Error(), "READONLY") || r.t.Context().Err() != nil) {
				ended <- history.Now()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return ended
}

// grantsOf are the grants in a server's log.
func grantsOf(t *testing.T, server *redistest.Server) map[string][]history.Stored {
	t.Helper()
	ahead := time.Now().UnixNano() - history.Now() // of the clock that Redis has
	grants := map[string][]history.Stored{}
	note := func(key string, g history.Stored) {
		g.Until = g.Until*int64(time.Millisecond) - ahead
		i := slices.IndexFunc(grants[key], func(o history.Stored) bool { return o.Fence == g.Fence })
		if i < 0 {
			grants[key] = append(grants[key], g)
		} else {
			grants[key][i].Until = max(grants[key][i].Until, g.Until)
		}
	}
	thin := map[string]history.Stored{} // by key: the lease lasts as long as the record
	server.Log(t, func(command []string) {
		if len(command) < 2 {
			return
		}
		key, ours := strings.CutPrefix(command[1], core.RecordName("p", ""))
		if !ours {
			return
		}
		var g history.Stored
		switch strings.ToUpper(command[0]) {
		case "SET": // KEY VALUE PXAT MS, or KEY VALUE and PEXPIREAT after a rewrite
			_, err := fmt.Sscanf(command[2], "pk2 %s %d %d;", new(string), &g.Fence, &g.Client)
			require.NoError(t, err, command)
			if thin[key] = g; len(command) > 4 {
				_, err = fmt.Sscan(command[4], &g.Until)
				require.NoError(t, err, command)
			}
			note(key, g)
		case "PEXPIREAT":
			var is bool
			if g, is = thin[key]; is {
				_, err := fmt.Sscan(command[2], &g.Until)
				require.NoError(t, err, command)
				note(key, g)
			}
		case "DEL", "UNLINK":
			delete(thin, key)
		case "HSET", "HMSET":
			for field := range slices.Chunk(command[2:], 2) {
				if strings.HasPrefix(field[0], "h:") {
					_, err := fmt.Sscanf(field[1], "%d %d %d;", &g.Until, &g.Fence, &g.Client)
					require.NoError(t, err, field[1])
					note(key, g)
				}
			}
		}
	})
	return grants
}

// failovers is a round whose clients hold their keys across a failover, now and then.
func failovers(many int) soakRound {
	w := lively
	w.Keys, w.Epoch, w.Modes, w.Odd = 24, 4*time.Second, readersAndWriters, sixOrOne
	w.MinLease, w.MaxLease, w.MaxWait, w.MaxIdle = failoverLease, failoverLease, 400*time.Millisecond, 2*time.Millisecond
	w.Fixed, w.Abandon, w.Overrun, w.Deaf, w.Try = 0, 0, 1, 0, 20
	return soakRound{Clients: 4, Goroutines: 48, Workload: w, Failovers: many, Share: 3}
}

// apartTotal is what failovers explained.
type apartTotal struct {
	lost, shortened int
	overlaps        int           // of these with grants of the promoted server
	told            time.Duration // after the sentinels named it: the last holder
}

func (n *apartTotal) add(apart history.Apart, result soaked) {
	n.lost += len(apart.Lost)
	n.shortened += len(apart.Shortened)
	if len(result.rules.Failovers) > 0 {
		n.overlaps += len(history.Windows(result.ops, history.Rules{}))
	}
	n.told = max(n.told, apart.Told)
}

func (n apartTotal) String() string {
	return fmt.Sprintf("%d grants lost, %d shortened, %d overlaps, the last holder told %s after the sentinels",
		n.lost, n.shortened, n.overlaps, n.told.Round(time.Millisecond))
}

// requireFailovers fails a run in which too little happened to show anything.
func requireFailovers(t *testing.T, total soakTotal) {
	t.Helper()
	require.Greater(t, total.counts.Windows*10, total.counts.Grants*8, "grants whose holders were seen at work")
	require.Greater(t, total.counts.Grants, 20*total.apart.lost/10, "grants that were not lost")
	require.Positive(t, total.counts.Conflicts, "refusals")
	require.Positive(t, total.counts.Lost, "lost leases")
	require.Positive(t, total.followers, "grants along with another of their process")
	require.Positive(t, total.apart.lost, "grants that the promoted server never had")
	require.Positive(t, total.apart.overlaps, "of these with its own")
	require.LessOrEqual(t, total.undecided*20, total.counts.Keys, "pieces of history that were too hard to decide on")
	for _, way := range failoverWays {
		require.Positive(t, total.faults[way], way)
	}
}
