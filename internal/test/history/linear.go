package history

import (
	"cmp"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// Linear checks that one order of events explains every answer, and that fences grow in that order. It returns how many
// pieces of the history it could not decide on within the rules' timeout.
//
// A key's history is cut where nothing was under way and nothing was, or could have been, held: what comes after does
// not depend on what was before, but for the fence. After losses of data only the fences are looked at, and so of a key
// that somebody used during a failover.
func Linear(ops []Op, rules Rules) (all []Violation, undecided int) {
	for key, ops := range byKey(ops) {
		events := lockEvents(ops, rules)
		model := lockModel(rules)
		if len(rules.Losses) > 0 || slices.ContainsFunc(rules.Failovers, func(f Failover) bool { return slices.ContainsFunc(ops, f.touches) }) {
			events, model = fenceEvents(ops), fenceModel
		}
		var fence int64
		for _, piece := range cut(events) {
			m := model(fence)
			switch porcupine.CheckOperationsTimeout(m, piece.operations, rules.Patience) {
			case porcupine.Illegal:
				all = append(all, unexplained(key, m, piece.operations, rules))
			case porcupine.Unknown:
				undecided++
			case porcupine.Ok:
			}
			fence = max(fence, piece.fence)
		}
	}
	return all, undecided
}

// unexplained shows where the longest order that could be found ends.
func unexplained(key string, model porcupine.Model, operations []porcupine.Operation, rules Rules) Violation {
	v := Violation{Checker: "linear", Key: key, What: "no order explains the answers"}
	_, info := porcupine.CheckOperationsVerbose(model, operations, rules.Patience)
	longest := []porcupine.Operation{}
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	explained := map[event]bool{}
	for _, o := range longest {
		explained[o.Input.(event)] = true
	}
	const shown = 12
	for _, o := range longest[max(0, len(longest)-shown):] {
		v.Ops = append(v.Ops, o.Metadata.(Op))
	}
	for _, o := range operations {
		if !explained[o.Input.(event)] {
			v.What += "; the last of these is the first that none does"
			v.Ops = append(v.Ops, o.Metadata.(Op))
			break
		}
	}
	return v
}

// event is something that changes who holds a key, or tells of it. The clients
// see some; others are what may happen to a lease in the server.
type event struct {
	kind  eventKind
	id    int64 // the acquire's
	mode  Mode
	limit int
	fence int64
	// A grant whose lease may be over before its holder sees it.
	weak bool
	// When the server holds nothing of it any more at the latest.
	gone int64
	// A doubted grant that may happen any number of times.
	again bool
}

type eventKind int8

const (
	// granted: the key is taken.
	granted eventKind = iota
	// refused: somebody holds it, at that moment.
	refused
	// freed: the holder gave it back, and held it until then.
	freed
	// weakened: from then on the lease may end at any moment, and nobody can
	// tell when: whoever is granted the key next shows that it has.
	weakened
	// doubted: from then on a grant may happen that its client never sees.
	doubted
	// ended: a lease that may have ended has ended, and a doubted grant too, if it happened at all.
	ended
)

// timed is an event with the time in which it happened.
type timed struct {
	event
	from, to int64
	// Until when the event matters to those after it.
	until int64
	op    Op
}

const never = math.MaxInt64

func lockEvents(ops []Op, rules Rules) []timed {
	releases := map[int64]Op{}
	for _, op := range ops {
		if op.Kind == Release {
			releases[op.Of] = op
		}
	}
	var all []timed
	add := func(op Op, e event, from, to, until int64) {
		all = append(all, timed{event: e, from: from, to: to, until: max(to, until), op: op})
	}
	for _, op := range ops {
		if op.Kind != Acquire {
			continue
		}
		e := event{id: op.ID, mode: op.Mode, limit: op.Limit, fence: op.Fence, gone: never}
		inLine := rules.Line && op.Wait
		if inLine && op.Outcome != Unknown && !rules.Copies {
			unheard := event{kind: doubted, id: -op.ID, mode: op.Mode, limit: op.Limit, gone: op.Return + int64(op.Lease) + int64(rules.Late), again: true}
			add(op, unheard, op.Call, op.Call, unheard.gone)
			unheard.kind = ended
			add(op, unheard, unheard.gone, unheard.gone, 0)
		}
		if op.Over != 0 {
			e.gone = op.Over + int64(op.Lease) + int64(rules.Late)
		}
		with := func(kind eventKind) event { e.kind = kind; return e }
		switch op.Outcome {
		case Conflict:
			if !rules.Copies {
				add(op, with(refused), op.Call, op.Return, 0)
			}
			continue
		case OK:
			if release, ok := releases[op.ID]; ok && release.Outcome == OK {
				add(op, with(granted), op.Call, op.Return, release.Return)
				add(release, with(freed), release.Call, release.Return, 0)
				continue
			}
			e.weak = op.Alive == 0
			add(op, with(granted), op.Call, op.Return, e.gone)
			if !e.weak {
				add(op, with(weakened), op.Alive, op.Alive, e.gone)
			}
		default:
			if rules.Copies {
				continue // it changes nothing but refusals
			}
			e.again = inLine
			add(op, with(doubted), op.Call, op.Call, e.gone)
		}
		if e.gone != never && !rules.Copies {
			add(op, with(ended), e.gone, e.gone, 0)
		}
	}
	return all
}

func fenceEvents(ops []Op) []timed {
	var all []timed
	for _, op := range ops {
		if op.granted() {
			all = append(all, timed{event: event{kind: granted, id: op.ID, fence: op.Fence}, from: op.Call, to: op.Return, until: op.Return, op: op})
		}
	}
	return all
}

// piece is a part of a key's history that stands for itself.
type piece struct {
	operations []porcupine.Operation
	fence      int64 // the greatest
}

// cut parts events at the moments at which all earlier ones are over.
func cut(events []timed) []piece {
	slices.SortStableFunc(events, func(a, b timed) int { return cmp.Compare(a.from, b.from) })
	var pieces []piece
	var last int64
	for i, e := range events {
		if i == 0 || e.from > last {
			pieces = append(pieces, piece{})
		}
		last = max(last, e.until)
		p := &pieces[len(pieces)-1]
		p.fence = max(p.fence, e.fence)
		p.operations = append(p.operations, porcupine.Operation{
			ClientId: e.op.Client, Input: e.event, Call: e.from, Return: e.to, Metadata: e.op,
		})
	}
	return pieces
}

// fenceModel is a counter that only grows.
func fenceModel(before int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return before },
		Step: func(state, input, _ any) (bool, any) {
			fence := input.(event).fence
			return fence > state.(int64), fence
		},
	}
}
