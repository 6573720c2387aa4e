// Package ops counts what the lockers, queues, routes, tasks and configuration of a process do, for whoever shows it: an
// exporter, a command, a page. And it makes the changes of operators.
//
//	recorder := ops.NewRecorder()
//	locker, err := core.New(rdb, core.WithObserver(recorder.Locks(core.SlogObserver(nil))))
//	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithQueueObserver(recorder.Queues(nil)))
//	store, err := idempotency.New(rdb, idempotency.WithObserver(recorder.Idempotency(nil)))
//	guarded := httplock.PerKey(guard, key, httplock.WithObserver(recorder.Requests(nil)))
//	tasks := asynqlock.PerKey(guard, taskKey, asynqlock.WithRecorder(recorder))
//
// Of a service with a configuration file one option does all of it but the tasks:
//
//	runtime, err := config.Build(file, config.WithRecorder(recorder))
//
// A [Recorder] costs about as much as an atomic addition for each of the few things that it counts of a call: no
// allocation, no mutex and no clock for a key that nobody else wants. What it knows is
// bounded, whatever keys and names a service uses: 64 names of work, 64 routes, 64 types of tasks, 16 queues and 64 keys
// of each [HotKey] list. All who read it read the same [Snapshot].
//
// # The fleet
//
// A [Beacon] tells Redis every 10 s what its process does, as far as 16 KiB hold it, and [ReadFleet] reads what all processes of
// a prefix have told. [Watch] has them tell what happens to a key, as it happens.
//
//	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithWorkers(worker))
//	defer beacon.Close()
//
// # Changes
//
// An [Operator] takes a key from its holder, redrives and purges dead letters, and so on. It wants to know who does so, why, and what
// was seen; it records that in an [Audit] before it changes anything, and refuses if what was seen is not so any more.
//
//	audit, err := ops.NewAudit(rdb, locker.Prefix(), nil)
//	operator, err := ops.NewOperator(locker, audit)
//	err = operator.Unlock(ctx, ops.By{Who: "ann@bastion", Why: "hangs since the deployment"}, "order:17", fence)
//
// The audit is <prefix>:ops:audit in Redis; docs/protocol.md has its fields.
//
// # Findings
//
// [Examine] finds what needs a person: a Redis that may evict held keys, a queue without a worker, leases that were lost. Each
// [Finding] has the figures that it is drawn from, and the section of the runbook that says what to do.
//
//	findings, err := ops.Examine(ctx, rdb, ops.ExamineOptions{})
package ops
