// Package delayqueue stores work in Redis and runs it later: at least once, one
// message per key at a time, in the order of arrival, each under the lock of its
// key, so that parked work and fresh requests exclude each other.
//
//	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix("shop"), delayqueue.WithService("shop")) // the locker's prefix; see below
//	guard := locker.Guard(delayqueue.Policy(queue))           // a held key: the call is parked
//	worker, err := delayqueue.NewWorker(queue, locker, handle)   // and run when its turn comes
//	err = worker.Start()
//
// Queues of one prefix and name are one queue, so a service that shares its Redis needs a
// prefix of its own. WithService sees to it: a queue is the service's that named it first, and a process of another
// name is refused ([ErrOtherService]).
//
// It is a job queue by itself, too: Queue.Enqueue takes any Job, with or without a
// key.
//
// The queue may be on another Redis than the locks, so that what is parked cannot fill the memory
// that locks need: New takes the one's client, and the Locker the other's. While the queue's Redis
// is away its policy fails with core.ErrUnavailable, and locks go on. While that of the locks is
// away messages with a key wait, and nothing counts against them.
//
// # A message's life
//
//	          claim               handler returned nil
//	queued ──────────► running ─────────────────────────► done, with its result
//	  │ ▲                │  │  SkipRetry, no attempt left, RetryLater too late, or junk
//	  │ └────────────────┘  └───────────────────────────► dead ──── Redrive ───► queued
//	  │   failed, key held, given back, worker died
//	  ├─────────────────────────────────────────────────► expired
//	  │   not_after has passed
//	  ├─────────────────────────────────────────────────► superseded
//	  │   a newer job replaced it (Coalesce)
//	  └─────────────────────────────────────────────────► cancelled
//	      Cancel
//
// Each claim carries a token of its own and a lease, which the worker renews for
// as long as the handler runs. What ends, extends or gives back a message must
// carry the token of its claim; a late one is refused, and logged. A worker that
// dies lets its claims run out, and its messages are run again. Claims are renewed over
// connections of their own, so that a pool which is used up costs none.
//
// Three counters are apart. Attempts: claims that led to a handler, or may have.
// Conflicts: turns at which the key was held, or had older messages in a partition that Repartition closed; they spend no attempt, and the
// message stays first in the FIFO of its key. Losses: attempts whose outcome is
// unknown, because the worker died or lost its claim or the key's lease. A
// message dies of its attempts, never of conflicts: those are bounded by its age (docs/guarantees.md, What is tried again, has it all). So is what a
// handler returns as [RetryLater], since something that it needs is unavailable: that spends no
// attempt either. It is tried again until it would be too old, and is a dead letter then.
//
// A message that this process cannot run but another may goes back untouched: its payload is
// sealed under a key that the Keyring lacks, or the handler returns [HandBack]. Its delay
// doubles from 1 to 30 s, and it expires if no process runs it. Meanwhile its key is not
// reserved, and a Worker that has seen it before, or that is told by [WithCheck], takes no lock for it: 10,000 such
// messages cost less than 100 commands per second.
//
// # Turns
//
// A worker that has the lock of a key runs the messages in its FIFO one after the
// other under that one lease, for 100 ms at most; then other keys have their turn.
//
// Fresh calls do not come between: a key with parked messages that could run now is reserved
// for them, for WithReservationWindow after the last of them was parked or tried. While the first of
// them waits for its next attempt, or for a second since the locks could not be reached, or the queue is paused, it is
// not, and fresh calls get the key; those queued after it wait. core.KeyInfo.Reserved shows it. Jobs that were not parked
// by Policy but enqueued have that from the first time that a worker meets their
// held key. The parked messages of one key belong in one queue: of two, each can end
// the other's reservation.
//
// # Latest wins
//
// [Coalesce] and [Debounce] park calls of which only the latest matters: of each key, name and principal one at most
// is parked. A newer one takes its place in line; [Status.SupersededBy] of the older one names it. What a handler
// was given is never replaced: a newer one that is parked runs after it. One that is fresh does not wait for it while it waits for its
// next attempt, and may be undone by it: an older save that is retried should find out, by a version, that it is older. With Debounce a parked call waits until no newer one
// has come for a while, and its key is reserved for it meanwhile. The same is there for jobs: [Job.Coalesce], [Job.Quiet].
//
// A dead letter lets the next message of its key run, unless [WithHaltOnDeath] says otherwise.
//
// # Memory
//
// A queue takes 64 MiB of Redis in each partition at most, what has ended and dead letters included:
// [WithMaxBytes], [WithMaxBytesPerKey], [WithMaxBytesPerPrincipal]. Beyond that jobs are refused with
// ErrQueueFull, ErrKeyFull or ErrPrincipalFull.
//
// # What holds
//
//   - A message whose Enqueue returned nil ends as done, dead (with a cause),
//     expired, cancelled or superseded, as long as Redis keeps what it acknowledged, and a worker
//     comes by before the message and its retention are over.
//   - At least once: a message runs again if its worker died, or could not tell
//     Redis of the end. Handlers see it by Attempt and Losses, and the ID stays
//     the same: what must not be done twice needs that ID, or a fence that is claimed
//     before the read (package sqlfence).
//   - Messages of a key run in order, one at a time, under the key's lock. A
//     failed one keeps its place while it waits for its next attempt. A delayed one
//     joins when it is due. What holds for the lock holds here; see package core.
//     Without a key there is no lock and no order: a handler that ignores the end
//     of its ctx may then overlap with the next attempt.
//   - No message is started after its not_after, nor before its time, by the clock
//     of Redis. No other clock decides anything.
//   - Messages of other keys are not held up by one that waits.
//   - What is no message is moved out of the way, as a dead letter with a cause
//     where it had the place of one; workers go on.
//
// # In Redis
//
// A queue has one partition, or several (WithPartitions) among which its keys are
// spread; [Queue.Repartition] changes the number while work is stored. All keys of a partition share one hash tag, so they are in one slot of a
// Cluster. While that slot moves to another node, calls fail with core.ErrUnavailable,
// and no message is started.
//
// A partition has 17 keys, <prefix>:queue:{<name>}:m and so on, and one for each long payload,
// <prefix>:queue:{<name>}:b:<id>: of more than 4 KiB, and of more than 512 bytes while the partition's messages take more than 8 MiB; those of the i-th of n partitions have {<name>/i.n} for {<name>}. Every script declares what it uses.
// docs/protocol.md says what is in each. The channel <prefix>:queue:{<name>}:wake, of
// all partitions, tells that something is due earlier than before, or that a key has no
// messages any more; <prefix>:queue:{<name>}:ended, while somebody waits, which messages have ended.
//
// If somebody else damages these keys, what cannot be read becomes a dead letter with its
// cause, and the workers go on. What was lost is not made anew: a message without its place in z or f is not run.
// While something of another type is stored under the name of one of the 17 keys, calls fail with
// core.ErrUnavailable and WRONGTYPE as its cause, and nothing is run: delete it.
//
// What all processes must agree on is in <prefix>:queue:{<name>}:manifest, which stays for good, as does
// <prefix>:queue:names, the names of all queues (see [Queues] and [Open], for operators). Every other
// key has a TTL that outlives the use of what is in it. A payload goes with the end of
// its message, except a dead one's. WithEncryption seals payloads, results and causes.
//
// What is enqueued, and what ends, while Redis is busy with others goes to it
// together, in one script. The end of a claim brings the next message, so that a busy
// worker does not ask for work. An idle one sleeps until something is due, a claim
// ends or a message becomes too old, or until it is woken; at most 10 s. A message that
// met a held key has a delay, but does not wait for it: the locker hears of the key's
// release, and the worker makes the message due.
package delayqueue
