package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// simulated is a lock on leases, and its clients, in steps of time. What its
// clients see is known, and so is what they do not see.
type simulated struct {
	rng   *rand.Rand
	modes []Op // Mode and Limit to choose from
	flaw  string

	now   int64
	fence int64
	holds []simulatedHold
	ops   []*Op
	todo  map[int64][]func() // what happens when
}

type simulatedHold struct {
	op   *Op
	ends int64
}

const (
	simulatedLease = 40
	simulatedLate  = 15
)

func simulate(seed uint64, modes []Op, flaw string) []Op {
	s := &simulated{rng: rand.New(rand.NewPCG(seed, 0)), modes: modes, flaw: flaw, todo: map[int64][]func(){}}
	for client := range 4 {
		s.in(s.upTo(20), func() { s.acquire(client) })
	}
	for ; s.now < 1500; s.now++ {
		s.holds = slices.DeleteFunc(s.holds, func(h simulatedHold) bool { return h.ends <= s.now })
		for len(s.todo[s.now]) > 0 {
			next := s.todo[s.now][0]
			s.todo[s.now] = s.todo[s.now][1:]
			next()
		}
	}
	ops := make([]Op, len(s.ops))
	for i, op := range s.ops {
		ops[i] = *op
	}
	return ops
}

func (s *simulated) upTo(n int64) int64        { return 1 + s.rng.Int64N(n) }
func (s *simulated) chance(percent int) bool   { return s.rng.IntN(100) < percent }
func (s *simulated) in(d int64, f func())      { s.todo[s.now+d] = append(s.todo[s.now+d], f) }
func (s *simulated) again(client int, d int64) { s.in(d, func() { s.acquire(client) }) }

func (s *simulated) call(op Op) *Op {
	op.ID, op.Key, op.Call = int64(len(s.ops)+1), "k", s.now
	s.ops = append(s.ops, &op)
	return &op
}

func (s *simulated) acquire(client int) {
	mode := s.modes[s.rng.IntN(len(s.modes))]
	op := s.call(Op{Client: client, Kind: Acquire, Mode: mode.Mode, Limit: mode.Limit, Lease: simulatedLease})
	if s.chance(15) { // no answer comes, and the request may come late, or never
		if s.chance(70) {
			s.in(s.upTo(5+simulatedLate), func() { s.grant(op) })
		}
		s.in(5, func() {
			op.Return, op.Over = s.now, s.now
			s.again(client, s.upTo(10))
		})
		return
	}
	s.in(s.upTo(4), func() {
		fence, ends := s.grant(op)
		s.in(s.upTo(4), func() {
			op.Return = s.now
			if fence == 0 {
				op.Outcome, op.Over = Conflict, s.now
				s.again(client, s.upTo(10))
				return
			}
			op.Outcome, op.Fence, op.Seen = OK, fence, s.now+1
			s.work(op, ends)
		})
	})
}

func (s *simulated) grant(op *Op) (fence, ends int64) {
	beside := 0
	for _, h := range s.holds {
		if exclude(*h.op, *op) && s.flaw != "no exclusion" {
			return 0, 0
		}
		beside++
	}
	if op.Mode == Counted && beside >= op.Limit && s.flaw != "no limit" {
		return 0, 0
	}
	s.fence++
	if s.flaw == "fences fall" && s.fence%5 == 0 {
		s.fence -= 3
	}
	ends = s.now + simulatedLease
	if s.flaw == "short leases" {
		ends = s.now + simulatedLease/2
	}
	s.holds = append(s.holds, simulatedHold{op, ends})
	if s.flaw == "endless leases" {
		s.holds[len(s.holds)-1].ends = 1 << 40
	}
	return s.fence, s.now + simulatedLease
}

// work holds the key for a while, which may be longer than the lease.
func (s *simulated) work(op *Op, ends int64) {
	s.in(s.upTo(simulatedLease*3/2), func() {
		if alive := min(s.now, ends-1); alive >= op.Seen {
			op.Alive = alive
		}
		op.Over = s.now
		s.again(op.Client, 5+s.upTo(10))
		if s.chance(15) {
			return // it is not given back
		}
		release := s.call(Op{Client: op.Client, Kind: Release, Of: op.ID})
		heard := s.chance(85)
		if !heard && s.chance(50) {
			return // the request is lost
		}
		s.in(s.upTo(3), func() {
			before := len(s.holds)
			if s.flaw == "no release" && before > 0 {
				s.holds[0].ends = s.now + simulatedLease
			} else {
				s.holds = slices.DeleteFunc(s.holds, func(h simulatedHold) bool { return h.op == op })
			}
			outcome := Lost
			if len(s.holds) < before || s.flaw == "no release" {
				outcome = OK
			}
			if heard {
				s.in(1, func() { release.Return, release.Outcome = s.now, outcome })
			}
		})
	})
}

var simulatedModes = map[string][]Op{
	"exclusive": {{}},
	"shared":    {{Mode: Shared}, {Mode: Shared}, {}},
	"counted":   {{Mode: Counted, Limit: 3}},
	"all":       {{}, {Mode: Shared}, {Mode: Counted, Limit: 2}},
}

var simulatedRules = Rules{Late: simulatedLate, Patience: 10 * time.Second}

func TestALockThatKeepsItsPromisesIsNeverBlamed(t *testing.T) {
	t.Parallel()
	for name, modes := range simulatedModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen Counts
			for seed := range uint64(60) {
				ops := simulate(seed, modes, "")
				seen.Add(Count(ops))
				require.Empty(t, Windows(ops, simulatedRules), "seed %d", seed)
				require.Empty(t, Fences(ops, nil), "seed %d", seed)
				violations, undecided := Linear(ops, simulatedRules)
				require.Empty(t, violations, "seed %d", seed)
				require.Zero(t, undecided, "seed %d", seed)
			}
			require.Greater(t, min(seen.Windows, seen.Conflicts, seen.Lost, seen.Unknown), 400, "%+v", seen)
		})
	}
}

func TestALockThatBreaksAPromiseIsBlamed(t *testing.T) {
	t.Parallel()
	for flaw, want := range map[string]verdict{ // false: this checker finds it
		"no exclusion":   {windows: false, fences: false, linear: false},
		"no limit":       {windows: false, fences: true, linear: false},
		"short leases":   {windows: false, fences: true, linear: false},
		"fences fall":    {windows: true, fences: false, linear: false},
		"endless leases": {windows: true, fences: true, linear: false},
		"no release":     {windows: true, fences: true, linear: false},
	} {
		for name, modes := range simulatedModes {
			if flaw == "no limit" && name != "counted" || flaw == "no exclusion" && name == "counted" {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s", flaw, name), func(t *testing.T) {
				t.Parallel()
				got := verdict{true, true, true}
				for seed := range uint64(20) {
					ops := simulate(seed, modes, flaw)
					linear, _ := Linear(ops, simulatedRules)
					got.windows = got.windows && len(Windows(ops, simulatedRules)) == 0
					got.fences = got.fences && len(Fences(ops, nil)) == 0
					got.linear = got.linear && len(linear) == 0
				}
				require.Equal(t, want, got)
			})
		}
	}
}
