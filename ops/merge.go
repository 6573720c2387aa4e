package ops

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
)

// Snapshot returns one Snapshot of all processes together: sums by name, queue, route and
// type; of each list of hot keys the 64 hottest, by the sum of their weights; and the
// latest 64 events, each with its Process. Since is the earliest, At the latest. Config
// is nil: see [Fleet.Configs].
func (f Fleet) Snapshot() Snapshot {
	s := Snapshot{Idempotency: map[idempotency.EventKind]int64{}}
	locks, queues, warnings := map[string]*LockStats{}, map[string]*QueueStats{}, map[warning]int{}
	requests, tasks := map[string]*RequestStats{}, map[string]*TaskStats{}
	hot := [3]map[string]HotKey{{}, {}, {}}
	for _, p := range f.Processes {
		one := p.Snapshot
		if !one.Since.IsZero() && (s.Since.IsZero() || one.Since.Before(s.Since)) {
			s.Since = one.Since
		}
		if one.At.After(s.At) {
			s.At = one.At
		}
		s.Unclaimed += one.Unclaimed
		s.Renewals.Leases, s.Renewals.Failed = s.Renewals.Leases+one.Renewals.Leases, s.Renewals.Failed+one.Renewals.Failed
		s.Renewals.Took.add(one.Renewals.Took)
		for _, l := range one.Locks {
			in(locks, l.Name, &LockStats{Name: l.Name, Calls: map[core.OutcomeKind]int64{}, Lost: map[core.LossKind]int64{}}).add(l)
		}
		for _, q := range one.Queues {
			in(queues, q.Queue, &QueueStats{
				Queue: q.Queue, Enqueued: map[delayqueue.EnqueueKind]int64{}, Settled: map[delayqueue.Outcome]int64{},
			}).add(q)
		}
		for _, r := range one.Requests {
			addCounts(in(requests, r.Route, &RequestStats{r.Route, map[httplock.OutcomeKind]int64{}}).Outcomes, r.Outcomes)
		}
		for _, t := range one.Tasks {
			addCounts(in(tasks, t.Type, &TaskStats{t.Type, map[string]int64{}}).Outcomes, t.Outcomes)
		}
		addCounts(s.Idempotency, one.Idempotency)
		for _, w := range one.Warnings {
			warnings[warning{w.Source, w.Kind}] += w.Open
		}
		for i, keys := range [...][]HotKey{one.Conflicts, one.Waits, one.Holds} {
			for _, k := range keys {
				sum := hot[i][k.Key]
				hot[i][k.Key] = HotKey{k.Key, sum.Weight + k.Weight, sum.Error + k.Error}
			}
		}
		s.Events = append(s.Events, one.Events...)
	}
	s.Locks, s.Queues, s.Requests, s.Tasks = inOrder(locks), inOrder(queues), inOrder(requests), inOrder(tasks)
	for which, open := range warnings {
		s.Warnings = append(s.Warnings, WarningStats{which.source, which.kind, open})
	}
	slices.SortFunc(s.Warnings, compareWarnings)
	s.Conflicts, s.Waits, s.Holds = hottest(hot[0]), hottest(hot[1]), hottest(hot[2])
	slices.SortStableFunc(s.Events, func(a, b Event) int { return b.At.Compare(a.At) })
	s.Events = s.Events[:min(len(s.Events), maxEvents)]
	return s
}

func in[T any](all map[string]*T, name string, fresh *T) *T {
	if all[name] == nil {
		all[name] = fresh
	}
	return all[name]
}

func inOrder[T any](all map[string]*T) (list []T) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, *all[name])
	}
	return list
}

func (l *LockStats) add(o LockStats) {
	addCounts(l.Calls, o.Calls)
	addCounts(l.Lost, o.Lost)
	l.Held, l.Waiting, l.Unreleased = l.Held+o.Held, l.Waiting+o.Waiting, l.Unreleased+o.Unreleased
	l.Wait.add(o.Wait)
	l.Hold.add(o.Hold)
}

func (q *QueueStats) add(o QueueStats) {
	addCounts(q.Enqueued, o.Enqueued)
	addCounts(q.Settled, o.Settled)
	q.Redelivered, q.Expired = q.Redelivered+o.Redelivered, q.Expired+o.Expired
	q.Lag.add(o.Lag)
	q.KeyWait.add(o.KeyWait)
	q.Claim.add(o.Claim)
}

func addCounts[K comparable](to, from map[K]int64) {
	for kind, n := range from {
		to[kind] += n
	}
}

// add adds what another histogram has counted, whose bounds may be those of another version.
func (h *Histogram) add(o Histogram) {
	for _, b := range o.Buckets {
		i, there := slices.BinarySearchFunc(h.Buckets, b.AtMost, func(b Bucket, most time.Duration) int { return cmp.Compare(b.AtMost, most) })
		if !there {
			h.Buckets = slices.Insert(h.Buckets, i, Bucket{AtMost: b.AtMost})
		}
		h.Buckets[i].Count += b.Count
	}
	h.Over, h.Count, h.Sum = h.Over+o.Over, h.Count+o.Count, h.Sum+o.Sum
}

