package console

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
)

// processView is the last report of a process, and when it was made by the clock of this one.
type processView struct {
	ops.Process
	At time.Time
}

// fleetView is the reports of all processes together.
type fleetView struct {
	Known         bool // it was read
	Fleet         ops.Fleet
	Processes     []processView
	Held, Waiting int
	Leases        []leaseView // the oldest first
	Waits         []waitView  // the longest first
	Hot           []hotView
	Events        []eventView // the newest first
}

type leaseView struct {
	ops.FleetLease
	Process *processView
	Since   time.Time
}

type waitView struct {
	core.LocalWait
	Process *processView
	Since   time.Time
}

// hotView is a key that calls met held.
type hotView struct {
	Key              string
	Conflicts, Waits float64
	Share            int // of the hottest one's conflicts, in percent
	Lease            *leaseView
	Waiting          int // calls that wait, of those that are reported
}

type eventView struct {
	ops.Event
	Process *processView
}

func newFleetView(f ops.Fleet) fleetView {
	v := fleetView{Known: true, Fleet: f}
	for _, p := range f.Processes {
		v.Processes = append(v.Processes, processView{p, time.Now().Add(-p.Age)})
	}
	slices.SortFunc(v.Processes, func(a, b processView) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	})
	hot := map[string]*hotView{}
	add := func(keys []ops.HotKey, to func(*hotView) *float64) {
		for _, k := range keys {
			if hot[k.Key] == nil {
				hot[k.Key] = &hotView{Key: k.Key}
			}
			*to(hot[k.Key]) += k.Weight
		}
	}
	for i := range v.Processes {
		p := &v.Processes[i]
		v.Held, v.Waiting = v.Held+p.Local.Held, v.Waiting+p.Local.Waiting
		for _, l := range p.Local.Leases {
			v.Leases = append(v.Leases, leaseView{ops.FleetLease{Process: p.ID, Age: p.Age, LocalLease: l}, p, p.At.Add(-l.Held)})
		}
		for _, w := range p.Local.Waits {
			v.Waits = append(v.Waits, waitView{w, p, p.At.Add(-w.Waited)})
		}
		for _, e := range p.Snapshot.Events {
			v.Events = append(v.Events, eventView{e, p})
		}
		add(p.Snapshot.Conflicts, func(h *hotView) *float64 { return &h.Conflicts })
		add(p.Snapshot.Waits, func(h *hotView) *float64 { return &h.Waits })
	}
	slices.SortStableFunc(v.Leases, func(a, b leaseView) int { return a.Since.Compare(b.Since) })
	slices.SortStableFunc(v.Waits, func(a, b waitView) int { return a.Since.Compare(b.Since) })
	slices.SortStableFunc(v.Events, func(a, b eventView) int { return b.At.Compare(a.At) })
	for i := range v.Leases {
		if h := hot[v.Leases[i].Key]; h != nil && h.Lease == nil {
			h.Lease = &v.Leases[i]
		}
	}
	for _, w := range v.Waits {
		if h := hot[w.Key]; h != nil {
			h.Waiting++
		}
	}
	for _, h := range hot {
		v.Hot = append(v.Hot, *h)
	}
	slices.SortFunc(v.Hot, func(a, b hotView) int {
		return cmp.Or(cmp.Compare(b.Conflicts, a.Conflicts), cmp.Compare(b.Waits, a.Waits), cmp.Compare(a.Key, b.Key))
	})
	for i := range v.Hot {
		if most := v.Hot[0].Conflicts; most > 0 {
			v.Hot[i].Share = max(1, int(100*v.Hot[i].Conflicts/most))
		}
	}
	return v
}

// Of returns the process with an id, or that of the Locker with it.
func (v fleetView) Of(id string) *processView {
	for i := range v.Processes {
		if p := &v.Processes[i]; p.ID == id || slices.Contains(p.Lockers, id) {
			return p
		}
	}
	return nil
}

// history remembers what was counted lately, while somebody reads it.
type history struct {
	mu       sync.Mutex
	counters map[string]map[string]counted // by kind, and by source
	series   map[string][]at
}

// counted are counters of a source, such as a process or queue, and how much they grow in a second.
type counted struct {
	at     time.Time
	values map[string]int64
	rates  map[string]float64
}

const maxSamples = 400 // of a series

// rates adds to series by how much counters grow in a second, summed over all sources of a kind: what is not in sources has ended. One
// that is new counts from the next time on.
func (h *history) rates(kind string, now time.Time, sources map[string]counted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sums := map[string]float64{}
	for id, c := range sources {
		was, seen := h.counters[kind][id]
		passed := c.at.Sub(was.at).Seconds()
		switch {
		case !seen:
		case passed <= 0:
			c.rates = was.rates
		default:
			c.rates = map[string]float64{}
			for name, n := range c.values {
				c.rates[name] = max(0, float64(n-was.values[name])) / passed
			}
		}
		for name, r := range c.rates {
			sums[name] += r
		}
		sources[id] = c
	}
	if h.counters == nil {
		h.counters = map[string]map[string]counted{}
	}
	h.counters[kind] = sources
	for name, sum := range sums {
		h.add(name, now, sum)
	}
}

// gauge adds a value to a series.
func (h *history) gauge(name string, now time.Time, value float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(name, now, value)
}

// add is called with mu held.
func (h *history) add(name string, now time.Time, value float64) {
	if h.series == nil {
		h.series = map[string][]at{}
	}
	all := append(h.series[name], at{now, value})
	i := 0
	for i < len(all) && (now.Sub(all[i].time) > chartTime || len(all)-i > maxSamples) {
		i++
	}
	h.series[name] = slices.Clone(all[i:])
}

func (h *history) chart(title, unit, name string) chart {
	h.mu.Lock()
	defer h.mu.Unlock()
	return newChart(title, unit, time.Now(), h.series[name])
}

// fleet adds the reports of processes.
func (h *history) fleet(v *fleetView) {
	now, sources := time.Now(), map[string]counted{}
	for i := range v.Processes {
		p := &v.Processes[i]
		values := map[string]int64{"calls": 0, "refused": 0}
		for _, s := range p.Snapshot.Locks {
			for kind, n := range s.Calls {
				values["calls"] += n
				if kind != core.OutcomeAcquired {
					values["refused"] += n
				}
			}
		}
		sources[p.ID] = counted{at: p.Snapshot.At, values: values} // by its own clock: one report is often read twice
	}
	h.rates("processes", now, sources)
	h.gauge("waiting", now, float64(v.Waiting))
	h.gauge("held", now, float64(v.Held))
}
