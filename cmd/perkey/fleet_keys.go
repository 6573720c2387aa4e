package main

import (
	"fmt"
	"time"

	"github.com/perkey-go/perkey/ops"
)

// How many keys of a kind fleet shows, and how many it has in JSON.
const shownKeys, listedKeys = 5, 100

// keysJSON are the keys of a fleet that are of most interest.
type keysJSON struct {
	Conflicts []hotJSON   `json:"hot_conflicts"`
	Waits     []hotJSON   `json:"hot_waits_s"`
	Leases    []leaseJSON `json:"oldest_leases"`
	Longest   []waitJSON  `json:"longest_waits"`
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

func keysOf(f ops.Fleet) keysJSON {
	all := f.Snapshot()
	j := keysJSON{Conflicts: hotOf(all.Conflicts), Waits: hotOf(all.Waits), Leases: []leaseJSON{}, Longest: []waitJSON{}}
	for _, l := range f.OldestLeases(listedKeys) {
		j.Leases = append(j.Leases, leaseJSON{keyOf(l.Key), l.Process, l.Name, l.Fence, l.Held.Seconds(), l.Age.Seconds(), l.Remaining.Seconds(), l.Contended})
	}
	for _, w := range f.LongestWaits(listedKeys) {
		j.Longest = append(j.Longest, waitJSON{keyOf(w.Key), w.Process, w.Name, w.ID, w.Waited.Seconds(), w.Age.Seconds()})
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

// The key is last, so that a long one widens no column.
var (
	hotHead   = row{"CONFLICTS", "WAITED", "HOT KEY"}
	leaseHead = row{"HELD", "FOR", "PROCESS", "OLDEST LEASE"}
	waitHead  = row{"WAITED", "FOR", "PROCESS", "LONGEST WAIT"}
)

func hotRows(all ops.Snapshot) (rows []row) {
	waited := map[string]float64{}
	for _, k := range all.Waits {
		waited[k.Key] = k.Weight
	}
	for _, k := range all.Conflicts[:min(len(all.Conflicts), shownKeys)] {
		wait := "-"
		if w, ok := waited[k.Key]; ok {
			wait = span(time.Duration(w * float64(time.Second)))
		}
		rows = append(rows, row{weightOf(k.Weight), wait, quote(k.Key)})
	}
	return rows
}

// weightOf is a count that decays.
func weightOf(n float64) string {
	if n > 0 && n < 0.5 {
		return "<1"
	}
	return fmt.Sprintf("%.0f", n)
}

func leaseRows(f ops.Fleet) (rows []row) {
	for _, l := range f.OldestLeases(shownKeys) {
		key := quote(l.Key)
		if l.Contended {
			key += "  contended"
		}
		rows = append(rows, row{span(l.Held), dash(l.Name), processName(l.Process), key})
	}
	return rows
}

func waitRows(f ops.Fleet) (rows []row) {
	for _, w := range f.LongestWaits(shownKeys) {
		rows = append(rows, row{span(w.Waited), dash(w.Name), processName(w.Process), quote(w.Key)})
	}
	return rows
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return quote(s)
}
