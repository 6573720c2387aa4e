// Package core is the lock engine: it lets one call at a time run per key, over
// any number of processes that share a Redis.
//
//	locker, err := core.New(rdb, core.WithTTL(15*time.Second))
//	err = locker.Do(ctx, "order:42", func(ctx context.Context) error { … })
//
// # Model
//
// A [Locker] takes keys on one Redis deployment, or on a majority of several (see
// [NewQuorum], which says what holds there). A key that is taken is a [Lease]:
// it has a context, a fence (a number that grows with every grant, for a store to compare) and a release. A [Guard] is a Locker together with a
// [ConflictPolicy], which decides about a call whose key is held: refuse it, let
// it wait and ask again, or store it to run later.
//
// A held key is one Redis record with the random token of its owner. The record
// expires, so that a holder that died frees its key; a living holder renews it
// after a third of its TTL. Until its first renewal a lease lasts 10 s at most
// ([WithFirstLease]): a grant that never reached its caller frees itself.
//
// # Modes
//
// A key is held exclusively unless a call says otherwise: [Shared] is the read side of a
// read-write lock, [Counted] a semaphore. Each holder has its own lease and fence, and
// each lease ends by itself. Waiting processes are served in order of arrival, so that
// readers do not keep a writer out. Adjacent readers enter together, with all readers
// that wait in the same process. [Lease.Downgrade] makes a writer a reader with nobody in between. A
// writer may read under its own ctx; a reader that asks to write is refused with
// [ErrUpgrade], since two of them would wait for one another.
//
// [Locker.AcquireAll] takes several keys, or none. On one server that is a single script. On a
// Cluster, whose nodes share no script, it takes one key after the other, and releases
// them before it waits.
//
// Package delayqueue reserves a key for work that was parked because the key was held. Until
// the reservation ends only the queue's workers get the key, before all calls that wait:
// others meet a conflict. See [KeyInfo].
//
// # Replicas
//
// [Locker.Once] runs a function in one process per period, such as a cron tick that comes to every
// replica. [Locker.Lead] elects a leader.
//
// # What holds
//
//  1. A refusal is an error, a [*ConflictError] or a [*DeferredError]: a caller that
//     ignores the outcome cannot mistake it for success.
//  2. [ErrConflict], [ErrUnavailable], [ErrLeaseLost] and the end of the caller's own ctx
//     are distinguished by errors.Is. When Redis is unavailable no key is granted;
//     work that has its key goes on until its lease ends.
//  3. A lease's context ends, with a cause that wraps ErrLeaseLost, before Redis
//     can give the key to anyone else. There are two exceptions: [Locker.ForceRelease], and the
//     release of a lease that several processes hold by one token. These tell the other
//     holders by a message at the same time. Until it arrives the holder's process may hand
//     the key over to another of its calls, within 50 ms of the grant.
//  4. An Acquire that returned an error leaves nothing in Redis after the first
//     lease (10 s, or the TTL if that is shorter; [WithFirstLease]), whatever was lost on the way.
//     That time begins when Redis runs the command, even if the network delivers it only after
//     the return.
//  5. [Lease.Release] works on a dead ctx, stops renewal before it is sent, and cannot
//     remove a later owner's lease. The end of the caller's ctx does not stop
//     renewal, since its work may not have stopped yet.
//  6. The same key under the same ctx re-enters, without a request to Redis.
//     Reentrancy belongs to the ctx, not to a goroutine. A lease can be
//     transferred to another process by a token: see [Lease.Detach] and [Locker.Resume].
//  7. On one primary at a time, every grant of a key carries a fence greater than every earlier
//     one, also after Redis lost its data, unless its clock is behind: it was set back while the key was free,
//     or another server took over. A lease that is handed over after a ForceRelease, as in
//     3, has a smaller fence than the next holder: a store that claims fences stops it.
//  8. [Locker.Shutdown] and [Locker.Close] wait for the Locker's own goroutines, and may be called twice.
//     Close waits 2 s at most for commands to a Redis that does not answer, and says so in its error.
//  9. Options are checked at construction. Their errors wrap [ErrInvalidOption].
//  10. Every call ends in exactly one [Outcome], which the [Observer] gets once.
//
// # Validity deadline
//
// Redis counts a lease from when it ran the command, which is after the command
// was sent. So a Locker counts from before the send, on its own monotonic clock. It
// subtracts a hundredth for clocks that run at different speeds, and a margin for
// noticing the end in time (a twentieth of the lease, 5 to 250 ms). The lease's context
// ends at that moment unless a renewal has been answered. The Locker checks the wall clock too,
// because the monotonic clock stands still while a machine is suspended; a wall
// clock that is set forward can therefore end a lease early, never late. Client
// clocks decide nothing in Redis.
//
// A process that was stopped runs its timers only after it resumes. So Done and Err of
// the lease's context, and of a LeaseSet's, check the clocks at each call. A select that
// waits already cannot check, nor can a context that was derived from the lease's with
// a cancel or a time-out of its own: see [Lease.Context].
//
// # What does not hold
//
// One primary gives at most one unexpired lease per key. A failover can lose a
// lease that the replica had not seen; a server whose clock is set forward frees
// keys early, and their holders learn of it at their next renewal; a holder that ignores its context overlaps with the next one.
// [WaitReplicas] makes the first less likely, and cannot rule it out. A store is safe
// from all three if each holder claims with its fence what it is about to read, and
// each write checks that claim; see [Lease.Fence] and package sqlfence.
//
// The fence is the larger of the last fence plus one and the server's clock in
// microseconds (a hybrid logical clock: Kulkarni et al., 2014). It goes
// backwards if the clock is set back while the key is free, or the data is lost and the new
// server's clock is behind, until that clock has passed the last grant; and between two primaries that serve at once.
package core
