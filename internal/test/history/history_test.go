package history

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A builder writes histories down the way they are told.
type builder struct{ ops []Op }

func (b *builder) add(op Op) *Op {
	op.ID = int64(len(b.ops) + 1)
	op.Key = "k"
	b.ops = append(b.ops, op)
	return &b.ops[len(b.ops)-1]
}

// hold is a grant between call and call+2, whose window goes to alive and which is given back then.
func (b *builder) hold(fence, call, alive int64) *builder {
	return b.kept(fence, call, alive).release(alive+1, OK)
}

// kept is a grant that is not given back.
func (b *builder) kept(fence, call, alive int64) *builder {
	op := b.add(Op{Kind: Acquire, Fence: fence, Call: call, Return: call + 2, Outcome: OK, Seen: call + 3, Alive: alive, Lease: 50})
	op.Over = max(op.Return, alive)
	return b
}

// answered is when the last op's answer came.
func (b *builder) answered(at int64) *builder {
	op := &b.ops[len(b.ops)-1]
	op.Return, op.Seen = at, at+1
	return b
}

// release gives back what was granted last.
func (b *builder) release(call int64, outcome Outcome) *builder {
	var of *Op
	for i := range b.ops {
		if b.ops[i].Kind == Acquire {
			of = &b.ops[i]
		}
	}
	of.Over = call
	id := of.ID
	b.add(Op{Kind: Release, Of: id, Call: call, Return: call + 1, Outcome: outcome})
	return b
}

func (b *builder) refused(call int64) *builder {
	b.add(Op{Kind: Acquire, Call: call, Return: call + 2, Outcome: Conflict})
	return b
}

// unknown is an acquire whose answer did not come.
func (b *builder) unknown(call int64) *builder {
	b.add(Op{Kind: Acquire, Call: call, Return: call + 10, Over: call + 10, Lease: 50})
	return b
}

// killed is one whose client died before an answer.
func (b *builder) killed(call int64) *builder {
	b.add(Op{Kind: Acquire, Call: call, Lease: 50})
	return b
}

// as changes the op written last but for releases.
func (b *builder) as(mode Mode, limit int) *builder {
	for i, op := range slices.Backward(b.ops) {
		if op.Kind == Acquire {
			b.ops[i].Mode, b.ops[i].Limit = mode, limit
			return b
		}
	}
	return b
}

// waiting says that the acquire written last stood in line.
func (b *builder) waiting() *builder {
	for i, op := range slices.Backward(b.ops) {
		if op.Kind == Acquire {
			b.ops[i].Wait = true
			return b
		}
	}
	return b
}

func (b *builder) shared() *builder           { return b.as(Shared, 0) }
func (b *builder) counted(limit int) *builder { return b.as(Counted, limit) }

func told() *builder { return &builder{} }

type verdict struct{ windows, fences, linear bool }

var (
	good      = verdict{true, true, true}
	lossTold  = Rules{Losses: []Loss{{From: 20, To: 30}}}
	inLine    = Rules{Line: true}
	sentAgain = Rules{Copies: true}
	bad       = func(windows, fences, linear bool) verdict { return verdict{windows, fences, linear} }
)

