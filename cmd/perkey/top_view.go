package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

// topView is what top shows.
type topView struct {
	where, prefix string
	fleet         *fleetState // nil: nothing was read yet
	all           ops.Snapshot
	at            time.Time // when it was read, by this machine's clock
	problem       error     // why it could not be read again
	late          bool      // the answer is late
	rates         rates
}

// rates are the calls a second of each process, between two of its reports.
type rates struct {
	of     map[string]counted
	second map[core.OutcomeKind]float64
	known  bool
}

// counted is what a process had counted at a report.
type counted struct {
	at     time.Time
	since  time.Time
	counts map[core.OutcomeKind]int64
	rates  map[core.OutcomeKind]float64 // nil: it reported once
}

func (r *rates) add(f *fleetState) {
	now := map[string]counted{}
	r.second, r.known = map[core.OutcomeKind]float64{}, false
	for _, p := range f.Processes {
		one := counted{at: p.Snapshot.At, since: p.Snapshot.Since, counts: map[core.OutcomeKind]int64{}}
		for _, l := range p.Snapshot.Locks {
			for kind, n := range l.Calls {
				one.counts[kind] += n
			}
		}
		if before, ok := r.of[p.ID]; ok && before.since.Equal(one.since) {
			one.rates = before.rates
			if passed := one.at.Sub(before.at).Seconds(); passed > 0 {
				one.rates = map[core.OutcomeKind]float64{}
				for kind, n := range one.counts {
					one.rates[kind] = max(0, float64(n-before.counts[kind])) / passed // fewer if names were left out
				}
			}
		}
		for kind, n := range one.rates {
			r.second[kind] += n
		}
		r.known = r.known || one.rates != nil
		now[p.ID] = one
	}
	r.of = now
}

// read takes what was read.
func (v *topView) read(f *fleetState, now time.Time) {
	v.fleet, v.all, v.at, v.late, v.problem = f, f.Snapshot(), now, false, nil
	v.rates.add(f)
}

// panel is a list on the screen.
type panel struct {
	head row
	rows []row
	// wide is the column that gets what room there is; right are numbers.
	wide   int
	right  []int
	alarms map[int]bool // rows that need a person
}

// screen is v on a terminal.
func (v *topView) screen(columns, rows int, now time.Time) []line {
	lines := v.title(now)
	if v.fleet == nil {
		return lines
	}
	panels := v.panels()
	for i, room := range share(panels, rows-len(lines)) {
		lines = append(lines, panels[i].lines(columns, room)...)
	}
	return lines
}

// plain is v with up to most rows of each list, as text.
func (v *topView) plain(most int, now time.Time) []line {
	lines := v.title(now)
	for _, p := range v.panels() {
		if len(p.rows) > 0 {
			lines = append(append(lines, line{}), p.lines(0, most+1)...)
		}
	}
	return lines
}

// title says what is shown, and whether it is true now.
func (v *topView) title(now time.Time) []line {
	top := line{fmt.Sprintf("perkey top  %s  prefix %s  %s", quote(v.where), quote(v.prefix), now.Format("15:04:05")), styleTitle}
	lines := []line{top}
	if v.problem != nil || v.late {
		why := "Redis does not answer"
		if v.problem != nil {
			why = "Redis does not answer: " + oneLine(v.problem.Error())
		}
		if v.fleet != nil {
			why = "STALE, read " + span(now.Sub(v.at)) + " ago. " + why
		}
		lines = append(lines, line{why, styleAlarm})
	}
	if v.fleet == nil {
		return lines
	}
	if len(v.fleet.Processes) == 0 {
		lines = append(lines, line{noBeacon(v.prefix), stylePlain})
		return append(lines, v.alarms()...)
	}
	held, waiting := 0, 0
	for _, p := range v.fleet.Processes {
		held, waiting = held+p.Local.Held, waiting+p.Local.Waiting
	}
	sums := fmt.Sprintf("%s   held %d   waiting %d   %s", plural(int64(len(v.fleet.Processes)+v.fleet.More), "process", "processes"), held, waiting, v.rateText())
	if versions := v.fleet.Versions(); len(versions) > 1 {
		sums += "   versions " + countsText(versions, versionLen)
	}
	lines = append(lines, line{strings.TrimRight(sums, " "), stylePlain})
	return append(lines, v.alarms()...)
}

