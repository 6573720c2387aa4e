// Package ops counts what the lockers, queues, routes, tasks and configuration of a process do, for whoever shows it: an
// exporter, a command, a page.
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
package ops
