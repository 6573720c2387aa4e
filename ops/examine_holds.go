package ops

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// When a hold is long: ten times what is usual for its name, if that is known, in these bounds.
const (
	longHold     = time.Minute // what is usual is not known
	leastLong    = 10 * time.Second
	mostLong     = 10 * time.Minute
	timesUsual   = 10
	usualOf      = 100 // holds that have ended, or more
	maxLongHolds = 16
)

// longHeld is a lease that is held for long, by now.
type longHeld struct {
	FleetLease
	process *Process
	held    time.Duration
	most    time.Duration // a hold that is not long
}

// longHolds are the leases that are held for longer than is usual for their names, the oldest first.
func (f Fleet) longHolds() (all []longHeld) {
	usual := map[string]*Histogram{}
	for i := range f.Processes {
		p := &f.Processes[i]
		for _, l := range p.Local.Leases {
			if held := l.Held + p.Age; held > leastLong {
				all = append(all, longHeld{FleetLease{p.ID, p.Age, l}, p, held, 0})
				in(usual, shown(l.Name), &Histogram{})
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	for _, p := range f.Processes {
		for _, s := range p.Snapshot.Locks {
			if h := usual[s.Name]; h != nil {
				h.add(s.Hold)
			}
		}
	}
	for i := range all {
		all[i].most = usual[shown(all[i].Name)].longest()
	}
	all = slices.DeleteFunc(all, func(l longHeld) bool { return l.held <= l.most })
	slices.SortStableFunc(all, func(a, b longHeld) int { return cmp.Compare(b.held, a.held) })
	return all
}

// longest is a hold of a name that is not long yet, by those that have ended.
func (h *Histogram) longest() time.Duration {
	if h.Count < usualOf {
		return longHold
	}
	n := int64(0)
	for _, b := range h.Buckets {
		if n += b.Count; n*100 >= h.Count*99 { // 99 of 100 were no longer
			return min(max(timesUsual*b.AtMost, leastLong), mostLong)
		}
	}
	return mostLong
}

// LongHeld returns the keys that are held for longer than is usual for the name of the work, the
// oldest first and at most 16: QueueFacts.Parked should have these. A hold is long if it takes more
// than ten times the 99th percentile of its name, but no less than 10 s and no more than 10 min; if
// fewer than 100 have ended, more than a minute.
func (f Facts) LongHeld() (keys []string) {
	if f.Fleet.Err != nil {
		return nil
	}
	for _, l := range f.Fleet.Value.longHolds() {
		if len(keys) < maxLongHolds && !slices.Contains(keys, l.Key) {
			keys = append(keys, l.Key)
		}
	}
	return keys
}

// longHolds finds keys that are held for long while calls wait for them, or work is parked.
func (f *findings) longHolds(fleet Fleet) {
	waiting := map[string]int{}
	for _, w := range fleet.LongestWaits(math.MaxInt) {
		waiting[w.Key]++
	}
	parked, most := map[string]int{}, false
	var queues []QueueFacts
	if f.now.Sub(f.facts.Queues.At) <= staleAfter {
		queues = f.facts.Queues.Value
	}
	for _, q := range queues {
		for key, n := range q.Parked {
			parked[key] += n
			most = most || n == maxParked
		}
	}
	var all []longHeld
	var keys distinct
	var holders []string
	calls, messages := 0, 0
	for _, l := range fleet.longHolds() {
		if !l.Contended && waiting[l.Key] == 0 && parked[l.Key] == 0 || !keys.add(l.Key) {
			continue
		}
		all, holders = append(all, l), append(holders, l.process.where())
		calls, messages = calls+waiting[l.Key], messages+parked[l.Key]
	}
	if len(all) == 0 {
		return
	}
	figures := []Evidence{{"longest hold", brief(all[0].held), "at most " + brief(all[0].most)}, examples("held by", holders)}
	if calls > 0 {
		figures = append(figures, Evidence{"calls that wait, as their processes report", strconv.Itoa(calls), ""})
	}
	if messages > 0 {
		more := ""
		if most {
			more = " or more"
		}
		figures = append(figures, Evidence{"messages queued after them", fmt.Sprint(messages, more), ""})
	}
	found := f.add("long_holds", SeverityLook, "", count(len(all), "key is", "keys are")+" held for longer than usual while others wait.", figures...)
	found.about(keys.all)
}
