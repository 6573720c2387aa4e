// Package lockotel makes OpenTelemetry spans for calls that waited for their key or were refused
// it, and linked spans for work that was parked or enqueued and for its runs. It also exports the
// metrics of an [ops.Recorder].
//
//	locker, err := core.New(rdb, core.WithObserver(lockotel.Locks(nil)))
//	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithQueueObserver(lockotel.Queues(nil)))
//	worker, err := delayqueue.NewWorker(queue, locker, handler, delayqueue.WithMiddleware(lockotel.Middleware("ship")))
//
// The tracer provider is the global one, unless [WithTracerProvider] gives another. It is a module
// of its own, so that other packages do not depend on OpenTelemetry.
//
// # Spans
//
//	perkey.acquire    INTERNAL  a call waited for its key, for 1 ms at least, or did not get it
//	park {queue}      PRODUCER  a call was stored, because its key was held
//	enqueue {queue}   PRODUCER  a job was stored
//	run {queue}       CONSUMER  a handler ran a message: a trace of its own, with a link to the span that stored it
//
// A call that gets its key at once has no span, and costs next to nothing. The span of a call that
// waited is made when the wait is over, as a child of the span in its ctx. If that is neither
// sampled nor recorded the call has none, and the sampler is not asked. Calls whose ctx has none,
// such as those of a worker that meets a held key, have no span either, unless [WithRootSpans] is
// given: each would be a trace of its own.
//
// A conflict is not an error, and neither is a call whose ctx ended: their spans have the status
// Unset. A span has the status Error if the call was shed, though its key may be free, or failed, if
// the job was not stored, and if the handler failed.
//
// A lease that is lost is an event, perkey.lease_lost, of the span that is in the ctx of its holder, if that has not ended.
//
// # Attributes
//
//	perkey.name      of the work, such as a route
//	perkey.outcome   how it ended: core.OutcomeKind, delayqueue.EnqueueKind or delayqueue.OutcomeOf
//	perkey.mode      how the call wanted to hold the key
//	perkey.waited    the seconds from the call to its end
//	perkey.attempts  how often the call asked for the key
//	perkey.waiting   how many calls waited for the key when the call last met a conflict
//	perkey.attempt   counts the runs of a message that spent an attempt
//	error.type       of a span with the status Error
//
// Spans of queues have these of the conventions for messaging, which are not stable yet: messaging.system (perkey),
// messaging.destination.name (the queue), messaging.operation.name, messaging.operation.type (send, process), messaging.message.id (the
// ticket's) and messaging.message.body.size. Keys, and the texts of errors, which may name them, are personal data in many
// services: only [WithKeys] adds them.
//
// # Metrics
//
// A [Producer] has all of [ops.Metrics], for any reader of the SDK:
//
//	reader := metric.NewPeriodicReader(exporter, metric.WithProducer(lockotel.NewProducer(recorder)))
//
// Their names are those for Prometheus with dots, and without _total and _seconds: perkey_lock_wait_seconds is
// perkey.lock.wait, with the unit s. Their attributes are the labels. Counters and histograms are cumulative since the
// Recorder was made; views of the SDK do not apply to a Producer.
//
// # Parked requests
//
// A request that is parked has a span "park", in the server's span if otelgin, otelhttp or the like is in front of the
// guard. The message carries its context, and the span "run" of the replay links to it. The replayed request has the
// span "run" as its Traceparent, so that the span of otelgin or otelhttp for the replay is a child of it.
package lockotel
