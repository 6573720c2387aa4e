//go:build soak

package delayqueue_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
)

// sent is a message that was enqueued.
type sent struct {
	id, key, name string
	place         int   // among those of its key
	due           int64 // it is not to start before; 0: it is not delayed
	known         bool  // Enqueue returned nil
	cancelled     int64 // when Cancel returned nil
	cancelling    bool  // Cancel was called
	deferred      int64 // when its call was told; 0: it was enqueued without a call
	status        delayqueue.Status
	found         bool
}

// run is a call of a handler, or a fresh call's time with a key.
type run struct {
	event
	alive   int64 // when its ctx was last seen to live
	end     int64 // when its handler returned; 0: it did not
	how     string
	outcome string // of its claim; "": not known
	asked   int64  // when a fresh call asked for the key
}

// account is what came of a round of chaos.
type account struct {
	seed       uint64
	messages   int
	faults     map[string]int
	unknown    int // enqueues that failed, so that nobody knows
	runs       int
	duplicates int // runs of a message beyond its first, other than after a plain failure
	late       int // settlements that were refused
	fresh      int
	overtaking int // fresh calls that were checked against parked messages
	states     map[string]int
	violations []string
}

func newAccount(seed uint64) *account {
	return &account{seed: seed, faults: map[string]int{}, states: map[string]int{}}
}

func (a *account) String() string {
	return fmt.Sprintf("seed %d: %d messages, faults %v, %d unknown enqueues, %d runs, %d duplicates, %d late, %d fresh grants (%d after deferrals), ends %v, %d violations",
		a.seed, a.messages, a.faults, a.unknown, a.runs, a.duplicates, a.late, a.fresh, a.overtaking, a.states, len(a.violations))
}

func (a *account) violate(format string, args ...any) {
	a.violations = append(a.violations, fmt.Sprintf(format, args...))
}

// add adds another round's.
func (a *account) add(b *account) {
	a.messages, a.unknown, a.runs, a.duplicates = a.messages+b.messages, a.unknown+b.unknown, a.runs+b.runs, a.duplicates+b.duplicates
	a.late, a.fresh, a.overtaking = a.late+b.late, a.fresh+b.fresh, a.overtaking+b.overtaking
	for kind, n := range b.faults {
		a.faults[kind] += n
	}
	for state, n := range b.states {
		a.states[state] += n
	}
	a.violations = append(a.violations, b.violations...)
}

// collect makes runs of events.
func collect(events []event) (runs []*run) {
	type of struct {
		process int
		run     int64
	}
	type claimOf struct {
		process, attempt int
		id               string
	}
	byRun, byClaim := map[of]*run{}, map[claimOf]*run{}
	for _, e := range events {
		switch e.Kind {
		case eventStart, eventFresh:
			r := &run{event: e, alive: e.At}
			byRun[of{e.Process, e.Run}], byClaim[claimOf{e.Process, e.Attempt, e.ID}] = r, r
			runs = append(runs, r)
		case eventAlive:
			byRun[of{e.Process, e.Run}].alive = e.At
		case eventEnd:
			r := byRun[of{e.Process, e.Run}]
			r.end, r.how = e.At, e.Text
		case eventSettled:
			if r := byClaim[claimOf{e.Process, e.Attempt, e.ID}]; r != nil {
				r.outcome = e.Text
			}
		}
	}
	slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.At, b.At) })
	return runs
}