func hottest(keys map[string]HotKey) []HotKey {
	all := slices.SortedFunc(maps.Values(keys), compareHot)
	return all[:min(len(all), sketchSize)]
}

// FleetLease is a lease of a process.
type FleetLease struct {
	Process string        // its id
	Age     time.Duration // how long ago the process reported it: it may have been released since
	core.LocalLease
}

// Late reports whether a renewal of the lease was overdue when its process reported it: less than a
// third of its TTL was left. A lease that was not renewed yet is not late.
func (l FleetLease) Late() bool { return l.Held > l.TTL && l.Remaining < l.TTL/3 }

// FleetWait is a call that waits in a process.
type FleetWait struct {
	Process string        // its id
	Age     time.Duration // how long ago the process reported it: it may have ended since
	core.LocalWait
}

// OldestLeases returns the n oldest leases, of all those in the processes' reports. Held and
// Remaining are as of the report.
func (f Fleet) OldestLeases(n int) (all []FleetLease) {
	for _, p := range f.Processes {
		for _, l := range p.Local.Leases {
			all = append(all, FleetLease{p.ID, p.Age, l})
		}
	}
	slices.SortStableFunc(all, func(a, b FleetLease) int { return cmp.Compare(b.Held, a.Held) })
	return all[:min(len(all), max(n, 0))]
}

// LongestWaits returns the n calls that have waited longest, of all those in the processes'
// reports. Waited is as of the report.
func (f Fleet) LongestWaits(n int) (all []FleetWait) {
	for _, p := range f.Processes {
		for _, w := range p.Local.Waits {
			all = append(all, FleetWait{p.ID, p.Age, w})
		}
	}
	slices.SortStableFunc(all, func(a, b FleetWait) int { return cmp.Compare(b.Waited, a.Waited) })
	return all[:min(len(all), max(n, 0))]
}

// Versions returns how many processes were built with each version of perkey; "" is for those whose
// version is not known.
func (f Fleet) Versions() map[string]int {
	versions := map[string]int{}
	for _, p := range f.Processes {
		versions[p.Version]++
	}
	return versions
}

// Configs returns how many processes have each configuration file in force, by its hash; "" is for
// those that have none.
func (f Fleet) Configs() map[string]int {
	configs := map[string]int{}
	for _, p := range f.Processes {
		hash := ""
		if c := p.Snapshot.Config; c != nil {
			hash = c.Hash
		}
		configs[hash]++
	}
	return configs
}

// QueueWorkers summarizes the workers of one queue.
type QueueWorkers struct {
	Queue string
	// Workers is how many are neither stopped nor paused. Slots and Running are their sums.
	Workers, Slots, Running int
	// Claimed is how long ago the last claim of one of them was answered; negative if none ever
	// was.
	Claimed time.Duration
	// Paused is how many are paused by [delayqueue.Worker.Pause].
	Paused int
}

// Queues returns the workers of each queue, in the order of the queues' names: of every queue that
// a process has counted something of or has a worker on.
func (f Fleet) Queues() []QueueWorkers {
	queues := map[string]*QueueWorkers{}
	of := func(queue string) *QueueWorkers { return in(queues, queue, &QueueWorkers{Queue: queue, Claimed: -1}) }
	for _, p := range f.Processes {
		for _, q := range p.Snapshot.Queues {
			if q.Queue != Other {
				of(q.Queue)
			}
		}
		for _, w := range p.Workers {
			q := of(w.Queue)
			switch {
			case w.Stopped:
				continue
			case w.Paused:
				q.Paused++
				continue
			}
			q.Workers, q.Slots, q.Running = q.Workers+1, q.Slots+w.Slots, q.Running+w.Running
			if !w.LastClaim.IsZero() { // by the clock of its process, as Snapshot.At
				if ago := max(0, p.Snapshot.At.Sub(w.LastClaim)) + p.Age; q.Claimed < 0 || ago < q.Claimed {
					q.Claimed = ago
				}
			}
		}
	}
	return inOrder(queues)
}

// noWorkerAfter is longer than an idle worker does without a claim.
const noWorkerAfter = 30 * time.Second

// NoWorker reports whether messages of a queue are due and no worker is seen that would run them:
// no process has a worker on it that claimed within 30 s, and by the queue's own statistics no
// worker of a process without a Beacon has. It is false for a queue that is paused.
func (f Fleet) NoWorker(queue string, s delayqueue.Stats) bool {
	if s.Due == 0 || s.Paused || s.SinceLastClaim < noWorkerAfter {
		return false
	}
	for _, q := range f.Queues() {
		if q.Queue == queue && q.Workers > 0 && q.Claimed >= 0 && q.Claimed < noWorkerAfter {
			return false
		}
	}
	return true
}
