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

// Snapshot is what a Recorder has counted since it was made. Calls go on while it is taken: figures can be apart
// by those. It is the reader's own.
type Snapshot struct {
	// Since is when the Recorder was made, and At when the Snapshot was taken.
	Since, At time.Time
	// Locks has one for each name of work, Queues one for each queue, Requests one for each route and Tasks one for each
	// type of asynq's tasks, in order. What comes after the first 64 of each, or 16 queues, is counted under [Other]. A
	// name is cut off after 100 bytes.
	Locks    []LockStats
	Renewals RenewalStats
	Queues   []QueueStats
	Requests []RequestStats
	Tasks    []TaskStats
	// Idempotency has how many calls of what remembers requests by their Idempotency-Key ended in each way.
	Idempotency map[idempotency.EventKind]int64
	// Config is about the configuration file; nil if there is none.
	Config *ConfigStats
	// Warnings has each kind of warning that there was.
	Warnings []WarningStats
	// The keys that most calls met held, that calls waited for longest in all, and that were held
	// longest in all while calls met them held: 64 of each at most, the first being the hottest.
	// Waits and Holds have seconds for weights.
	Conflicts, Waits, Holds []HotKey
	// Events are the last 64 that somebody may want to know of, the latest first: leases that were lost or forced, calls that
	// were shed or found Redis unavailable, messages that died or expired, warnings, and configuration files that were taken or refused. Those of one kind, queue and name that come within a second of one another
	// are one event, which is the first of them; its Count says how many.
	Events []Event
}

// LockStats are about calls of one name: that of the [core.Call], or of [core.Named].
type LockStats struct {
	Name string
	// Calls has how many ended in each way.
	Calls map[core.OutcomeKind]int64
	// Held is how many leases there are now, and Waiting how many calls wait now.
	Held, Waiting int64
	// Wait has the calls that waited, from their begin to their end; Hold the leases that have ended.
	Wait, Hold Histogram
	// Lost has how many leases ended before their release, and why.
	Lost map[core.LossKind]int64
	// Unreleased is how many releases Redis was not told of: their keys stayed held until their leases ended.
	Unreleased int64
}

// RenewalStats are about batches of renewals.
type RenewalStats struct {
	// Leases is how many renewals were sent, in batches; Failed is how many batches had an error.
	Leases, Failed int64
	// Took has the batches.
	Took Histogram
}

// QueueStats are about one queue, as far as this process enqueues or works.
type QueueStats struct {
	Queue string
	// Enqueued has how many calls to store a job ended in each way, and Settled how many claims.
	Enqueued map[delayqueue.EnqueueKind]int64
	Settled  map[delayqueue.Outcome]int64
	// Redelivered and Expired are messages that this process tidied up, as in [delayqueue.Swept].
	Redelivered, Expired int64
	// Lag has for how long messages were due when they were started, KeyWait how long those with a key
	// waited for it, and Claim the time from each claim to its end.
	Lag, KeyWait, Claim Histogram
}

// RequestStats are about requests of one route.
type RequestStats struct {
	// Route is [httplock.Outcome.Name].
	Route string
	// Outcomes has how many ended in each way.
	Outcomes map[httplock.OutcomeKind]int64
}

// TaskStats are about asynq's tasks of one type.
type TaskStats struct {
	Type string
	// Outcomes has how many ended in each way, an asynqlock.OutcomeKind.
	Outcomes map[string]int64
}

// ConfigStats are about the configuration of a process.
type ConfigStats struct {
	// Version counts the files that were in force, the first one included, and Hash is that of the one that is, as
	// config.File.Hash.
	Version int
	Hash    string
	// Reloads has how many files ended in each way, a config.ReloadKind. Refused: the latest one was refused.
	Reloads map[string]int64
	Refused bool
}

// WarningStats are about one kind of warning.
type WarningStats struct {
	// Source is "locks" or "queues". Kind is a [core.WarningKind] or a [delayqueue.WarningKind].
	Source, Kind string
	// Open is of how many servers, or queues, it is warned now.
	Open int
}

// HotKey is a key that calls met held.
type HotKey struct {
	Key string
	// Weight is what is counted of the key, halved each minute: of what happened in the last minute it is
	// at least half. It is too great by Error at most.
	Weight, Error float64
}

// Snapshot returns what r has counted so far. It asks Redis nothing.
func (r *Recorder) Snapshot() Snapshot {
	now := time.Now()
	s := Snapshot{
		Since: r.since, At: now,
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
