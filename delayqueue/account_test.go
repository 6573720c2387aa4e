//go:build soak

package delayqueue_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
)

// sent is a message that was enqueued.
type sent struct {
	id, key string
	place   int  // among those of its key
	known   bool // Enqueue returned nil
	found   bool
	status  delayqueue.Status
}

// run is a call of a handler.
type run struct {
	event
	alive int64 // when its ctx was last seen to live
	end   int64 // when it had done its work; 0: it has not
}

// account is what came of a round of chaos.
type account struct {
	messages   int
	faults     map[string]int
	unknown    int // enqueues that failed, so that nobody knows
	duplicates int // runs of a message beyond its first
	violations []string
}

func (a *account) violate(format string, args ...any) {
	a.violations = append(a.violations, fmt.Sprintf(format, args...))
}

// add adds another round's.
func (a *account) add(b *account) {
	a.messages, a.unknown, a.duplicates = a.messages+b.messages, a.unknown+b.unknown, a.duplicates+b.duplicates
	for kind, n := range b.faults {
		a.faults[kind] += n
	}
}

// collect makes runs of events, in the order in which they began.
func collect(events []event) (runs []*run) {
	by := map[[2]int64]*run{}
	for _, e := range events {
		of := [2]int64{int64(e.Process), e.Run}
		if e.Kind == eventStart {
			by[of] = &run{event: e}
			runs = append(runs, by[of])
		}
		by[of].alive = e.At
		if e.Kind == eventEnd {
			by[of].end = e.At
		}
	}
	slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.At, b.At) })
	return runs
}

// check holds what ran against what was promised.
func (a *account) check(messages []*sent, events []event) {
	byID, byKey, lines := map[string][]*run{}, map[string][]*run{}, map[string][]*sent{}
	for _, r := range collect(events) {
		byID[r.ID] = append(byID[r.ID], r)
		if r.Key != "" {
			byKey[r.Key] = append(byKey[r.Key], r)
		}
	}
	a.messages = len(messages)
	for _, m := range messages {
		a.checkMessage(m, byID[m.id])
		if m.key != "" && m.known && m.found {
			lines[m.key] = append(lines[m.key], m)
		}
	}
	for _, line := range lines {
		slices.SortFunc(line, func(a, b *sent) int { return cmp.Compare(a.place, b.place) })
		a.checkOrder(line, byID)
	}
	for _, runs := range byKey {
		a.checkExclusion(runs)
	}
}

// checkMessage: it ended once, and each of its runs after the first has a reason that the handler could see.
func (a *account) checkMessage(m *sent, runs []*run) {
	switch s := m.status; {
	case !m.found && (m.known || len(runs) > 0):
		a.violate("message %s was acknowledged or ran, and is lost", m.id)
	case m.found && s.State != delayqueue.StateDone:
		a.violate("message %s is %s at the end (%+v)", m.id, s.State, s)
	case m.found && !slices.ContainsFunc(runs, func(r *run) bool { return r.end > 0 }):
		a.violate("message %s is done, and no run of it came to its end", m.id)
	case len(runs) > s.Attempts || s.Attempts-len(runs) > s.Losses: // an attempt without a run lost its worker, or its claim, before it began
		a.violate("message %s: %d runs, %d attempts, %d losses", m.id, len(runs), s.Attempts, s.Losses)
	}
	for i := 1; i < len(runs); i++ {
		a.duplicates++
		if was, is := runs[i-1], runs[i]; is.Attempt <= was.Attempt || is.Losses <= was.Losses {
			a.violate("message %s: a second run that its handler cannot tell from the first: %+v, %+v", m.id, was, is)
		}
	}
}

// checkOrder: none starts before those that came earlier have ended.
func (a *account) checkOrder(line []*sent, byID map[string][]*run) {
	last, before := int64(0), "" // when the last run started of those before
	for _, m := range line {
		runs := byID[m.id]
		if len(runs) == 0 {
			continue
		}
		if runs[0].At < last {
			a.violate("key %s: message %s started before a run of %s, which came earlier", m.key, m.id, before)
		}
		// One that is done had ended before. Which of its runs made it so is not known: a
		// worker that was stopped may come to the end of a run that others have repeated.
		ended := int64(math.MaxInt64)
		for _, r := range runs {
			if m.status.State == delayqueue.StateDone && r.end > 0 {
				ended = min(ended, r.end)
			}
		}
		if last, before = max(last, runs[len(runs)-1].At), m.id; ended < math.MaxInt64 {
			last = max(last, ended)
		}
	}
}

// checkExclusion: no two of a key were seen at work at the same time, and fences rise.
func (a *account) checkExclusion(runs []*run) {
	for i, r := range runs[1:] {
		if was := runs[i]; was.Fence > r.Fence || was.Fence == r.Fence && was.Process != r.Process {
			a.violate("key %s: fence %d of %q came after fence %d of %q", r.Key, r.Fence, r.ID, was.Fence, was.ID)
		}
		for _, before := range runs[max(0, i-19) : i+1] {
			if before.alive >= r.At {
				a.violate("key %s: %+v began %.3f ms before the end of %+v", r.Key, r, float64(before.alive-r.At)/1e6, before)
			}
		}
	}
}

func TestAccount_OrderOfAKey(t *testing.T) {
	t.Parallel()
	one, two := &sent{id: "1", key: "k"}, &sent{id: "2", key: "k"}
	one.status.State, two.status.State = delayqueue.StateDone, delayqueue.StateDone
	at := func(start, end int64) *run { return &run{event: event{At: start}, end: end} }
	for name, c := range map[string]struct {
		first  []*run
		second int64
		wrong  bool
	}{
		"one after the other":                     {[]*run{at(1, 2)}, 3, false},
		"before the earlier one's end":            {[]*run{at(1, 4)}, 3, true},
		"before the earlier one's second run":     {[]*run{at(1, 0), at(4, 5)}, 3, true},
		"a stopped worker's run ends long after":  {[]*run{at(1, 9), at(2, 3)}, 4, false},
		"before the end of either of its runs":    {[]*run{at(1, 9), at(2, 5)}, 4, true},
		"a run that was given up does not matter": {[]*run{at(1, 0), at(2, 3)}, 4, false},
	} {
		a := &account{}
		a.checkOrder([]*sent{one, two}, map[string][]*run{"1": c.first, "2": {at(c.second, c.second+1)}})
		require.Equal(t, c.wrong, len(a.violations) > 0, "%s: %v", name, a.violations)
	}
}
