// Package idempotency stores in Redis the outcome of work that may be requested more
// than once under one key, such as requests with an Idempotency-Key. Package httplock
// uses it for its option WithIdempotency.
//
// # Model
//
// A [Work] has the name of its key and a fingerprint of the request. Its record says
// whether it was begun, where it is parked, and how it ended:
//
//	Begin   the work is to run now: from here on its key is bound to its fingerprint
//	Finish  stores the outcome
//	Parked  it was deferred, and will run later
//	Lookup  reads what is known, without changing it
//	Forget  removes the record: the work runs again if it is requested again
//
// The record is not a lock. Begin and Finish are called by the exclusive holder of a
// core.Lease whose key is the same for all work of one fingerprint, and carry its fence.
// So if a record was begun and not finished, the holder that began it has died, or has
// lost its lease: the work runs again. A holder that lost its lease
// can still call Finish. If another holder has begun since, that one's fence is greater, and the
// late outcome is refused with [ErrOvertaken].
//
// # What is not promised
//
// Work runs at least once. It runs again if its process died before Finish, if its lease
// was lost, if Finish did not reach Redis, and if Redis lost the record or the record has expired.
//
// A record is one Redis key, <prefix>:idem{}:<name>, with a TTL. It has hashes, a
// fence, a ticket and the outcome, as it was given or sealed ([WithEncryption]).
//
// # For operators
//
// [NameOf] finds the record of a request, to find out whether a payment ran, or to let it run again:
//
//	w := idempotency.Work{Name: idempotency.NameOf("POST /payments", "user-7", key)}
//	record, err := store.Lookup(ctx, w)
//	forgotten, err := store.ForgetIf(ctx, w.Name, record)
//
// [WithObserver] reports the result of each call.
package idempotency
