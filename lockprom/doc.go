// Package lockprom exports what an [ops.Recorder] counts to Prometheus.
//
//	recorder := ops.NewRecorder()
//	prometheus.MustRegister(lockprom.New(recorder, queue))
//
// It is a module of its own, so that other packages do not depend on client_golang. [Metrics] returns its metrics.
// No key, ticket, principal or host is ever a label, and the number of series is bounded: 6,000 at most for a
// Recorder, whatever names a service uses, and 14 for each queue. A [FleetCollector] is for a separate process,
// such as perkey exporter: 7 series, and 17 for each queue.
package lockprom