// check holds what ran against what was promised.
func (a *account) check(messages []*sent, events []event, fresh []*run) {
	for _, e := range events {
		if e.Kind == eventSettled && e.Text == string(delayqueue.OutcomeLate) {
			a.late++
		}
	}
	runs := collect(events)
	a.messages, a.runs, a.fresh = len(messages), len(runs), len(fresh)
	byID, byKey := map[string][]*run{}, map[string][]*run{}
	for _, r := range runs {
		byID[r.ID] = append(byID[r.ID], r)
		if r.Key != "" {
			byKey[r.Key] = append(byKey[r.Key], r)
		}
	}
	for _, f := range fresh {
		byKey[f.Key] = append(byKey[f.Key], f)
	}
	known := map[string]bool{}
	lines := map[string][]*sent{}
	for _, m := range messages {
		known[m.id] = true
		a.checkMessage(m, byID[m.id])
		if runs := byID[m.id]; len(runs) > 0 && runs[0].At < m.due {
			a.violate("message %s started %.3f ms before its time", m.id, float64(m.due-runs[0].At)/1e6)
		}
		if m.key != "" && m.known && m.found && m.deferred == 0 && m.due == 0 { // what is delayed joins its key's FIFO later
			lines[m.key] = append(lines[m.key], m)
		}
	}
	for id := range byID {
		if !known[id] {
			a.violate("message %s ran, and nobody enqueued it", id)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		slices.SortFunc(lines[key], func(a, b *sent) int { return cmp.Compare(a.place, b.place) })
		a.checkOrder(lines[key], byID)
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		a.checkExclusion(byKey[key])
	}
	a.checkReservation(messages, byID, events, fresh)
}

// checkMessage: it ended once, and each of its runs after the first has a reason that the handler could see. It is long
// since it is a list of rules.
func (a *account) checkMessage(m *sent, runs []*run) {
	if !m.found {
		if m.known {
			a.violate("message %s was acknowledged and is lost", m.id)
		} else if len(runs) > 0 {
			a.violate("message %s ran and is not known", m.id)
		}
		return
	}
	s := m.status
	a.states[string(s.State)]++
	if !s.State.Ended() {
		a.violate("message %s is %s at the end (%+v)", m.id, s.State, s)
	}
	ended := func(how string) bool {
		return slices.ContainsFunc(runs, func(r *run) bool { return r.end > 0 && r.how == how })
	}
	switch s.State {
	case delayqueue.StateDone:
		if !ended("") {
			a.violate("message %s is done, and no run of it came to its end", m.id)
		}
	case delayqueue.StateDead:
		byHandler := m.name == namePoison && ended(namePoison) || m.name == namePanics && s.Attempts >= chaosAttempts
		byLosses := s.Attempts >= chaosAttempts && s.Losses > 0
		if !byHandler && !byLosses {
			a.violate("message %s (%s) is dead after %d attempts: %.200s", m.id, m.name, s.Attempts, s.Cause)
		}
	case delayqueue.StateCancelled:
		if !m.cancelling {
			a.violate("message %s is cancelled, and nobody did it", m.id)
		}
	}
	if m.cancelled > 0 {
		if s.State != delayqueue.StateCancelled {
			a.violate("message %s was cancelled and is %s", m.id, s.State)
		}
		for _, r := range runs {
			if r.At > m.cancelled {
				a.violate("message %s ran after it was cancelled", m.id)
			}
		}
	}
	// An attempt without a run is one whose worker died, or lost its claim, before it began.
	if n := len(runs); n > s.Attempts || s.Attempts-n > s.Losses {
		a.violate("message %s: %d runs, %d attempts, %d losses", m.id, n, s.Attempts, s.Losses)
	}
	for i := 1; i < len(runs); i++ {
		was, is := runs[i-1], runs[i]
		if is.Attempt <= was.Attempt {
			a.violate("message %s: attempt %d ran after attempt %d", m.id, is.Attempt, was.Attempt)
		}
		if was.end > 0 && (was.how == nameFails || was.how == namePanics) && is.Losses == was.Losses {
			continue // it failed
		}
		a.duplicates++
		if is.Losses <= was.Losses {
			a.violate("message %s: a second run that its handler cannot tell from the first: %+v, %+v", m.id, was, is)
		}
		if was.outcome == string(delayqueue.OutcomeDone) || was.outcome == string(delayqueue.OutcomeDead) {
			a.violate("message %s ran again after it was %s", m.id, was.outcome)
		}
	}
}

// checkOrder: none starts before those that came earlier have ended.
func (a *account) checkOrder(line []*sent, byID map[string][]*run) {
	var last *run // that started, of those before
	var before string
	for _, m := range line {
		runs := byID[m.id]
		if len(runs) == 0 {
			continue
		}
		if last != nil && runs[0].At < last.At {
			a.violate("key %s: message %s started before a run of %s, which came earlier", m.key, m.id, before)
		}
		if end := runs[len(runs)-1]; last == nil || end.At > last.At {
			last, before = end, m.id
		}
		// One that is done had ended before. Which of its runs made it so is not known: a
		// worker that was stopped may come to the end of a run that others have repeated.
		ended := int64(math.MaxInt64)
		for _, r := range runs {
			if m.status.State == delayqueue.StateDone && r.end > 0 && r.how == "" {
				ended = min(ended, r.end)
			}
		}
		if ended < math.MaxInt64 {
			last = &run{event: event{At: max(last.At, ended)}}
		}
	}
}

// checkExclusion: no two were seen at work at the same time, and fences rise.
func (a *account) checkExclusion(runs []*run) {
	slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.At, b.At) })
	for i, r := range runs {
		if i == 0 {
			continue
		}
		was := runs[i-1]
		if was.Fence > r.Fence || was.Fence == r.Fence && (was.Process != r.Process || was.ID == "" || r.ID == "") {
			a.violate("key %s: fence %d of %q came after fence %d of %q", r.Key, r.Fence, r.ID, was.Fence, was.ID)
		}
		for j := i - 1; j >= 0 && j >= i-20; j-- {
			if runs[j].alive >= r.At {
				a.violate("key %s: %q (process %d, fence %d) began %.3f ms before the end of %q (process %d, fence %d)", r.Key,
					r.ID, r.Process, r.Fence, float64(runs[j].alive-r.At)/1e6, runs[j].ID, runs[j].Process, runs[j].Fence)
			}
		}
	}
}

