//go:build soak

package core_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perkey-go/perkey/internal/test/mutant"
)

// engineMutant is a broken piece of Go, as [mutant.Mutant] describes it, with a workload.
type engineMutant struct {
	name     string
	file     string
	old, new string
	change   func(w *workload)
	faults   map[faultKind]time.Duration
	volatile bool // Redis forgets when it restarts
	failover bool // in place of faults
}

var engineMutants = []engineMutant{
	{
		name: "a lease is trusted past its end", file: "leases.go",
		old: "t.schedule.Set(g, schedule.MomentOf(trust.Until(sent, reply.TTL)), renewAt)",
		new: "if %s {\n\t\t\t\treply.TTL *= 4\n\t\t\t}\n\t\t\tt.schedule.Set(g, schedule.MomentOf(trust.Until(sent, reply.TTL)), renewAt)",
		change: func(w *workload) {
			// One that was stopped goes on within four times its lease.
			w.Fixed, w.Try, w.MinLease, w.MaxLease, w.MaxWork = 0, 100, 180*time.Millisecond, 200*time.Millisecond, 600*time.Millisecond
		},
		faults: map[faultKind]time.Duration{faultBlackhole: 350 * time.Millisecond, faultStop: 250 * time.Millisecond},
	},
	{
		name: "a lease counts from the reply", file: "obtain.go",
		old:    "return trust.Until(req.Sent, a.opts.firstLease())",
		new:    "return trust.Until(map[bool]time.Time{true: time.Now(), false: req.Sent}[%s], a.opts.firstLease())",
		change: func(w *workload) { w.Fixed, w.Overrun, w.Try, w.MaxLease = 100, 50, 100, 120*time.Millisecond },
		faults: map[faultKind]time.Duration{faultDelay: 300 * time.Millisecond},
	},
	{
		name: "an admitted lease counts from the reply", file: "internal/waitqueue/admission.go",
		old: "q.Validity(a.Sent, m.Call.Lease)",
		new: "q.Validity(map[bool]time.Time{true: now, false: a.Sent}[%s], m.Call.Lease)",
		change: func(w *workload) {
			readInCohorts(w)
			w.Keys, w.Fixed, w.Overrun, w.MaxLease = 3, 100, 50, 120*time.Millisecond
		},
		faults: map[faultKind]time.Duration{faultDelay: 300 * time.Millisecond},
	},
	{
		name: "a context does not look at the clock", file: "lease.go",
		old:    "_ = held.grant.locker.leases.check(held) // ends the ctx if it is over",
		new:    "if !%s {\n\t\t_ = held.grant.locker.leases.check(held)\n\t}",
		change: func(w *workload) { w.MaxLease, w.MaxWork, w.Try = 150*time.Millisecond, 500*time.Millisecond, 100 },
		faults: map[faultKind]time.Duration{faultStop: 250 * time.Millisecond},
	},
	{
		name: "a lease that is not ours is kept", file: "leases.go",
		old: "case !reply.Owned:",
		new: "case !reply.Owned && !%s:",
		change: func(w *workload) {
			// The lease outlasts the restart, and the work the lease.
			w.Fixed, w.Try, w.MinLease, w.MaxLease, w.MaxWork = 0, 100, 250*time.Millisecond, 350*time.Millisecond, 1500*time.Millisecond
		},
		faults: map[faultKind]time.Duration{faultRestart: 400 * time.Millisecond}, volatile: true,
	},
	{
		name: "a release is not sent", file: "lease.go",
		old:    "switch owned, err = owner.releaseGrant(ctx, l.grant, keptUntil, now); {",
		new:    "switch owned, err = %[1]s, nil; {\n\t\tcase %[1]s:\n\t\tdefault:\n\t\t\towned, err = owner.releaseGrant(ctx, l.grant, keptUntil, now)\n\t\t}\n\t\tswitch {",
		change: func(w *workload) { w.Try = 100 },
	},
}

// failoverMutants take some seconds for each try. An empty file: the piece of the same name above is broken.
var failoverMutants = []engineMutant{
	{
		name: "renewals stay with the old primary", file: "../internal/dedicated/dedicated.go", failover: true,
		old: "if c.origin == nil ||",
		new: "if %s || c.origin == nil ||",
	},
	{name: "a lease that is not ours is kept", failover: true},
}

