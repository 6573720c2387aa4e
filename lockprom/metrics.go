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
func Metrics() []Metric { return described(table) }

// FleetMetrics returns all metrics that a [FleetCollector] exports.
func FleetMetrics() []Metric { return described(fleetTable) }

func described(table []*metric) []Metric {
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

var table, fleetTable []*metric // what a Collector exports, and what a FleetCollector does

func describe(name, kind, help string, labels ...string) *metric {
	return &metric{name, kind, help, labels, prometheus.NewDesc(name, help, labels, nil)}
}

func newMetric(name, kind, help string, labels ...string) *metric {
	m := describe(name, kind, help, labels...)
	table = append(table, m)
	return m
}

func newFleetMetric(name, help string, labels ...string) *metric {
	m := describe(name, gauge, help, labels...)
	fleetTable = append(fleetTable, m)
	return m
}

// newQueueMetric makes one that both export.
func newQueueMetric(name, kind, help string, labels ...string) *metric {
	m := newMetric(name, kind, help, labels...)
	fleetTable = append(fleetTable, m)
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
	queueUp       = newQueueMetric("perkey_queue_up", gauge, "Whether the queue could be asked: 1 or 0. The other metrics of its state are missing if not.", "queue")
	queueMessages = newQueueMetric("perkey_queue_messages", gauge, "Messages in the queue now.", "queue", "state")
	queueDue      = newQueueMetric("perkey_queue_due", gauge, "Messages that could be started now.", "queue")
	queueLateness = newQueueMetric("perkey_queue_lateness_seconds", gauge, "How long the first message has been due.", "queue")
	queuePaused   = newQueueMetric("perkey_queue_paused", gauge, "Whether the queue is paused: 1 or 0.", "queue")
	queueHalted   = newQueueMetric("perkey_queue_halted_keys", gauge, "Keys that a dead letter halts.", "queue")
	queueBytes    = newQueueMetric("perkey_queue_bytes", gauge, "Memory that the queue takes, as WithMaxBytes counts it.", "queue")
	queueEnded    = newQueueMetric("perkey_queue_ended_total", counter, "Messages that ended, by how, since the queue was new.", "queue", "how")
)

// What processes with a Beacon tell of themselves.
var (
	fleetUp        = newFleetMetric("perkey_fleet_up", "Whether it could be read what processes tell: 1 or 0. The other metrics of processes are missing if not.")
	fleetProcesses = newFleetMetric("perkey_fleet_processes", "Processes with a Beacon.")
	fleetVersions  = newFleetMetric("perkey_fleet_versions", "Versions of perkey that processes have; those of which it is not known count as one.")
	fleetRefused   = newFleetMetric("perkey_fleet_config_refused", "Processes that refused the latest configuration file, and have an older one in force.")
	fleetHeld      = newFleetMetric("perkey_fleet_held", "Leases that processes hold.")
	fleetWaiting   = newFleetMetric("perkey_fleet_waiting", "Calls that wait for their key in processes.")
	fleetWorkers   = newFleetMetric("perkey_fleet_workers", "Workers on the queue that are neither stopped nor paused, in processes with a Beacon.", "queue")
	fleetSlots     = newFleetMetric("perkey_fleet_worker_slots", "How many messages those workers run at once.", "queue")
	fleetNoWorker  = newFleetMetric("perkey_fleet_no_worker", "Whether messages of the queue are due and no worker is seen, also of a process without a Beacon: 1 or 0.", "queue")
)