// checkReservation: a fresh call that asked after a deferral was told got the key after that message's end, or while the key's
// head waited for its next attempt, since its worker had lost the lease.
func (a *account) checkReservation(messages []*sent, byID map[string][]*run, events []event, fresh []*run) {
	parked, ran, lost := map[string][]*sent{}, map[string][]*run{}, map[string][]int64{}
	for _, m := range messages {
		if m.deferred > 0 {
			parked[m.key] = append(parked[m.key], m)
		}
		ran[m.key] = append(ran[m.key], byID[m.id]...)
	}
	for _, e := range events {
		if e.Kind == eventLost || e.Kind == eventEnd && e.Text == interrupted {
			lost[e.Key] = append(lost[e.Key], e.At)
		}
	}
	for _, f := range fresh {
		before := int64(0) // the last run began, of those that began before
		for _, r := range ran[f.Key] {
			if r.At < f.At {
				before = max(before, r.At)
			}
		}
		waits := slices.ContainsFunc(lost[f.Key], func(at int64) bool { return before < at && at < f.At })
		checked := false
		for _, m := range parked[f.Key] {
			if m.deferred >= f.asked || f.asked == 0 || waits {
				continue
			}
			checked = true
			ran := slices.ContainsFunc(byID[m.id], func(r *run) bool { return r.end > 0 && r.end < f.At })
			if !ran && !strings.Contains("expired cancelled", string(m.status.State)) {
				a.violate("key %s: a fresh call overtook message %s, told %.3f ms before it asked", f.Key, m.id, float64(f.asked-m.deferred)/1e6)
			}
		}
		if checked {
			a.overtaking++
		}
	}
}

func TestAccount_FreshCallsAndParkedOnes(t *testing.T) {
	t.Parallel()
	at := func(id string, start, end int64) *run { return &run{event: event{ID: id, At: start}, end: end} }
	for name, c := range map[string]struct {
		runs  []*run // of the key's head, and of the parked message
		lost  int64  // when a lease was
		asked int64
		wrong bool
	}{
		"after the parked one":                     {[]*run{at("head", 1, 2), at("parked", 12, 13)}, 0, 14, false},
		"it asked before the deferral was told":    {nil, 0, 9, false},
		"before the parked one":                    {[]*run{at("head", 1, 2)}, 0, 14, true},
		"while the head waits, its lease was lost": {[]*run{at("head", 11, 0)}, 12, 14, false},
		"after the head's next attempt":            {[]*run{at("head", 1, 0), at("head", 11, 12)}, 2, 14, true},
		"before a lease was lost":                  {[]*run{at("head", 11, 12)}, 17, 14, true},
	} {
		byID := map[string][]*run{}
		for _, r := range c.runs {
			byID[r.ID] = append(byID[r.ID], r)
		}
		a, parked := &account{}, &sent{id: "parked", key: "k", deferred: 10}
		parked.status.State = delayqueue.StateDone
		a.checkReservation([]*sent{{id: "head", key: "k"}, parked}, byID, []event{{Kind: eventLost, Key: "k", At: c.lost}},
			[]*run{{event: event{Key: "k", At: c.asked + 2}, asked: c.asked}})
		require.Equal(t, c.wrong, len(a.violations) > 0, "%s: %v", name, a.violations)
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
