package lockprom

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perkey-go/perkey/ops"
)

// Metrics returns all metrics that a [Collector] exports: those of [ops.Metrics], and of queues.
func Metrics() []ops.Metric { return slices.Concat(ops.Metrics(), described(queueTable)) }

// FleetMetrics returns all metrics that a [FleetCollector] exports.
func FleetMetrics() []ops.Metric { return described(slices.Concat(queueTable, fleetTable)) }

func described(table []*metric) []ops.Metric {
	all := make([]ops.Metric, len(table))
	for i, m := range table {
		all[i] = m.Metric
		all[i].Labels = slices.Clone(m.Labels)
	}
	return all
}

const (
	counter = "counter"
	gauge   = "gauge"
)

type metric struct {
	ops.Metric
	desc *prometheus.Desc
}

func describe(m ops.Metric) *metric {
	return &metric{m, prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)}
}

// counted are those of ops.Metrics, by name.
var counted = func() map[string]*metric {
	all := map[string]*metric{}
	for _, m := range ops.Metrics() {
		all[m.Name] = describe(m)
	}
	return all
}()

var queueTable, fleetTable []*metric // both kinds of collectors export the first

func newQueueMetric(name, kind, help string, labels ...string) *metric {
	m := describe(ops.Metric{Name: name, Type: kind, Help: help, Labels: labels})
	queueTable = append(queueTable, m)
	return m
}

func newFleetMetric(name, help string, labels ...string) *metric {
	m := describe(ops.Metric{Name: name, Type: gauge, Help: help, Labels: labels})
	fleetTable = append(fleetTable, m)
	return m
}

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

// By the reports of processes with a Beacon.
var (
	fleetUp        = newFleetMetric("perkey_fleet_up", "Whether the reports of processes could be read: 1 or 0. The other metrics of processes are missing if not.")
	fleetProcesses = newFleetMetric("perkey_fleet_processes", "Processes with a Beacon.")
	fleetSilent    = newFleetMetric("perkey_fleet_silent", "Those of them that have missed a report: they died, hang, or cannot write to Redis. After two more they are dropped.")
	fleetVersions  = newFleetMetric("perkey_fleet_versions", "Versions of perkey that processes have, as far as they are known.")
	fleetRefused   = newFleetMetric("perkey_fleet_config_refused", "Processes that refused the latest configuration file, and have an older one in force.")
	fleetHeld      = newFleetMetric("perkey_fleet_held", "Leases that processes hold.")
	fleetWaiting   = newFleetMetric("perkey_fleet_waiting", "Calls that wait for their key in processes.")
	fleetWorkers   = newFleetMetric("perkey_fleet_workers", "Workers on the queue that are neither stopped nor paused, in processes with a Beacon.", "queue")
	fleetSlots     = newFleetMetric("perkey_fleet_worker_slots", "How many messages those workers run at once.", "queue")
	fleetNoWorker  = newFleetMetric("perkey_fleet_no_worker", "Whether messages of the queue are due and no worker is seen, also of a process without a Beacon: 1 or 0.", "queue")
)
