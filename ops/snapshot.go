package ops

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
)

// Snapshot is what a Recorder has counted since it was made. Calls go on while it is taken, so
// figures can differ by those. It is a copy: the caller may change it.
type Snapshot struct {
	// Since is when the Recorder was made, and At when the Snapshot was taken.
	Since, At time.Time
	// Locks has one for each name of work, Queues one for each queue, Requests one for each route and Tasks one for each
	// type of asynq's tasks, in order. What comes after the first 64 of each, or 16 queues, is counted under [Other]. A
	// name is cut off after 100 bytes.
	Locks []LockStats
	// Unclaimed counts grants that came after their calls had left.
	Unclaimed int64
	Renewals  RenewalStats
	Queues    []QueueStats
	Requests  []RequestStats
	Tasks     []TaskStats
	// Idempotency counts the calls of idempotency Stores, by how they ended.
	Idempotency map[idempotency.EventKind]int64
	// Config is about the configuration file; nil if there is none.
	Config *ConfigStats
	// Warnings has one entry for each kind of warning that was given.
	Warnings []WarningStats
	// Conflicts are the keys that most calls found held; Waits those for which calls waited longest
	// in total; Holds those that were held longest in total while calls found them held. Each has
	// at most 64, the hottest first. The weights of Waits and Holds are seconds.
	Conflicts, Waits, Holds []HotKey
	// Events are the last 64 notable events, the latest first: leases that were lost or forced, calls that were shed or
	// found Redis unavailable, messages that died or expired, warnings, and configuration files that were taken or
	// refused. Events of one kind, queue and name within a second are one event, the first of them; its Count says how
	// many.
	Events []Event
}

// LockStats are the figures of calls with one name: that of the [core.Call], or of [core.Named].
type LockStats struct {
	Name string
	// Calls has how many ended in each way.
	Calls map[core.OutcomeKind]int64
	// Held is how many leases exist now, and Waiting how many calls wait now.
	Held, Waiting int64
	// Wait is how long the calls that waited took, and Hold how long the leases that have ended
	// were held.
	Wait, Hold Histogram
	// Lost counts the leases that ended before their release, by why.
	Lost map[core.LossKind]int64
	// Unreleased counts releases that did not reach Redis: their keys stayed held until their
	// leases ended.
	Unreleased int64
}

// RenewalStats are the figures of renewals, which are sent in batches.
type RenewalStats struct {
	// Leases is how many renewals were sent, in batches; Failed is how many batches had an error.
	Leases, Failed int64
	// Took is how long the batches took.
	Took Histogram
}

// QueueStats are this process's figures of one queue, as its producer or worker.
type QueueStats struct {
	Queue string
	// Enqueued counts the calls to store a job, and Settled the claims, by how they ended.
	Enqueued map[delayqueue.EnqueueKind]int64
	Settled  map[delayqueue.Outcome]int64
	// Redelivered and Expired are messages that this process reaped, as in [delayqueue.Reaped].
	Redelivered, Expired int64
	// Lag is for how long messages were due when they were started, KeyWait how long those with a
	// key waited for it, and Claim the time from each claim to its end.
	Lag, KeyWait, Claim Histogram
}

// RequestStats are the figures of one route's requests.
type RequestStats struct {
	// Route is [httplock.Outcome.Name].
	Route string
	// Outcomes counts the requests by how they ended.
	Outcomes map[httplock.OutcomeKind]int64
}

// TaskStats are the figures of asynq's tasks of one type.
type TaskStats struct {
	Type string
	// Outcomes counts the tasks by how they ended, an asynqlock.OutcomeKind.
	Outcomes map[string]int64
}

// ConfigStats are the figures of a process's configuration.
type ConfigStats struct {
	// Version counts the files that were in force, the first one included. Hash is config.File.Hash
	// of the file in force.
	Version int
	Hash    string
	// Reloads has how many files ended in each way, a config.ReloadKind. Refused: the latest one was refused.
	Reloads map[string]int64
	Refused bool
}

// WarningStats are the figures of one kind of warning.
type WarningStats struct {
	// Source is "locks" or "queues". Kind is a [core.WarningKind] or a [delayqueue.WarningKind].
	Source, Kind string
	// Open is for how many servers, or queues, the warning holds now.
	Open int
}

// HotKey is a key that calls found held.
type HotKey struct {
	Key string
	// Weight is what was counted for the key, halved each minute: it includes at least half of what
	// happened in the last minute. It is too great by at most Error.
	Weight, Error float64
}

// Snapshot returns what r has counted so far. It asks Redis nothing.
func (r *Recorder) Snapshot() Snapshot {
	now := time.Now()
	s := Snapshot{
		Since: r.since, At: now,
		Unclaimed: r.unclaimed.Load(),
		Renewals:  RenewalStats{Leases: r.renewals.leases.Load(), Failed: r.renewals.failed.Load(), Took: r.renewals.took.snapshot()},
		Conflicts: r.conflicts.top(now), Waits: r.waits.top(now), Holds: r.holds.top(now),
	}
	r.locks.each((*lockCounters).used, func(name string, c *lockCounters) {
		s.Locks = append(s.Locks, LockStats{
			Name: name, Calls: counts(outcomes[:], c.calls[:]), Held: c.held.Load(), Waiting: c.waiting.Load(),
			Wait: c.wait.snapshot(), Hold: c.hold.snapshot(), Lost: counts(lossKinds[:], c.lost[:]), Unreleased: c.unreleased.Load(),
		})
	})
	r.queues.each((*queueCounters).used, func(name string, c *queueCounters) {
		s.Queues = append(s.Queues, QueueStats{
			Queue: name, Enqueued: counts(enqueueKinds[:], c.enqueued[:]), Settled: counts(settleKinds[:], c.settled[:]),
			Redelivered: c.redelivered.Load(), Expired: c.expired.Load(),
			Lag: c.lag.snapshot(), KeyWait: c.keyWait.snapshot(), Claim: c.claim.snapshot(),
		})
	})
	r.requests.each((*requestCounters).used, func(name string, c *requestCounters) {
		s.Requests = append(s.Requests, RequestStats{name, counts(requestKinds[:], c[:])})
	})
	r.tasks.each((*taskCounters).used, func(name string, c *taskCounters) {
		s.Tasks = append(s.Tasks, TaskStats{name, counts(taskKinds[:], c[:])})
	})
	s.Idempotency = counts(recordKinds[:], r.records[:])
	s.Config = r.config.snapshot()
	s.Warnings, s.Events = r.warnings.snapshot(), r.notable.latest()
	return s
}

func counts[K comparable](kinds []K, counters []atomic.Int64) map[K]int64 {
	m := make(map[K]int64, len(kinds))
	for i, kind := range kinds {
		m[kind] = counters[i].Load()
	}
	return m
}

func (w *warnings) snapshot() (all []WarningStats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for which, subjects := range w.open {
		all = append(all, WarningStats{which.source, which.kind, len(subjects)})
	}
	slices.SortFunc(all, compareWarnings)
	return all
}

func compareWarnings(a, b WarningStats) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Kind, b.Kind))
}
