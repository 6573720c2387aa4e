// Package asynqlock runs one asynq task at a time per key, over any number of servers.
//
// PerKey is asynq middleware over a core.Guard, for a mux or around a single handler, and
// NewServer makes the servers that run it:
//
//	mux.Use(asynqlock.PerKey(guard, asynqlock.JSONField("wallet:", "user_id")))
//
//	srv, err := asynqlock.NewServer(rdb, asynq.Config{Concurrency: 10}) // rdb: the Redis of the queues
//
// # Model
//
// The handler runs while the guard holds the task's key, with a ctx that ends when the
// lease is lost, with a cause that wraps core.ErrLeaseLost; core.LeaseFrom finds the fencing
// token in it. The key is released when the handler returns, panics included, and
// not before.
//
// A task whose key is held is deferred: its worker is free at once, and asynq hands the task out
// again when the key is released or, if no release is seen, after a delay that depends on the rest
// of the holder's lease (WithDelay). That is not a failure: the task's Retried does not count it,
// and Config.ErrorHandler is not called. Deferral is bounded by age (WithMaxAge); past that the
// task is archived with an error that wraps ErrTooOld.
//
// A release wakes one task: the one that was refused first, on whichever server. An idle server finds it within
// Config.TaskCheckInterval, 50 ms unless it is set. A new task can overtake it. Where tasks run for less than 50 ms,
// the next one is woken at the start of each, and waits for its key in its worker, for 100 ms at most. Where there
// is no release, because the holder died or a core.MinHold keeps the key, the first task is woken at the end of
// the lease that it was refused for. Waiting lists the tasks that wait for a key.
//
// A task is deferred, too, while the lock's Redis is out of reach, or the guard is misconfigured. No
// handler ever runs without its key. A task that has no usable key (a bad payload) is
// archived at once.
//
// # What asynq does
//
// One task can be in two handlers at the same time, on one server or on two. asynq gives up a task
// that runs longer than its Timeout or Deadline, and hands it out again, whether or
// not its handler has stopped. It does the same after Config.ShutdownTimeout, after
// Inspector.CancelProcessing, and when a server cannot reach Redis for 30 s. The key, which
// is held until the first handler returns, is what keeps the copies apart: the second one is
// deferred meanwhile. A handler that runs on for a second after its ctx has ended is logged, once per guard.
//
// A Timeout bounds one run, including a wait for the key in the worker, but not the time for which
// a task is deferred. A task that is still deferred at its Deadline does not run: asynq fails it
// then.
//
// asynq looks whether a retry is left before it asks Config.IsFailure. A task that is refused its
// key on its last attempt, as one with MaxRetry(0) always is, would be archived. It goes on as
// a clone instead: the same task, enqueued under a derived id, while the original ends with
// asynq.RevokeTask.
//
//   - A clone has the type, payload, headers, queue, Timeout, Deadline and Retention of its task.
//     Its unique lock passes to the clone in one step, with the time that it has left. A group, which a task leaves before it comes to a handler, and a result are not kept.
//   - No retry was left, so the clone has none: its MaxRetry is 0. OriginOf returns the original's counters.
//   - Its id is the first id, a tilde and a number that grows: "x" becomes "x~1", then "x~2". To look a task up by its id, look for those too. Since "x" is gone, asynq would accept another task "x": to enqueue something once use asynq.Unique, or give tasks a retry, since they are cloned only on their last attempt.
//   - asynq counts the original as processed, and logs that it was revoked.
//   - A crash, or the end of a Timeout or Deadline, between clone and revocation leaves both: the original, whose
//     last attempt this was, is archived by asynq, and the clone goes on. An original
//     that asynq hands out again, which a shutdown at that moment does, finds its clone, unless
//     the key is free by then: then both run.
//
// Tasks run at least once, as with asynq itself.
//
// # Another Redis
//
// A task that is in a handler is active in the Redis of its server. A server of NewServer has only
// that one. If Configure was given a client of another Redis, or of another database, this is found
// at the first task that comes to a guard: the task is not active there. An error that says what to
// do is logged once, and is the last error of each deferred task. Nothing is written to the other
// Redis, and no task is archived because of it:
//
//   - A task on its last attempt stays in its worker. It holds no key there, and asks for its
//     key again after WithDelay's least, but no sooner than after 250 ms. A shutdown puts it back into its
//     queue. WithMaxAge bounds this, and so does the task's Timeout or Deadline, at which asynq archives it.
//   - A task with a retry left is deferred as usual, but WithMaxAge does not bound it.
//
// # Outcomes
//
//	the key is held, or reserved         deferred
//	the lock's Redis is unavailable      deferred, and logged
//	the Locker is closed                 deferred
//	guard or key function misconfigured  deferred, and logged once
//	deferred for longer than the age     archived, with ErrTooOld
//	no usable key in the task            archived
//	the key function failed otherwise    a failure: retried by asynq
//	the handler failed                   a failure: retried by asynq
//	the lease was lost                   a failure, also of a handler that returned nil: the outcome is
//	                                     unknown. Its SkipRetry and RevokeTask are honored
//	the last attempt, and the Redis of   stays in its worker, and asks for its key again; logged
//	Configure takes no clone
//
// # Policies
//
// core.RejectConflicts is right for nearly all guards: a policy that waits (package retry) does so in a worker slot,
// and a hot key soon fills them all. A wait shorter than a handler's run saves deferrals; it counts towards the
// task's Timeout, and ends up to a second before that. Tasks cannot be parked, since asynq is a queue itself: a policy that parks is a conflict.
//
// A guard made with core.Counted(n) lets n tasks per key run at the same time. With Type as its
// key it bounds a type over all servers.
//
// # Without NewServer or Configure
//
// No task runs without its key, but asynq treats each refusal as a failure: it spends retries, waits
// exponentially longer, and archives the task when none is left. A warning is logged at the first
// task, once per guard. Middleware between asynq and PerKey must return PerKey's errors, or ones that
// wrap them.
//
// # Shutdown
//
// Shut the asynq server down first, then the Locker: Locker.Shutdown waits for handlers that
// asynq has given up. Tasks that asynq hands out again wait until the handler releases the
// key or, if the process ended, until its lease ends.
package asynqlock
