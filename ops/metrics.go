package ops

import (
	"cmp"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
)

// Metric describes a metric of a process, as lockprom and lockotel export it.
type Metric struct {
	Name   string // as Prometheus has it
	Type   string // counter, gauge or histogram
	Labels []string
	Help   string
}

// Sample is a value of a Metric.
type Sample struct {
	Metric Metric
	Labels []string // the values of the Metric's, in the same order
	Value  float64
	// Histogram is that of a histogram, which has no Value; nil for others.
	Histogram *Histogram
}

// Metrics returns the metrics of which [Snapshot.Samples] has values.
func Metrics() []Metric {
	all := slices.Clone(metrics)
	for i := range all {
		all[i].Labels = slices.Clone(all[i].Labels)
	}
	return all
}

var metrics []Metric

func newMetric(name, kind, help string, labels ...string) *Metric {
	m := Metric{Name: name, Type: kind, Labels: labels, Help: help}
	metrics = append(metrics, m)
	return &m
}

const (
	typeCounter   = "counter"
	typeGauge     = "gauge"
	typeHistogram = "histogram"
)

var (
	lockCalls      = newMetric("perkey_lock_calls_total", typeCounter, "Calls for a key, by outcome.", "name", "outcome")
	lockWait       = newMetric("perkey_lock_wait_seconds", typeHistogram, "Time from the start to the end of calls that waited for their key.", "name")
	lockHold       = newMetric("perkey_lock_hold_seconds", typeHistogram, "Time for which leases were held.", "name")
	lockHeld       = newMetric("perkey_lock_held", typeGauge, "Leases held now.", "name")
	lockWaiting    = newMetric("perkey_lock_waiting", typeGauge, "Calls that wait for their key now.", "name")
	lockLost       = newMetric("perkey_lock_lost_total", typeCounter, "Leases that ended before their release, by cause: expired, gone, forced, released or closed.", "name", "cause")
	lockUnreleased = newMetric("perkey_lock_unreleased_total", typeCounter, "Releases that did not reach Redis: the keys stayed held until the leases ended.", "name")

	lockUnclaimed  = newMetric("perkey_lock_unclaimed_total", typeCounter, "Grants that came after their calls had left.")
	renewalsSent   = newMetric("perkey_renewals_total", typeCounter, "Renewals of leases that were sent.")
	renewalsFailed = newMetric("perkey_renewal_errors_total", typeCounter, "Batches of renewals that failed; they are sent again.")
	renewalsTook   = newMetric("perkey_renewal_seconds", typeHistogram, "Round trips of batches of renewals.")

	warnedOf = newMetric("perkey_warning", typeGauge, "Servers or queues with a warning now.", "source", "kind")

	enqueueCalls = newMetric("perkey_enqueue_total", typeCounter, "Calls to store a job, by result.", "queue", "result")
	queueEvents  = newMetric("perkey_queue_events_total", typeCounter, "Ends of claims, and messages that were reaped: redelivered, since their worker died, or overdue, too old to be started.", "queue", "event")
	queueLag     = newMetric("perkey_queue_lag_seconds", typeHistogram, "Time for which messages were due when they were started.", "queue")
	keyWaits     = newMetric("perkey_worker_key_wait_seconds", typeHistogram, "Time for which messages with a key waited for it after their claim.", "queue")
	claims       = newMetric("perkey_worker_claim_seconds", typeHistogram, "Time from claims to their ends.", "queue")

	requestOutcomes = newMetric("perkey_http_requests_total", typeCounter, "Requests to guarded routes, by outcome.", "route", "outcome")
	recordEvents    = newMetric("perkey_idempotency_total", typeCounter, "Calls to the store of Idempotency-Keys, by result.", "event")
	taskOutcomes    = newMetric("perkey_tasks_total", typeCounter, "Tasks of asynq, by outcome: a task counts each time that asynq hands it out.", "type", "outcome")

	configReloads = newMetric("perkey_config_reloads_total", typeCounter, "Attempts to replace the configuration file in force, by result: done, unchanged or refused.", "result")
	configRefused = newMetric("perkey_config_refused", typeGauge, "Whether the latest configuration file was refused, and an older one is in force: 1 or 0.")
	configInfo    = newMetric("perkey_config_info", typeGauge, "1, for the configuration file in force: the first 12 digits of its SHA-256, and its number in this process, the first being 1.", "version", "hash")

	buildInfo = newMetric("perkey_build_info", typeGauge, "1, for the version of perkey and of Go.", "version", "goversion")
)