// testedMutants are caught by tests, in no time.
var testedMutants = []mutant.Mutant{
	{Name: "the period of a run is not kept", File: "once.go", Old: "lease.minHold = o.minHold", New: "if !%s {\n\t\t\t\tlease.minHold = o.minHold\n\t\t\t}", Tests: "^TestOnce_EachTick"},
	{Name: "a period lasts for all of every", File: "once.go", Old: "o.minHold = every - every/10", New: "o.minHold = map[bool]time.Duration{true: every, false: every - every/10}[%s]", Tests: "^TestOnce_EachTick"},
	{Name: "a failed run keeps its period", File: "once.go", Old: "lease.minHold = 0\n", New: "if !%s {\n\t\tlease.minHold = 0\n\t}\n", Tests: "^TestOnce_AFailedRun"},
	{Name: "a split vote leaves a tick out", File: "once.go", Old: "if !l.store.Queues() {", New: "if !l.store.Queues() && !%s {", Tests: "^TestOnce_ASplitVote"},
	{Name: "a release that failed ends a MinHold", File: "lease.go", Old: "owner.cancel(l.grant, keptUntil)", New: "owner.cancel(l.grant, map[bool]time.Time{false: keptUntil}[%s])", Tests: "^TestOnce_APeriodSurvives"},
	{Name: "a MinHold counts from when Redis is back", File: "internal/store/release.go", Old: "// as of this try\n", New: "\n\tif %s && keep > 0 {\n\t\tkeep += 3 * time.Second\n\t}\n", Tests: "^TestOnce_APeriodSurvives"},
	{Name: "a release hides the cause of the caller's ctx", File: "ending.go", Old: "if e.parent.Err() != nil {", New: "if e.parent.Err() != nil && !%s {", Tests: "^TestLease_ContextIsAskedAfter"},
	{Name: "the cause of a ctx is its caller's", File: "ending.go", Old: "key == cancellationKey", New: "key == cancellationKey && !%s", Tests: "^TestLease_ContextIsAskedAfter"},
	{Name: "a leader leads on after a Shutdown", File: "lead.go", Old: "lease.cancel(store.Closed", New: "if %s {\n\t\t\treturn\n\t\t}\n\t\tlease.cancel(store.Closed", Tests: "^TestLead_HandsOver"},
	{Name: "who lost a lease is no candidate", File: "lead.go", Old: "if lost == nil {", New: "if lost == nil || %s {", Tests: "^TestLead_(ADeaf|GoesOn)"},
	{Name: "no candidate waits for a Redis that is away", File: "lead.go", Old: "kind != OutcomeUnavailable &&", New: "(kind != OutcomeUnavailable || %s) &&", Tests: "^TestLead_GoesOn"},
	{Name: "candidates do not pause", File: "lead.go", Old: "backoff.Full(failures, leadPauseMin, leadPauseMax)", New: "map[bool]time.Duration{false: backoff.Full(failures, leadPauseMin, leadPauseMax), true: leadPauseMin / 2}[%s]", Tests: "^TestLead_GoesOn"},
	{Name: "a refusal of which nobody has heard for long", File: "obtain.go", Old: "if failure == nil && decision.kind == decideReject {", New: "if failure == nil && decision.kind == decideReject && !%s {", Tests: "^TestBlackhole_EveryPath"},
	{Name: "a call is shed without a word from Redis", File: "obtain.go", Old: "if err := a.heard(); err != nil {", New: "if err := a.heard(); err != nil && !%s {", Tests: "^TestBlackhole_EveryPath"},
	{Name: "a release waits for as long as its client", File: "internal/store/command.go", Old: "return !d.patient && b.heardLately()", New: "return (!d.patient || %s) && b.heardLately()", Tests: "^TestBlackhole_AnExtension"},
	{Name: "what is in flight is not given up", File: "internal/store/health.go", Old: "close(*b.lost.Swap(new(make(chan struct{}))))", New: "if lost := b.lost.Swap(new(make(chan struct{}))); !%s {\n\t\tclose(*lost)\n\t}", Tests: "^TestBlackhole_AnExtension"},
	{Name: "a try that was not sent hides one that ran", File: "internal/store/command.go", Old: "if r.err != nil && c.ran {", New: "if r.err != nil && c.ran && !%s {", Tests: "^TestRetried_"},
}

func (m engineMutant) round() soakRound {
	if m.failover {
		round := failovers(1)
		round.Way, round.Abrupt = faultIsolation, true
		return round
	}
	round := soakRound{
		Length: 1200 * time.Millisecond, Clients: 4, Workload: lively,
		Faults: m.faults, Durable: !m.volatile, Abrupt: true,
	}
	round.Workload.Epoch, round.Workload.MaxIdle = time.Hour, 10*time.Millisecond
	m.change(&round.Workload)
	return round
}

// buildBroken builds clients with all the engine's mutants.
func buildBroken(t *testing.T) (binary string) {
	t.Helper()
	var all []mutant.Mutant
	for _, m := range slices.Concat(engineMutants, failoverMutants) {
		if m.file == "" {
			continue
		}
		all = append(all, mutant.Mutant{Name: m.name, File: m.file, Old: m.old, New: m.new})
	}
	return mutant.Build(t, append(all, testedMutants...))
}

func TestEngine_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	binary := testEngineMutants(t, engineMutants)
	for _, m := range testedMutants {
		t.Run(m.Name, func(t *testing.T) { mutant.Run(t, binary, m.Name, m.Tests) })
	}
}

func testEngineMutants(t *testing.T, mutants []engineMutant) (binary string) {
	t.Helper()
	binary = buildBroken(t)
	var caught atomic.Int64
	t.Run("engine", func(t *testing.T) {
		for _, m := range mutants {
			t.Run(m.name, func(t *testing.T) {
				round := m.round()
				round.Binary, round.Broken = binary, m.name
				ops := 0
				for try := uint64(0); try < tries || ops < getAway && try < 10*tries; try++ {
					round.Seed = soakSeed() + try
					result := round.run(t)
					if result.undone {
						continue
					}
					found, first, _ := tell(result.ops, result.rules)
					if len(found) > 0 {
						t.Logf("%s, play %d: caught by operation %d: %v (seed %d)", m.name, try+1, ops+first, found, round.Seed)
						caught.Add(1)
						return
					}
					ops += len(result.ops)
				}
				t.Errorf("not caught in %d operations", ops)
			})
		}
	})
	t.Logf("mutants caught: %d of %d", caught.Load(), len(mutants))
	return binary
}

func TestEngine_RoundsOfMutantsFindNothing(t *testing.T) {
	t.Parallel()
	for _, m := range engineMutants {
		t.Run(m.name, func(t *testing.T) {
			round := m.round()
			round.Seed = soakSeed()
			result := round.run(t)
			_, _, violations := tell(result.ops, result.rules)
			for _, v := range violations {
				t.Errorf("seed %d: %s", round.Seed, v)
			}
		})
	}
}