func (v *topView) rateText() string {
	if !v.rates.known {
		return "calls/s -" // until a process has reported twice
	}
	sum := 0.0
	for _, n := range v.rates.second {
		sum += n
	}
	parts := []string{"calls/s " + rateOf(sum)}
	for _, kind := range []core.OutcomeKind{core.OutcomeConflict, core.OutcomeDeferred, core.OutcomeShed, core.OutcomeUnavailable, core.OutcomeError} {
		if n := v.rates.second[kind]; n > 0 {
			parts = append(parts, string(kind)+" "+rateOf(n))
		}
	}
	return strings.Join(parts, ", ")
}

func rateOf(n float64) string {
	if n > 0 && n < 10 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0")
	}
	return fmt.Sprintf("%.0f", n)
}

// weightOf is a count that decays.
func weightOf(n float64) string {
	if n > 0 && n < 0.5 {
		return "<1"
	}
	return fmt.Sprintf("%.0f", n)
}

// alarms are what needs a person.
func (v *topView) alarms() (lines []line) {
	add := func(format string, args ...any) {
		lines = append(lines, line{"! " + fmt.Sprintf(format, args...), styleAlarm})
	}
	for _, q := range v.fleet.queues {
		if q.noWorker {
			add("queue %s: %d due, late by %s, and no worker seen", quote(q.Queue), q.stats.Due, span(q.stats.Lateness))
		}
	}
	for _, w := range v.all.Warnings {
		if w.Open > 0 {
			add("%s: warning %s (%d)", quote(w.Source), quote(w.Kind), w.Open)
		}
	}
	if n := refused(v.fleet); n > 0 {
		add("%s refused the latest configuration", plural(n, "process has", "processes have"))
	}
	if v.fleet.Damaged > 0 {
		add("%s of processes cannot be read", plural(int64(v.fleet.Damaged), "entry", "entries"))
	}
	const most = 3
	if more := len(lines) - most; more > 0 {
		lines = append(lines[:most], line{fmt.Sprintf("! and %d more", more), styleAlarm})
	}
	return lines
}

const panelRows = 100 // of a list, for the largest screen

func (v *topView) panels() []panel {
	hot := panel{head: row{"HOT KEY", "CONFLICTS", "WAITED"}, right: []int{1, 2}}
	waited := map[string]float64{}
	for _, k := range v.all.Waits {
		waited[k.Key] = k.Weight
	}
	for _, k := range v.all.Conflicts {
		wait := "-"
		if w, ok := waited[k.Key]; ok {
			wait = span(time.Duration(w * float64(time.Second)))
		}
		hot.rows = append(hot.rows, row{quote(k.Key), weightOf(k.Weight), wait})
	}
	leases := panel{head: row{"OLDEST LEASE", "HELD", "REPORTED", "FOR", "PROCESS", ""}, right: []int{1, 2}}
	for _, l := range v.fleet.OldestLeases(panelRows) {
		contended := ""
		if l.Contended {
			contended = "contended"
		}
		leases.rows = append(leases.rows, row{quote(l.Key), span(l.Held), span(l.Age) + " ago", dash(l.Name), processName(l.Process), contended})
	}
	waits := panel{head: row{"LONGEST WAIT", "WAITED", "REPORTED", "FOR", "PROCESS"}, right: []int{1, 2}}
	for _, w := range v.fleet.LongestWaits(panelRows) {
		waits.rows = append(waits.rows, row{quote(w.Key), span(w.Waited), span(w.Age) + " ago", dash(w.Name), processName(w.Process)})
	}
	queues := panel{head: queueHead, rows: queueRows(v.fleet), right: []int{1, 2, 3, 4}, alarms: map[int]bool{}}
	for i, q := range v.fleet.queues {
		queues.alarms[i] = q.noWorker
	}
	events := panel{head: row{"LAST EVENT", "KEY", "FOR", "PROCESS", "AGO"}, wide: 1, right: []int{4}}
	for _, e := range v.all.Events {
		kind := quote(e.Kind)
		if e.Count > 1 {
			kind = fmt.Sprintf("%s ×%d", kind, e.Count)
		}
		key := e.Key
		if key == "" {
			key = e.Queue
		}
		events.rows = append(events.rows, row{kind, dash(key), dash(e.Name), processName(e.Process), span(v.fleet.At.Sub(e.At))})
	}
	return []panel{hot, leases, waits, queues, events}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return quote(s)
}

