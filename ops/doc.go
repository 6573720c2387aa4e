// Package ops counts what the lockers, queues, routes, tasks and configuration of a process do, for
// an exporter, a command or a page to show. It also makes the changes of operators.
//
//	recorder := ops.NewRecorder()
//	locker, err := core.New(rdb, core.WithObserver(recorder.Locks(core.SlogObserver(nil))))
//	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithQueueObserver(recorder.Queues(nil)))
//	store, err := idempotency.New(rdb, idempotency.WithObserver(recorder.Idempotency(nil)))
//	guarded := httplock.PerKey(guard, key, httplock.WithObserver(recorder.Requests(nil)))
//	tasks := asynqlock.PerKey(guard, taskKey, asynqlock.WithRecorder(recorder))
//
// For a service with a configuration file, one option sets all of these but that for tasks:
//
//	runtime, err := config.Build(file, config.WithRecorder(recorder))
//
// A [Recorder] costs about as much as an atomic addition for each of the few things that it counts of a call: no
// allocation, no mutex and no clock for a key that nobody else wants. Its memory is bounded, whatever keys and
// names a service uses: 64 names of work, 64 routes, 64 types of tasks, 16 queues and 64 keys of each [HotKey]
// list. All of its readers use one type, [Snapshot].
//
// # The fleet
//
// A [Beacon] reports every 10 s to Redis what its process does, in at most 16 KiB, and [ReadFleet]
// reads the reports of all processes of a prefix. [Watch] has them report what happens to a key, as
// it happens.
//
//	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithWorkers(worker))
//	defer beacon.Close()
//
// # Changes
//
// An [Operator] takes a key from its holder, redrives and purges dead letters, and so on. Each call
// states who makes the change, why, and what they saw. The Operator records this in an [Audit]
// before it changes anything, and refuses the change if what they saw is no longer true.
//
//	audit, err := ops.NewAudit(rdb, locker.Prefix(), nil)
//	operator, err := ops.NewOperator(locker, audit)
//	err = operator.Unlock(ctx, ops.By{Who: "ann@bastion", Why: "hangs since the deployment"}, "order:17", fence)
//
// The audit is <prefix>:ops:audit in Redis; docs/protocol.md has its fields.
//
// # Findings
//
// [Examine] finds what needs a person: a Redis that may evict held keys, a queue without a worker,
// leases that were lost. Each [Finding] has the figures that support it, and the section of the
// runbook that says what to do.
//
//	findings, err := ops.Examine(ctx, rdb, ops.ExamineOptions{})
package ops