// TestHistories is long since most of it is a table.
func TestHistories(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		told  *builder
		rules Rules
		want  verdict
	}{
		{"nothing", told(), Rules{}, good},
		{"one after the other", told().hold(1, 0, 10).hold(2, 20, 30), Rules{}, good},
		{"a call that waited", func() *builder {
			b := told().hold(1, 5, 10).hold(2, 20, 30)
			b.ops[2].Call = 0
			return b
		}(), Rules{}, good},
		{"two at once", told().hold(1, 0, 30).hold(2, 10, 20), Rules{}, bad(false, true, false)},
		{"two at once, one not given back", told().kept(1, 0, 30).hold(2, 10, 20), Rules{}, bad(false, true, false)},
		{"two at once of two keys", func() *builder {
			b := told().hold(1, 0, 30).hold(1, 10, 20)
			b.ops[2].Key, b.ops[3].Key = "other", "other"
			return b
		}(), Rules{}, good},
		{"windows that touch", told().kept(1, 0, 12).hold(2, 10, 20), Rules{}, good},
		{"alive when the next grant was answered", told().kept(1, 0, 13).hold(2, 10, 20), Rules{}, bad(true, true, false)},
		{"a lease that ran out", told().kept(1, 0, 10).hold(2, 20, 30), Rules{}, good},
		{"a grant that was over when it was seen", told().kept(1, 0, 0).hold(2, 3, 10), Rules{}, good},
		{"a release of a lease that was over", told().kept(1, 0, 10).release(40, Lost).hold(2, 20, 30), Rules{}, good},
		{"a release that was done though the lease was over", told().kept(1, 0, 10).release(40, OK).hold(2, 20, 30), Rules{}, bad(true, true, false)},
		{"a release without an answer", told().kept(1, 0, 10).release(11, Unknown).hold(2, 12, 30), Rules{}, good},
		{"a window that goes on past the next grant", told().hold(2, 10, 20).kept(1, 0, 14), Rules{}, bad(false, true, false)},

		{"a fence twice", told().hold(1, 0, 10).hold(1, 20, 30), Rules{}, bad(true, false, false)},
		{"a fence that goes back", told().hold(2, 0, 10).hold(1, 20, 30), Rules{}, bad(true, false, false)},
		{"a fence that goes back, by the windows only", func() *builder {
			b := told().hold(2, 0, 10).hold(1, 20, 30)
			b.ops[2].Call = 1
			return b
		}(), Rules{}, bad(true, false, false)},
		{"a fence of nothing", told().hold(0, 0, 10), Rules{}, bad(true, false, false)},
		{"fences of calls at one time", told().kept(2, 0, 0).kept(1, 1, 0), Rules{}, good},
		{"a fence that goes back three grants later", told().hold(5, 0, 5).hold(6, 10, 15).hold(7, 20, 25).hold(3, 30, 35), Rules{}, bad(true, false, false)},

		{"a refusal while it is held", told().hold(1, 0, 10).refused(5), Rules{}, good},
		{"a refusal by nobody", told().hold(1, 0, 10).refused(20), Rules{}, bad(true, true, false)},
		{"a refusal by nobody ever", told().refused(20), Rules{}, bad(true, true, false)},
		{"a refusal while it is released", told().hold(1, 0, 10).refused(11), Rules{}, good},
		{"a refusal by a lease that may have run out", told().kept(1, 0, 10).refused(30), Rules{}, good},
		{"a refusal by a lease that has run out", told().kept(1, 0, 10).refused(70), Rules{}, bad(true, true, false)},
		{"the same, when the network is slow", told().kept(1, 0, 10).refused(70), Rules{Late: 20}, good},
		{"a refusal by a lease that somebody else followed", told().kept(1, 0, 10).hold(2, 20, 24).refused(30), Rules{}, bad(true, true, false)},
		{"a refusal by a grant without an answer", told().unknown(0).refused(20), Rules{}, good},
		{"two refusals by it", told().unknown(0).refused(20).refused(30), Rules{}, good},
		{"a refusal by a request that came late", told().unknown(0).hold(1, 20, 30).refused(40), Rules{}, good},
		{"a refusal by a request that had its grant", told().unknown(0).refused(15).hold(1, 20, 30).refused(40), Rules{}, bad(true, true, false)},
		{"a refusal by a grant without an answer that has run out", told().unknown(0).refused(70), Rules{}, bad(true, true, false)},
		{"a refusal by a client that was killed", told().killed(0).refused(70), Rules{}, good},
		{"a request without an answer, that did nothing", told().unknown(0).hold(1, 2, 10), Rules{}, good},
		{"a refusal by a copy", told().hold(1, 0, 10).refused(40), sentAgain, good},
		{"two at once, with copies", told().hold(1, 0, 30).hold(2, 10, 20), sentAgain, bad(false, true, false)},

		{"readers at once", told().hold(1, 0, 30).shared().hold(2, 10, 20).shared(), Rules{}, good},
		{"a reader and a writer at once", told().hold(1, 0, 30).shared().hold(2, 10, 20), Rules{}, bad(false, true, false)},
		{"a writer and a reader at once", told().hold(1, 0, 30).hold(2, 10, 20).shared(), Rules{}, bad(false, true, false)},
		{"a reader refused by a reader", told().hold(1, 0, 30).shared().refused(10).shared(), Rules{}, bad(true, true, false)},
		{"a reader refused behind a writer in line", told().hold(1, 0, 30).shared().refused(10).shared(), inLine, good},
		{"a reader refused by nobody", told().hold(1, 0, 10).shared().refused(20).shared(), inLine, bad(true, true, false)},
		{"a refusal by one in line who did not hear of it", func() *builder {
			b := told().hold(1, 50, 60).waiting().refused(20).refused(30)
			b.ops[0].Call = 5
			return b
		}(), inLine, good},
		{"a refusal by one who was not in line", func() *builder {
			b := told().hold(1, 50, 60).refused(20)
			b.ops[0].Call = 25
			return b
		}(), inLine, bad(true, true, false)},
		{"a refusal long after one in line was granted", told().hold(1, 0, 10).waiting().refused(70), inLine, bad(true, true, false)},
		{"refusals by one in line without an answer", told().unknown(0).waiting().refused(15).hold(1, 20, 30).refused(40), inLine, good},
		{"a writer refused by a reader", told().hold(1, 0, 30).shared().refused(10), Rules{}, good},
		{"a reader refused by a writer without an answer", told().unknown(0).refused(20).shared(), Rules{}, good},
		{"a reader refused by a reader without an answer", told().unknown(0).shared().refused(20).shared(), Rules{}, bad(true, true, false)},
		{"a reader whose lease never ends", told().kept(1, 0, 10).shared().refused(70), Rules{}, bad(true, true, false)},
		{"a writer after readers that died", told().kept(1, 0, 10).shared().kept(2, 1, 11).shared().hold(3, 15, 20), Rules{}, good},
		{"a fence that goes back among readers", told().hold(2, 0, 10).shared().hold(1, 20, 30).shared(), Rules{}, bad(true, false, false)},
		{"readers' windows need not be in the order of fences", func() *builder {
			b := told().kept(2, 0, 10).shared().kept(1, 20, 30).shared()
			b.ops[1].Call = 1
			return b
		}(), Rules{}, good},
		{"a reader's fence behind the writer's before it", func() *builder {
			b := told().hold(2, 0, 10).hold(1, 20, 30).shared()
			b.ops[2].Call = 1
			return b
		}(), Rules{}, bad(true, false, false)},

		{"two of two", told().hold(1, 0, 30).counted(2).hold(2, 10, 20).counted(2), Rules{}, good},
		{"three of two", told().hold(1, 0, 30).counted(2).hold(2, 5, 25).counted(2).hold(3, 10, 20).counted(2), Rules{}, bad(false, true, false)},
		{"a third after one of two", told().hold(1, 0, 30).counted(2).hold(2, 5, 10).counted(2).hold(3, 15, 20).counted(2), Rules{}, good},
		{"a third when one of two has run out", told().hold(1, 0, 30).counted(2).kept(2, 5, 10).counted(2).hold(3, 15, 20).counted(2), Rules{}, good},
		{"a fourth when one of two has run out", told().hold(1, 0, 30).counted(2).kept(2, 5, 10).counted(2).hold(3, 15, 29).counted(2).hold(4, 20, 25).counted(2), Rules{}, bad(false, true, false)},
		{"one of one", told().hold(1, 0, 30).counted(1).hold(2, 10, 20).counted(1), Rules{}, bad(false, true, false)},
		{"refused at two of two", told().hold(1, 0, 30).counted(2).hold(2, 5, 25).counted(2).refused(10).counted(2), Rules{}, good},
		{"refused at one of two", told().hold(1, 0, 30).counted(2).refused(10).counted(2), Rules{}, bad(true, true, false)},
		{"refused at one of two, and one without an answer", told().unknown(0).counted(2).hold(1, 12, 30).counted(2).refused(16).counted(2), Rules{}, good},
		{"refused by two without an answer", told().unknown(0).counted(2).unknown(1).counted(2).refused(20).counted(2), Rules{}, good},
		{"refused by one without an answer", told().unknown(0).counted(2).refused(20).counted(2), Rules{}, bad(true, true, false)},

		{"two at once after a loss", told().kept(1, 0, 40).hold(2, 31, 50), lossTold, good},
		{"two at once after a loss, the first from after it", told().hold(1, 31, 60).hold(2, 41, 50), lossTold, bad(false, true, true)},
		{"two at once before a loss", told().kept(1, 0, 19).hold(2, 5, 15), lossTold, bad(false, true, true)},
		{"a holder who is not told of a loss", told().kept(1, 0, 80).hold(2, 31, 50), lossTold, bad(false, true, true)},
		{"a lost grant that is used after the next", told().kept(1, 5, 60).answered(44).hold(2, 31, 40), lossTold, good},
		{"a fence that goes back at a loss", told().kept(2, 0, 10).hold(1, 31, 50), lossTold, bad(true, false, false)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ops := tc.told.ops
			windows, fences := Windows(ops, tc.rules), Fences(ops, tc.rules.Losses)
			linear, undecided := Linear(ops, tc.rules)
			require.Zero(t, undecided)
			require.Equal(t, tc.want, verdict{len(windows) == 0, len(fences) == 0, len(linear) == 0},
				"%v\n%v\n%v", windows, fences, linear)
		})
	}
}

