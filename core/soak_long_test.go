//go:build soak

package core_test

import (
	"flag"
	"testing"
	"time"
)

// The suite of make soak-locks. make test-all runs all of it in short.

var soakOps = flag.Int("ops", 10_000_000, "how many operations the rounds come to at least")

// forLong makes more of a round: more calls at the same time, and as many faults for each. A crowded round
// is no longer than among the other tests, since the checkers try all orders of calls that overlap.
func (round soakRound) forLong() soakRound {
	if !round.Crowded {
		round.Length, round.Goroutines = 20*time.Second, 96
		round.Workload.Keys, round.Workload.MaxIdle = 128, 2*time.Millisecond
	}
	return round
}

func TestSoak(t *testing.T) {
	for name, round := range soakRounds() {
		t.Run(name, func(t *testing.T) { round.forLong().test(t, *soakOps*round.Share/100) })
	}
	t.Run("failovers around clients", func(t *testing.T) {
		round := failovers(6)
		if total := soak(t, round, *soakOps*round.Share/100); !t.Failed() {
			requireFailovers(t, total)
		}
	})
	t.Run("subsets of quorums", func(t *testing.T) {
		for _, many := range []int{3, 4, 5} {
			testSubsets(t, many, casesOf(many))
		}
	})
	t.Run("failovers", func(t *testing.T) { testFailovers(t, 10) })
	t.Run("plays of mutants", TestScripts_PlaysOfMutantsFindNothing)
	t.Run("mutants of scripts", TestScripts_MutantsAreCaught)
	t.Run("mutants of reservations", TestReservation_MutantsAreCaught)
	t.Run("rounds of engine mutants", TestEngine_RoundsOfMutantsFindNothing)
	t.Run("mutants of the engine", TestEngine_MutantsAreCaught)
	t.Run("mutants of failovers", func(t *testing.T) { testEngineMutants(t, failoverMutants) })
}
