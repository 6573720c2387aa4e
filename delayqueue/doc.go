// Package delayqueue stores work in Redis and runs it later: at least once, one
// message per key at a time, in the order of arrival, each under the lock of its
// key. So parked work and fresh requests exclude each other.
//
//	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix("shop"), delayqueue.WithService("shop")) // the locker's prefix; see below
//	guard := locker.Guard(delayqueue.Policy(queue))           // a held key: the call is parked
//	worker, err := delayqueue.NewWorker(queue, locker, handle)   // and run when its turn comes
//	err = worker.Start()
//
// Queues with one prefix and name are one queue, so a service that shares its Redis needs its own
// prefix. [WithService] checks that: a queue belongs to the first service that names itself, and a process of another
// service is refused ([ErrOtherService]).
//
// It is also a job queue by itself: [Queue.Enqueue] takes any [Job], with or without a
// key.
//
// The queue may be on another Redis than the locks, so that parked work cannot fill the memory
// that locks need: [New] takes the client of one, and the Locker that of the other. While the queue's Redis
// is unreachable its policy fails with core.ErrUnavailable, and locks go on. While the Redis of the locks is
// unreachable, messages with a key wait, without spending attempts.
//
// # A message's life
//
//	          claim               handler returned nil
//	queued ──────────► running ─────────────────────────► done, with its result
//	  │ ▲                │  │  SkipRetry, no attempt left, RetryLater too late, unreadable record
//	  │ └────────────────┘  └───────────────────────────► dead ──── Redrive ───► queued
//	  │   failed, key held, given back, worker died
//	  ├─────────────────────────────────────────────────► expired
//	  │   older than Job.MaxAge
//	  ├─────────────────────────────────────────────────► superseded
//	  │   a newer job replaced it (Coalesce)
//	  └─────────────────────────────────────────────────► cancelled
//	      Cancel
//
// Each claim has its own token and a lease, which the worker renews for
// as long as the handler runs. A command that ends, extends or gives back a message must
// have the token of its claim; a late command is refused, and logged. When a worker
// dies its claims expire, and its messages are run again. Claims are renewed over
// separate connections, so that a pool which is used up costs no claim.
//
// A message has three counters. Attempts: claims that led to a handler, or may have.
// Conflicts: times that its key was held. They
// spend no attempt, and the message stays first in the FIFO of its key. Losses: attempts whose outcome is
// unknown, because the worker died, or lost its claim or the key's lease.
//
// Attempts are bounded ([WithMaxAttempts]). Conflicts are not: they are bounded by the message's age. So is a message whose
// handler returns [RetryLater], since something that it needs is unavailable: that spends no
// attempt either. It is tried again until it would be too old, and then becomes a dead letter. All cases are in
// docs/guarantees.md, "What is tried again". A dead letter lets the next message of its key run, unless [WithHaltOnDeath] says otherwise.
//
// A message that this process cannot run, but another process may, goes back unchanged: its payload is
// sealed under a key that its [Keyring] lacks, or the handler returns [HandBack]. Its delay
// doubles from 1 to 30 s, and it expires if no process runs it. Meanwhile its key is not
// reserved for it (see below). Each try takes its key's lock.
//
// # Batches under one lease
//
// A worker that has the lock of a key runs the messages in its FIFO one after the
// other under that one lease, for 100 ms at most; then other keys have their turn.
//
// Fresh calls do not run in between. A key with parked messages that could run now is reserved
// for them, for [WithReservationWindow] after the last of them was parked or tried. The key is not reserved while the
// first of them waits for its next attempt, nor while the queue is paused. Then fresh calls get the key, and the messages
// queued after the first one wait.
// core.KeyInfo.Reserved shows the reservation. Jobs that were not parked
// by [Policy] but enqueued reserve their key from the first time that a worker finds it
// held. All parked messages of one key belong in one queue: with two, each can end
// the other's reservation.
//
// # Latest wins
//
// [Coalesce] and [Debounce] park calls of which only the latest matters: for each key, name and principal at most one
// call is parked. A newer call replaces it, at its place in the FIFO; [Status].SupersededBy of the older one names the newer. A
// message that a handler was given is never replaced, unless its error matched [core.ErrConflict]: a newer call that is parked runs after it. While it waits for a
// retry, fresh calls run at once; the retry may then overwrite a newer save, so check a version. With Debounce a parked call waits until no newer one
// has arrived for a while, and its key is reserved for it meanwhile. For jobs there are [Job].Coalesce and [Job].QuietPeriod.
//
// # Memory
//
// Each partition takes at most 100,000 messages, 3000 on a Cluster ([WithMaxDepth], [WithMaxDepthPerKey]), and 64 MiB of Redis, including
// dead letters and the status of messages that have ended: [WithMaxBytes], [WithMaxBytesPerKey], [WithMaxBytesPerPrincipal].
// Beyond that jobs are refused with [ErrQueueFull], [ErrKeyFull] or [ErrPrincipalFull].
//
// # What holds
//
//   - A message whose Enqueue returned nil ends as done, dead (with a cause),
//     expired, cancelled or superseded, as long as Redis keeps what it acknowledged, and a worker
//     runs before the message's age and retention are over.
//   - At least once: a message runs again if its worker died, or could not tell
//     Redis of its end. Handlers can see that by Attempt and Losses, and the ID stays
//     the same: what must not be done twice needs that ID, or a fence that is claimed
//     before the read (package sqlfence).
//   - Messages of a key run in order, one at a time, under the key's lock. A
//     failed one keeps its place while it waits for its next attempt. A delayed one
//     joins when it is due. What holds for the lock holds here; see package core.
//     Without a key there is no lock and no order: a handler that ignores the end
//     of its ctx may then overlap with the next attempt.
//   - No message is started when it is older than its MaxAge, nor before its time, by the clock
//     of Redis. A worker's monotonic clock can only refuse earlier.
//   - A message that waits does not hold up messages of other keys.
//   - A record that cannot be read becomes a dead letter with a cause, and workers go on.
//
// # In Redis
//
// A queue has one partition, or several ([WithPartitions]) among which its keys are
// spread. All Redis keys of a partition share one hash tag, so
// they are in one slot of a Cluster. While that slot moves to another node, calls fail with core.ErrUnavailable,
// and no message is started.
//
// A partition has 17 keys, <prefix>:queue:{<name>}:m and so on, and one for each long payload,
// <prefix>:queue:{<name>}:b:<id>: of more than 4 KiB, and of more than 512 bytes while the partition's messages take more than 2 MiB; those of the i-th of n partitions have {<name>/i.n} for {<name>}. Every script declares what it uses.
// docs/protocol.md says what is in each. The channel <prefix>:queue:{<name>}:wake, of
// all partitions, tells that something is due earlier than before, or that a key has no
// messages any more; <prefix>:queue:{<name>}:ended, while somebody waits, which messages have ended.
//
// If something else damages these keys, a record that cannot be read becomes a dead letter with a
// cause, and the workers go on. Lost entries are not restored: a message that is neither in the due set (z) nor in its key's FIFO (f) is not run.
// While something of another type is stored under the name of one of the 17 keys, calls fail with
// core.ErrUnavailable and WRONGTYPE as its cause, and nothing is run: delete it.
//
// Everything that all processes must agree on is in <prefix>:queue:{<name>}:manifest, which has no TTL, nor has
// <prefix>:queue:names, the names of all queues (see [Queues] and [Open], for operators). Every other
// key has a TTL that is longer than its contents are needed. A payload is removed at the end of
// its message, except that of a dead letter. [WithEncryption] seals payloads, results and causes.
//
// Jobs that are enqueued, and messages that end, while a script call is in flight are sent
// together in the next one. The call that ends a claim returns the next message, so a busy
// worker does not ask for work. An idle worker sleeps until a message is due, a claim
// ends, a message becomes too old, or it is woken; at most 10 s. A message whose
// key is held has a delay, but does not wait for its end: the Locker that found it held, the guard's or then the worker's, is told of the key's
// release, and the message is due.
package delayqueue
