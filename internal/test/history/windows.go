package history

import (
	"cmp"
	"fmt"
	"slices"
)

// Windows checks that the windows of holders who exclude one another never overlap, and that no more than its limit
// hold a counted key. A grant from before a loss of data may overlap with later ones, but its context must be over when
// the lease is that it had before the loss. Of a grant from around a loss nothing is asked.
func Windows(ops []Op, rules Rules) []Violation {
	var all []Violation
	for key, ops := range byKey(ops) {
		held := sorted(ops, func(o Op) bool { return o.granted() && o.Alive > o.Seen }, func(a, b Op) int {
			return cmp.Compare(a.Seen, b.Seen)
		})
		held, late := clip(key, held, rules.Losses)
		all = append(all, late...)
		var now []Op // who holds the key, as the time goes on
		for _, op := range held {
			now = slices.DeleteFunc(now, func(o Op) bool { return o.Alive <= op.Seen })
			together := []Op{op}
			for _, o := range now {
				if exclude(o, op) {
					all = append(all, Violation{
						Checker: "windows", Key: key, Ops: []Op{o, op},
						What: fmt.Sprintf("two holders for %d ns", min(o.Alive, op.Alive)-op.Seen),
					})
				} else if op.Mode == Counted {
					together = append(together, o)
				}
			}
			if len(together) > 1 && len(together) > op.Limit {
				all = append(all, Violation{
					Checker: "windows", Key: key, Ops: together,
					What: fmt.Sprintf("%d holders of %d", len(together), op.Limit),
				})
			}
			now = append(now, op)
		}
	}
	return all
}

// clip ends the windows of grants that a loss of data took, and reports those that outlived their lease.
func clip(key string, held []Op, losses []Loss) (clipped []Op, late []Violation) {
	for _, op := range held {
		whole := op
		for _, loss := range losses {
			if op.Call > loss.To || op.Alive <= loss.From {
				continue
			}
			if op.Return < loss.From && whole.Alive > loss.From+int64(op.Lease) {
				late = append(late, Violation{
					Checker: "windows", Key: key, Ops: []Op{whole},
					What: fmt.Sprintf("its lease was lost at %d, and its holder was not told", loss.From),
				})
			}
			op.Alive = loss.From
		}
		if op.Alive > op.Seen {
			clipped = append(clipped, op)
		}
	}
	return clipped, late
}