// hashDigits tell files apart as well as all of a hash.
const hashDigits = 12

// Samples returns the values of all [Metrics] that a Snapshot has, and perkey_build_info, which is
// of this process. The names in their Metric.Labels are shared and must not be changed; the rest
// is a copy, which the caller may change.
func (s Snapshot) Samples() []Sample {
	all, b := samples{}, built()
	all.add(buildInfo, 1, cmp.Or(b.version, "unknown"), cmp.Or(b.golang, "unknown"))
	all.addSnapshot(s)
	return all
}

type samples []Sample

func (all *samples) add(m *Metric, value float64, labels ...string) {
	*all = append(*all, Sample{Metric: *m, Labels: labels, Value: value})
}

func (all *samples) addTimes(m *Metric, h Histogram, labels ...string) {
	*all = append(*all, Sample{Metric: *m, Labels: labels, Histogram: &h})
}

// addEach adds one for each kind, the last label.
func addEach[K ~string](all *samples, m *Metric, counts map[K]int64, labels ...string) {
	for kind, n := range counts {
		all.add(m, float64(n), slices.Concat(labels, []string{string(kind)})...)
	}
}

func (all *samples) addSnapshot(s Snapshot) {
	for _, l := range s.Locks {
		addEach(all, lockCalls, l.Calls, l.Name)
		addEach(all, lockLost, l.Lost, l.Name)
		all.addTimes(lockWait, l.Wait, l.Name)
		all.addTimes(lockHold, l.Hold, l.Name)
		all.add(lockHeld, float64(l.Held), l.Name)
		all.add(lockWaiting, float64(l.Waiting), l.Name)
		all.add(lockUnreleased, float64(l.Unreleased), l.Name)
	}
	all.add(lockUnclaimed, float64(s.Unclaimed))
	all.add(renewalsSent, float64(s.Renewals.Leases))
	all.add(renewalsFailed, float64(s.Renewals.Failed))
	all.addTimes(renewalsTook, s.Renewals.Took)
	for _, w := range s.Warnings {
		all.add(warnedOf, float64(w.Open), w.Source, w.Kind)
	}
	for _, q := range s.Queues {
		addEach(all, enqueueCalls, q.Enqueued, q.Queue)
		addEach(all, queueEvents, q.Settled, q.Queue)
		all.add(queueEvents, float64(q.Redelivered), q.Queue, "redelivered")
		all.add(queueEvents, float64(q.Expired), q.Queue, "overdue")
		all.addTimes(queueLag, q.Lag, q.Queue)
		all.addTimes(keyWaits, q.KeyWait, q.Queue)
		all.addTimes(claims, q.Claim, q.Queue)
	}
	for _, r := range s.Requests {
		addEach(all, requestOutcomes, r.Outcomes, r.Route)
	}
	addEach(all, recordEvents, s.Idempotency)
	for _, t := range s.Tasks {
		addEach(all, taskOutcomes, t.Outcomes, t.Type)
	}
	if c := s.Config; c != nil {
		refused := 0.0
		if c.Refused {
			refused = 1
		}
		addEach(all, configReloads, c.Reloads)
		all.add(configRefused, refused)
		all.add(configInfo, 1, strconv.Itoa(c.Version), c.Hash[:min(len(c.Hash), hashDigits)])
	}
}

const module = "github.com/perkey-go/perkey"

// build has the versions of perkey and of Go that a program was built with, and the path of its main package; empty: not known.
type build struct{ version, golang, path string }

// built is the build of this process. It is read once: debug.ReadBuildInfo parses it each time.
var built = sync.OnceValue(func() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build{}
	}
	return build{versionIn(info), info.GoVersion, info.Path}
})

// versionIn is the version of perkey in a program.
func versionIn(info *debug.BuildInfo) string {
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, m := range info.Deps {
		if m.Path != module {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return cmp.Or(m.Version, "(devel)")
	}
	return ""
}