// share divides rows among panels: each has its head and as many of its rows as the others, or all of them. A panel with
// no rows has none, nor has one for which there is no room.
func share(panels []panel, rows int) []int {
	shares := make([]int, len(panels))
	for rows > 0 {
		given := false
		for i, p := range panels {
			want := 0
			switch {
			case len(p.rows) == 0:
			case shares[i] == 0:
				want = 2
			case shares[i] <= len(p.rows):
				want = 1
			}
			if want > 0 && want <= rows {
				shares[i], rows, given = shares[i]+want, rows-want, true
			}
		}
		if !given {
			break
		}
	}
	return shares
}

// gap is between two columns.
const gap = 2

// lines are the head of a panel and its first rows, in columns; 0: as wide as it has to be.
func (p *panel) lines(columns, rows int) []line {
	if rows == 0 {
		return nil
	}
	shown := p.rows[:min(len(p.rows), rows-1)]
	widths := p.widths(append([]row{p.head}, shown...), columns)
	lines := []line{{p.text(p.head, widths), styleHead}}
	for i, r := range shown {
		l := line{text: p.text(r, widths)}
		if p.alarms[i] {
			l.style = styleAlarm
		}
		lines = append(lines, l)
	}
	return lines
}

// widths makes the wide column narrower, or wider, so that all fit; and the others narrower where that is too narrow then.
func (p *panel) widths(all []row, columns int) []int {
	widths := make([]int, len(p.head))
	sum := gap * (len(p.head) - 1)
	for i := range widths {
		for _, r := range all {
			widths[i] = max(widths[i], cells(r[i]))
		}
		sum += widths[i]
	}
	if columns == 0 {
		return widths
	}
	const least = 16
	widths[p.wide] += columns - sum
	for widths[p.wide] < least {
		widest := -1
		for i, w := range widths {
			if i != p.wide && w > 8 && !slices.Contains(p.right, i) && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
		widths[p.wide]++
	}
	widths[p.wide] = max(widths[p.wide], 1)
	return widths
}

func (p *panel) text(r row, widths []int) string {
	var b strings.Builder
	for i, text := range r {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		b.WriteString(pad(text, widths[i], slices.Contains(p.right, i)))
	}
	return strings.TrimRight(b.String(), " ")
}

type hotJSON struct {
	keyJSON
	Weight float64 `json:"weight"`
}

type leaseJSON struct {
	keyJSON
	Process   string  `json:"process"`
	Name      string  `json:"name,omitempty"`
	Fence     int64   `json:"fence"`
	Held      float64 `json:"held_s"`
	Reported  float64 `json:"reported_ago_s"`
	Left      float64 `json:"lease_left_s"`
	Contended bool    `json:"contended,omitempty"`
}

type waitJSON struct {
	keyJSON
	Process  string  `json:"process"`
	Name     string  `json:"name,omitempty"`
	ID       string  `json:"id,omitempty"`
	Waited   float64 `json:"waited_s"`
	Reported float64 `json:"reported_ago_s"`
}

type topJSON struct {
	fleetJSON
	Conflicts []hotJSON   `json:"hot_conflicts"`
	Waits     []hotJSON   `json:"hot_waits_s"`
	Leases    []leaseJSON `json:"oldest_leases"`
	Longest   []waitJSON  `json:"longest_waits"`
	Events    []eventJSON `json:"events"`
}

func (v *topView) json() topJSON {
	j := topJSON{
		fleetJSON: fleetOf(v.fleet), Conflicts: hotOf(v.all.Conflicts), Waits: hotOf(v.all.Waits), Leases: []leaseJSON{}, Longest: []waitJSON{}, Events: []eventJSON{},
	}
	for _, l := range v.fleet.OldestLeases(panelRows) {
		j.Leases = append(j.Leases, leaseJSON{keyOf(l.Key), l.Process, l.Name, l.Fence, l.Held.Seconds(), l.Age.Seconds(), l.Remaining.Seconds(), l.Contended})
	}
	for _, w := range v.fleet.LongestWaits(panelRows) {
		j.Longest = append(j.Longest, waitJSON{keyOf(w.Key), w.Process, w.Name, w.ID, w.Waited.Seconds(), w.Age.Seconds()})
	}
	for _, e := range v.all.Events {
		j.Events = append(j.Events, eventOf(e))
	}
	return j
}

func hotOf(keys []ops.HotKey) []hotJSON {
	all := []hotJSON{}
	for _, k := range keys {
		all = append(all, hotJSON{keyOf(k.Key), k.Weight})
	}
	return all
}