func TestHistory_CutKeepsItsFences(t *testing.T) {
	t.Parallel()
	b := told()
	for i := range int64(10) {
		b.hold(i+1, 20*i, 20*i+5)
	}
	events := lockEvents(b.ops, Rules{})
	require.Len(t, cut(events), 10)
	b.hold(5, 400, 410)
	violations, _ := Linear(b.ops, Rules{})
	require.Len(t, violations, 1)
	require.Contains(t, violations[0].String(), "fence 5")

	// Nothing is cut while a grant may still come, or may still be held.
	require.Len(t, cut(lockEvents(told().killed(0).hold(1, 20, 30).hold(2, 40, 50).ops, Rules{})), 1)
	require.Len(t, cut(lockEvents(told().kept(1, 0, 5).hold(2, 20, 30).hold(3, 100, 110).ops, Rules{})), 2)
}

func TestHistory_ReadsWhatAKilledProcessWrote(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	rec, err := Create(a)
	require.NoError(t, err)
	op := Op{ID: 1, Client: 7, Kind: Acquire, Key: "k", Call: 2, Lease: time.Second}
	rec.Write(&op)
	op.Return, op.Outcome, op.Fence, op.Seen = 3, OK, 9, 3
	release := Op{ID: 2, Client: 7, Kind: Release, Key: "k", Of: 1, Call: 5}
	rec.Write(&op, &release)
	require.NoError(t, rec.Close())
	other, err := Create(b)
	require.NoError(t, err)
	other.Write(&Op{ID: 3, Client: 8, Kind: Acquire, Key: "k", Mode: Counted, Limit: 3, Call: 1, Return: 4, Outcome: Conflict})
	require.NoError(t, other.Close())
	file, err := os.OpenFile(a, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(`{"id":2,"cli`)
	require.NoError(t, err)
	require.NoError(t, file.Close())

	ops, err := Read(a, b)
	require.NoError(t, err)
	require.Equal(t, []int64{3, 1, 2}, []int64{ops[0].ID, ops[1].ID, ops[2].ID})
	require.Equal(t, op, ops[1])
	require.Equal(t, release, ops[2])
	Died(ops, 7, 10)
	require.EqualValues(t, 10, ops[1].Over)
	require.Zero(t, ops[0].Over)
	require.Equal(t, Counts{Ops: 3, Grants: 1, Conflicts: 1, Unknown: 1, Keys: 1}, Count(ops))

	require.NoError(t, os.WriteFile(b, []byte("{}\nnot json\n{}\n"), 0o600))
	_, err = Read(b)
	require.ErrorContains(t, err, "line 2")
	ops, err = Read(filepath.Join(dir, "none"))
	require.NoError(t, err)
	require.Empty(t, ops, "it was killed before it wrote anything")
}

func TestTheClockIsShared(t *testing.T) {
	t.Parallel()
	before := Now()
	time.Sleep(time.Millisecond)
	require.GreaterOrEqual(t, Now()-before, time.Millisecond.Nanoseconds())
}
