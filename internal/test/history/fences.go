package history

import (
	"cmp"
	"fmt"
	"slices"
)

// Fences checks that a key's fences grow with its grants: no two are equal; a grant that was asked for when another had
// been answered has the greater one; and so has the later of two whose holders exclude one another, if their windows
// tell which is the later. This holds across losses of data too; but the window of a grant that was lost can be later
// than that of a grant which came after it.
func Fences(ops []Op, losses []Loss) []Violation {
	var all []Violation
	for key, ops := range byKey(ops) {
		grants := sorted(ops, Op.granted, func(a, b Op) int { return cmp.Compare(a.Fence, b.Fence) })
		report := func(a, b Op, what string) {
			all = append(all, Violation{Checker: "fences", Key: key, What: what, Ops: []Op{a, b}})
		}
		for i := range grants {
			if grants[i].Fence <= 0 {
				report(grants[i], grants[i], "a fence that is not greater than 0")
			}
			if i > 0 && grants[i].Fence == grants[i-1].Fence {
				report(grants[i-1], grants[i], "one fence for two grants")
			}
		}
		// Taken from the greatest fence down, an op must not lie wholly before one
		// that was taken already: it is enough to keep the earliest ends.
		var called, seen, seenAlone span
		for _, op := range slices.Backward(grants) {
			// op has the smaller fence. It must not come after one with a greater.
			if after, ok := called.before(op.Call); ok {
				report(after, op, fmt.Sprintf("the fence went back by %d", after.Fence-op.Fence))
			}
			if op.Alive != 0 && !spans(op, losses) {
				if after, ok := seenAlone.before(op.Seen); ok {
					report(after, op, fmt.Sprintf("the fence went back by %d, by the windows", after.Fence-op.Fence))
				} else if after, ok := seen.before(op.Seen); ok && op.alone() {
					report(after, op, fmt.Sprintf("the fence went back by %d, by the windows", after.Fence-op.Fence))
				}
			}
			if op.Alive != 0 {
				seen.add(op, op.Alive)
				if op.alone() {
					seenAlone.add(op, op.Alive)
				}
			}
			called.add(op, op.Return)
		}
	}
	return all
}

// spans reports whether data was lost between an op's call and the end of its window.
func spans(op Op, losses []Loss) bool {
	return slices.ContainsFunc(losses, func(l Loss) bool { return op.Call < l.To && op.Alive > l.From })
}

// span is the op that ended first of those added.
type span struct {
	op  Op
	end int64
	any bool
}

func (s *span) add(op Op, end int64) {
	if !s.any || end < s.end {
		s.op, s.end, s.any = op, end, true
	}
}

// before returns the op if it ended before at.
func (s *span) before(at int64) (Op, bool) {
	if !s.any {
		return Op{}, false
	}
	return s.op, s.end < at
}
