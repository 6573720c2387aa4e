package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Rules say what happened around a history, and with it what a lock could keep.
type Rules struct {
	// Late is how long after its sending a command may still run: what the
	// network delayed, what a server did that did not run.
	Late time.Duration
	// Copies says that a command may run once more after its op was answered: it was sent again, and the first copy
	// came late. A refusal then proves no holder, and is not checked.
	Copies bool
	// Line says that calls wait in line, and that a release hands the key to the next. A call may then be refused
	// because of those who wait, as long as somebody holds the key; and one who waits may be handed the key and not
	// hear of it, until that lease is over, and any number of times.
	Line bool
	// Losses are when the server lost its data.
	Losses []Loss
	// Failovers are when another server took its place. SetApart comes before the checkers.
	Failovers []Failover
	// Patience is how long the search for one order may take, for each piece of a key's history. Zero: for ever.
	Patience time.Duration
}

// Loss is when the server lost its data: a grant that was answered before From is
// gone with it, one that was asked for after To is not.
type Loss struct{ From, To int64 }

// Violation is what a lock may not do.
type Violation struct {
	Checker string
	Key     string
	What    string
	Ops     []Op
}

func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: key %q: %s", v.Checker, v.Key, v.What)
	for _, op := range v.Ops {
		fmt.Fprintf(&b, "\n\t%s", op)
	}
	return b.String()
}

// byKey parts a history by key. The order within a key stays.
func byKey(ops []Op) map[string][]Op {
	keys := map[string][]Op{}
	for _, op := range ops {
		keys[op.Key] = append(keys[op.Key], op)
	}
	return keys
}

// Counts is how much a history has to show.
type Counts struct {
	Ops       int // acquires and releases
	Grants    int // acquires that were granted
	Windows   int // of these, how many were seen alive
	Conflicts int
	Lost      int // releases of leases that were over
	Unknown   int // acquires and releases without a known outcome
	Keys      int
}

// Count counts.
func Count(ops []Op) Counts {
	n := Counts{Ops: len(ops)}
	keys := map[string]struct{}{}
	for _, op := range ops {
		keys[op.Key] = struct{}{}
		switch {
		case op.Outcome == Unknown:
			n.Unknown++
		case op.Outcome == Conflict:
			n.Conflicts++
		case op.Outcome == Lost:
			n.Lost++
		case op.granted():
			n.Grants++
			if op.Alive != 0 {
				n.Windows++
			}
		}
	}
	n.Keys = len(keys)
	return n
}

// Add adds what another history showed. Keys of the same name count twice.
func (n *Counts) Add(m Counts) {
	n.Ops += m.Ops
	n.Grants += m.Grants
	n.Windows += m.Windows
	n.Conflicts += m.Conflicts
	n.Lost += m.Lost
	n.Unknown += m.Unknown
	n.Keys += m.Keys
}

// sorted returns the ops that match, in the order of less.
func sorted(ops []Op, match func(Op) bool, order func(a, b Op) int) []Op {
	var some []Op
	for _, op := range ops {
		if match(op) {
			some = append(some, op)
		}
	}
	slices.SortStableFunc(some, order)
	return some
}
