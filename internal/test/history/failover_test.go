package history_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/history"
)

// held is a grant to a client with a lease of 300 ms, its window in ms.
func held(id int64, client int, fence, seen, alive int64) history.Op {
	const ms = int64(time.Millisecond)
	return history.Op{
		ID: id, Client: client, Kind: history.Acquire, Key: "k", Lease: 300 * time.Millisecond, Outcome: history.OK, Fence: fence,
		Call: (seen - 1) * ms, Return: seen * ms, Seen: seen * ms, Alive: alive * ms, Over: (alive + 1) * ms,
	}
}

// TestFailovers is long since most of it is a table.
func TestFailovers(t *testing.T) {
	t.Parallel()
	ms := int64(time.Millisecond)
	// From 1000 to 1200 both serve; holders are told by 1250 + 300/3 + 50 = 1400.
	failover := func(stored ...history.Stored) history.Failover {
		for i := range stored {
			stored[i].Until *= ms
		}
		return history.Failover{
			From: 1000 * ms, To: 1200 * ms, Followed: 1250 * ms, Margin: 50 * time.Millisecond, Read: 3000 * ms,
			Grants: map[string][]history.Stored{"k": stored},
		}
	}
	own := history.Stored{Client: 2, Fence: 9000, Until: 2000}
	ours := held(9, 2, 9000, 1300, 1500)
	for name, c := range map[string]struct {
		ops             []history.Op
		stored          []history.Stored
		lost, shortened int
		violations      []string // their checkers
	}{
		"a lost grant may overlap with a later one": {
			ops: []history.Op{held(1, 1, 5000, 1100, 1390), ours}, stored: []history.Stored{own}, lost: 1,
		},
		"its holder is to be told": {
			ops: []history.Op{held(1, 1, 5000, 1100, 1410), ours}, stored: []history.Stored{own}, lost: 1, violations: []string{"failovers"},
		},
		"a grant that is not lost may not": {
			ops:    []history.Op{held(1, 1, 5000, 1100, 1390), ours},
			stored: []history.Stored{own, {Client: 1, Fence: 5000, Until: 1500}}, violations: []string{"windows"},
		},
		"nor one that was passed on": {
			ops:    []history.Op{held(1, 1, 5003, 1100, 1390), ours},
			stored: []history.Stored{own, {Client: 1, Fence: 5000, Until: 1500}}, violations: []string{"windows"},
		},
		"another client's was not passed on": {
			ops:    []history.Op{held(1, 3, 5003, 1100, 1390), ours},
			stored: []history.Stored{own, {Client: 1, Fence: 5000, Until: 1500}}, lost: 1,
		},
		"a shortened one may from its end": {
			ops:    []history.Op{held(1, 1, 5000, 900, 1390), ours},
			stored: []history.Stored{own, {Client: 1, Fence: 5000, Until: 1290}}, shortened: 1,
		},
		"and not before": {
			ops:    []history.Op{held(1, 1, 5000, 900, 1390), ours},
			stored: []history.Stored{own, {Client: 1, Fence: 5000, Until: 1310}}, shortened: 1, violations: []string{"windows"},
		},
		"and its holder is to be told": {
			ops:    []history.Op{held(1, 1, 5000, 900, 1450), ours},
			stored: []history.Stored{own, {Client: 1, Fence: 5000, Until: 1290}}, shortened: 1, violations: []string{"failovers"},
		},
		"what is passed on after its end is lost": {
			ops:    []history.Op{held(1, 1, 5001, 1295, 1390), ours},
			stored: []history.Stored{own, {Client: 1, Fence: 5000, Until: 1290}}, lost: 1,
		},
		"what is older than the failover is not lost": {
			ops: []history.Op{held(1, 1, 5000, 900, 1100)}, lost: 1, violations: []string{"failovers"},
		},
		"nor what is younger": {
			ops: []history.Op{held(1, 1, 5000, 1310, 1350)}, lost: 1, violations: []string{"failovers"},
		},
		"lost grants exclude one another": {
			ops: []history.Op{held(1, 1, 5000, 1100, 1150), held(2, 3, 6000, 1120, 1160)}, lost: 2, violations: []string{"windows"},
		},
		"and those before them": {
			ops:    []history.Op{held(1, 1, 5000, 980, 1050), held(2, 3, 4000, 1100, 1160)},
			stored: []history.Stored{{Client: 1, Fence: 5000, Until: 1500}}, lost: 1, violations: []string{"fences", "fences"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			apart := history.SetApart(c.ops, []history.Failover{failover(c.stored...)})
			require.Len(t, apart.Lost, c.lost)
			require.Len(t, apart.Shortened, c.shortened)
			require.Len(t, apart.Ops, len(c.ops)-c.lost)
			var found []string
			for _, v := range append(apart.Violations, history.Windows(apart.Ops, history.Rules{})...) {
				found = append(found, v.Checker)
			}
			require.ElementsMatch(t, c.violations, found, "%v", apart.Violations)
		})
	}
}

// Of a key that was used during a failover no order is asked for, only that fences grow.
func TestFailoversAndLinear(t *testing.T) {
	t.Parallel()
	ms := int64(time.Millisecond)
	refused := history.Op{ID: 2, Client: 2, Kind: history.Acquire, Key: "k", Outcome: history.Conflict, Call: 1300 * ms, Return: 1301 * ms}
	for _, c := range []struct{ seen, alive int64 }{{800, 900}, {1100, 1150}} {
		before := held(1, 1, 5000, c.seen, c.alive)
		release := history.Op{ID: 3, Client: 1, Kind: history.Release, Key: "k", Of: 1, Outcome: history.OK, Call: (c.alive + 1) * ms, Return: (c.alive + 2) * ms}
		rules := history.Rules{Failovers: []history.Failover{{From: 1000 * ms, To: 1200 * ms}}}
		violations, _ := history.Linear([]history.Op{before, release, refused}, rules)
		require.Equal(t, c.seen == 1100, len(violations) == 0, "a refusal without a holder")
	}
}
