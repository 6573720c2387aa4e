package history

import (
	"fmt"
	"slices"
	"time"
)

// Failover is when a replica took the place of a primary. What the old primary did last, the
// promoted server never had. Between From and To both may have served clients.
type Failover struct {
	// The promoted server has all that was answered before From.
	From int64
	// The old primary serves nobody after To.
	To int64
	// Every client could know of the new primary by then, and its renewals go there so much later.
	Followed int64
	Margin   time.Duration
	// Grants are what the promoted server has heard of or granted, by key: up to Read, and
	// what was answered after the failover before this one at least.
	Grants map[string][]Stored
	Read   int64
}

// Stored is a grant as a server has it.
type Stored struct {
	Client int
	Fence  int64 // of the first lease under it
	Until  int64 // the end of its lease, as far as this server was told
}

// A process gives a grant from call to call with consecutive fences, no more than so many in the time that it may, with
// some to spare. Another grant to it takes more microseconds, and so is that many fences away.
const (
	passedOn    = 256
	passedOnFor = 100 * time.Millisecond
)

// find returns the grant that op's lease is of.
func (f *Failover) find(op Op) (found Stored, ok bool) {
	for _, g := range f.Grants[op.Key] {
		if g.Client == op.Client && g.Fence > found.Fence && (g.Fence == op.Fence || op.alone() && g.Fence <= op.Fence && op.Fence < g.Fence+passedOn) {
			found, ok = g, true
		}
	}
	return found, ok
}

// touches reports whether both servers may have served a key while the op mattered.
func (f *Failover) touches(op Op) bool {
	return op.Call < f.To && (op.Outcome == Unknown || max(op.Return, op.Alive, op.Over) > f.From)
}

// Apart is what failovers explain of a history, and what is left.
type Apart struct {
	// Ops is the history without the lost grants. The windows of shortened ones end where the
	// promoted server's lease did.
	Ops []Op
	// Lost are grants that the promoted server never had, and Shortened those whose latest renewals it never had, so
	// that it let them end earlier. What their holders did until they were told may overlap with its own grants.
	Lost, Shortened []Op
	// Told is how long after clients could follow the last of their holders was told.
	Told time.Duration
	// Violations are what no failover explains of these.
	Violations []Violation
}

// SetApart looks at each grant from around a failover. The promoted server tells which of them it never had. Such a
// grant's holder has to be told by its next renewal, which is due a third of its lease after it can have followed. The
// lost grants have to fit those before From, as the old primary has made all of these.
func SetApart(ops []Op, failovers []Failover) Apart {
	a := Apart{Ops: slices.Clone(ops)}
	for i := range failovers {
		f := &failovers[i]
		lost := len(a.Lost)
		a.Ops = slices.DeleteFunc(a.Ops, func(op Op) bool { return a.judge(f, op) })
		for i := range a.Ops {
			a.shorten(f, &a.Ops[i])
		}
		old := slices.Clone(a.Lost[lost:])
		for _, op := range a.Ops {
			if op.granted() && op.Return < f.From {
				op.Alive = min(op.Alive, f.From)
				old = append(old, op)
			}
		}
		a.Violations = append(append(a.Violations, Windows(old, Rules{})...), Fences(old, nil)...)
	}
	return a
}

// judge reports whether a grant was lost in a failover.
func (a *Apart) judge(f *Failover, op Op) bool {
	if !op.granted() || max(op.Return, op.Alive) <= f.From || op.Return >= f.Read {
		return false
	}
	g, ok := f.find(op)
	switch {
	case ok && (g.Until > op.Seen || g.Until >= f.Read):
		return false
	case !ok && op.Return < f.From:
		a.report(op, "the promoted server has what came after it, and not this grant")
	case !ok && op.Call > f.To+int64(passedOnFor):
		a.report(op, "it was granted after the failover, and not by the promoted server")
	}
	a.Lost = append(a.Lost, op)
	a.told(f, op)
	return true
}

// shorten ends the window of a grant when the promoted server let it end.
func (a *Apart) shorten(f *Failover, op *Op) {
	if !op.granted() || op.Call > f.To || op.Alive <= f.From || op.Return >= f.Read {
		return
	}
	if g, ok := f.find(*op); ok && g.Until < min(op.Alive, f.Read) {
		a.Shortened = append(a.Shortened, *op)
		a.told(f, *op)
		op.Alive = g.Until
	}
}

// told reports a holder that did not hear of its loss in time. Nobody renews its lease after To.
func (a *Apart) told(f *Failover, op Op) {
	a.Told = max(a.Told, time.Duration(op.Alive-f.Followed))
	if by := min(f.To+int64(op.Lease), f.Followed+int64(op.Lease/3+f.Margin)); op.Alive > by {
		a.report(op, fmt.Sprintf("it was lost in a failover, and its holder was not told for %s too long", time.Duration(op.Alive-by)))
	}
}

func (a *Apart) report(op Op, what string) {
	a.Violations = append(a.Violations, Violation{Checker: "failovers", Key: op.Key, What: what, Ops: []Op{op}})
}
