package lockprom

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric describes a metric.
type Metric struct {
	Name   string
	Type   string // counter, gauge or histogram; a histogram has the usual _bucket, _sum and _count
	Labels []string
	Help   string
}

// Metrics returns all metrics that a [Collector] exports.
func Metrics() []Metric {
	all := make([]Metric, len(table))
	for i, m := range table {
		all[i] = Metric{m.name, m.kind, slices.Clone(m.labels), m.help}
	}
	return all
}

const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

type metric struct {
	name, kind, help string
	labels           []string
	desc             *prometheus.Desc
}

var table []*metric

func newMetric(name, kind, help string, labels ...string) *metric {
	m := &metric{name, kind, help, labels, prometheus.NewDesc(name, help, labels, nil)}
	table = append(table, m)
	return m
}

// What a Recorder counts, in this process.
var (
	lockCalls      = newMetric("perkey_lock_calls_total", counter, "Calls for a key, by how they ended.", "name", "outcome")
	lockWait       = newMetric("perkey_lock_wait_seconds", histogram, "Time from the begin to the end of calls that waited for their key.", "name")
	lockHold       = newMetric("perkey_lock_hold_seconds", histogram, "Time for which leases were held.", "name")
	lockHeld       = newMetric("perkey_lock_held", gauge, "Leases held now.", "name")
	lockWaiting    = newMetric("perkey_lock_waiting", gauge, "Calls that wait for their key now.", "name")
	lockLost       = newMetric("perkey_lock_lost_total", counter, "Leases that ended before their release, by why: expired, gone, forced, released or closed.", "name", "cause")
	lockUnreleased = newMetric("perkey_lock_unreleased_total", counter, "Releases that Redis was not told of: the keys stayed held until the leases ended.", "name")

	renewals      = newMetric("perkey_renewals_total", counter, "Renewals of leases that were sent.")
	renewalErrors = newMetric("perkey_renewal_errors_total", counter, "Batches of renewals that failed; they are sent again.")
	renewalTook   = newMetric("perkey_renewal_seconds", histogram, "Round trips of batches of renewals.")

	warning = newMetric("perkey_warning", gauge, "Servers or queues that it is warned of now.", "source", "kind")

	enqueued    = newMetric("perkey_enqueue_total", counter, "Calls to store a job, by how they ended.", "queue", "result")
	queueEvents = newMetric("perkey_queue_events_total", counter, "Ends of claims, and messages that were tidied up: redelivered, since their worker died, or overdue, too old to be started.", "queue", "event")
	queueLag    = newMetric("perkey_queue_lag_seconds", histogram, "Time for which messages were due when they were started.", "queue")
	keyWait     = newMetric("perkey_worker_key_wait_seconds", histogram, "Time for which messages with a key waited for it after their claim.", "queue")
	claim       = newMetric("perkey_worker_claim_seconds", histogram, "Time from claims to their ends.", "queue")

	requests = newMetric("perkey_http_requests_total", counter, "Requests to guarded routes, by what became of them.", "route", "outcome")
	records  = newMetric("perkey_idempotency_total", counter, "Calls of what remembers requests by their Idempotency-Key, by how they ended.", "event")
	tasks    = newMetric("perkey_tasks_total", counter, "Tasks of asynq, each time that one was handed out, by what became of it.", "type", "outcome")

	reloads       = newMetric("perkey_config_reloads_total", counter, "Configuration files that were to replace the one in force, by what became of them: done, unchanged or refused.", "result")
	reloadRefused = newMetric("perkey_config_refused", gauge, "Whether the latest configuration file was refused, and an older one is in force: 1 or 0.")
	configInfo    = newMetric("perkey_config_info", gauge, "1, for the configuration file in force: the first 12 digits of its SHA-256, and its number in this process, the first being 1.", "version", "hash")

	buildInfo = newMetric("perkey_build_info", gauge, "1, for the version of perkey and of Go.", "version", "goversion")
)

// What Redis says of a queue: each process that collects it exports the same.
var (
	queueUp       = newMetric("perkey_queue_up", gauge, "Whether the queue could be asked: 1 or 0. The other metrics of its state are missing if not.", "queue")
	queueMessages = newMetric("perkey_queue_messages", gauge, "Messages in the queue now.", "queue", "state")
	queueDue      = newMetric("perkey_queue_due", gauge, "Messages that could be started now.", "queue")
	queueLateness = newMetric("perkey_queue_lateness_seconds", gauge, "How long the first message has been due.", "queue")
	queuePaused   = newMetric("perkey_queue_paused", gauge, "Whether the queue is paused: 1 or 0.", "queue")
	queueHalted   = newMetric("perkey_queue_halted_keys", gauge, "Keys that a dead letter halts.", "queue")
	queueBytes    = newMetric("perkey_queue_bytes", gauge, "Memory that the queue takes, as WithMaxBytes counts it.", "queue")
	queueEnded    = newMetric("perkey_queue_ended_total", counter, "Messages that ended, by how, since the queue was new.", "queue", "how")
)
