package history

import (
	"cmp"
	"hash/maphash"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// lockState is who holds a key. It is not changed: each step makes a new one.
type lockState struct {
	fence int64 // of the last grant
	holds []hold
}

type hold struct {
	id    int64
	mode  Mode
	limit int
	sure  sureness
	gone  int64
	again bool
}

// sureness is what is known of a hold. Where nobody could see which of two things happened, the model leaves it open
// until an answer tells: the search then has nothing to try.
type sureness int8

const (
	// held: nobody who is excluded can be granted the key.
	held sureness = iota
	// fading: it is there until somebody is granted the key that it excludes.
	// Nothing shows whether it ended long before, or then.
	fading
	// possible: a grant that may happen yet. A refusal that nothing else explains shows that it did.
	possible
)

// lockModel is a lock with leases in all its modes: exclusive holders, or shared
// ones, or up to a limit of counted ones.
func lockModel(rules Rules) func(fence int64) porcupine.Model {
	seed := maphash.MakeSeed()
	return func(fence int64) porcupine.Model {
		return porcupine.Model{
			Init: func() any { return lockState{fence: fence} },
			Step: func(state, input, _ any) (bool, any) { return state.(lockState).step(input.(event), rules) },
			Equal: func(a, b any) bool {
				s, t := a.(lockState), b.(lockState)
				return s.fence == t.fence && slices.Equal(s.holds, t.holds)
			},
			Hash: func(state any) uint64 {
				s := state.(lockState)
				h := uint64(s.fence)
				for _, held := range s.holds {
					h = h*31 ^ maphash.Comparable(seed, held)
				}
				return h
			},
		}
	}
}

func (s lockState) step(e event, rules Rules) (bool, lockState) {
	switch e.kind {
	case granted:
		return s.grant(e)
	case refused:
		return s.refuse(e, rules.Line)
	case freed:
		at := s.find(e.id, held)
		if at < 0 {
			return false, s
		}
		return true, s.without(at)
	case weakened:
		at := s.find(e.id, held)
		if at < 0 {
			return false, s
		}
		return true, s.with(at, fading)
	case doubted:
		return true, s.plus(e, possible)
	default: // ended
		at := slices.IndexFunc(s.holds, func(h hold) bool { return h.id == e.id && h.sure != held })
		if at < 0 {
			return true, s
		}
		return true, s.without(at)
	}
}

func (s lockState) grant(e event) (bool, lockState) {
	if e.fence <= s.fence {
		return false, s
	}
	beside := 0 // those who certainly hold the key
	for _, h := range s.holds {
		if h.sure == held {
			if h.excludes(e) {
				return false, s
			}
			beside++
		}
	}
	if e.mode == Counted && beside >= e.limit {
		return false, s
	}
	next := lockState{fence: e.fence, holds: slices.DeleteFunc(slices.Clone(s.holds), func(h hold) bool {
		return h.sure == fading && h.excludes(e)
	})}
	if e.mode == Counted {
		next = next.room(e.limit - 1)
	}
	sure := held
	if e.weak {
		sure = fading
	}
	return true, next.plus(e, sure)
}

// room ends fading holds until no more than n are left. Those go that would be
// gone first anyway: the others can explain whatever these could.
func (s lockState) room(n int) lockState {
	for s.present() > n {
		first, gone := -1, int64(math.MaxInt64)
		for i, h := range s.holds {
			if h.sure == fading && (first < 0 || h.gone < gone) {
				first, gone = i, h.gone
			}
		}
		if first < 0 {
			return s
		}
		s = s.without(first)
	}
	return s
}

// refuse reports whether e can have been refused, and what that shows.
func (s lockState) refuse(e event, line bool) (bool, lockState) {
	present := s.present()
	if line && present > 0 || e.mode == Counted && present >= e.limit {
		return true, s
	}
	for _, h := range s.holds {
		if h.sure != possible && h.excludes(e) {
			return true, s
		}
	}

	// Grants that nobody saw have to explain it. One is enough of a kind that
	// excludes e, or of any kind if those in line count.
	missing := e.limit - present // of e's own kind, if it is counted
	var can []int
	alike, explained := true, false
	for i, h := range s.holds {
		if h.sure != possible || s.bars(h) {
			continue
		}
		if line || h.excludes(e) {
			missing, explained = 1, true
		}
		can = append(can, i)
		alike = alike && h.mode == s.holds[can[0]].mode
	}
	if !explained && (e.mode != Counted || len(can) < missing) {
		return false, s
	}
	if !alike || slices.ContainsFunc(can, func(i int) bool { return s.holds[i].again }) {
		// Which of them it was makes a difference later, or one of them may happen again: all stay possible.
		return true, s
	}
	// Those that would be gone first: the others can explain whatever these could.
	slices.SortFunc(can, func(i, j int) int { return cmp.Compare(s.holds[i].gone, s.holds[j].gone) })
	for _, i := range can[:missing] {
		s = s.with(i, fading)
	}
	return true, s
}

// bars reports whether a possible grant cannot have happened, because somebody
// certainly holds the key whom it excludes.
func (s lockState) bars(h hold) bool {
	return slices.ContainsFunc(s.holds, func(o hold) bool {
		return o.sure == held && o.excludes(event{mode: h.mode, limit: h.limit})
	})
}

// present is how many hold the key, or may.
func (s lockState) present() int {
	n := 0
	for _, h := range s.holds {
		if h.sure != possible {
			n++
		}
	}
	return n
}

func (s lockState) find(id int64, sure sureness) int {
	return slices.IndexFunc(s.holds, func(h hold) bool { return h.id == id && h.sure == sure })
}

func (s lockState) without(at int) lockState {
	s.holds = slices.Delete(slices.Clone(s.holds), at, at+1)
	return s
}

func (s lockState) with(at int, sure sureness) lockState {
	s.holds = slices.Clone(s.holds)
	s.holds[at].sure = sure
	return s
}

// plus keeps holds in the order of their ids, so that equal states look equal.
func (s lockState) plus(e event, sure sureness) lockState {
	at, _ := slices.BinarySearchFunc(s.holds, e.id, func(h hold, id int64) int { return cmp.Compare(h.id, id) })
	s.holds = slices.Insert(slices.Clone(s.holds), at, hold{id: e.id, mode: e.mode, limit: e.limit, sure: sure, gone: e.gone, again: e.again && sure == possible})
	return s
}

func (h hold) excludes(e event) bool {
	return exclude(Op{Mode: h.mode, Limit: h.limit}, Op{Mode: e.mode, Limit: e.limit})
}
