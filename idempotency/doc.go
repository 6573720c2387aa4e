// Package idempotency stores in Redis the outcome of work that may be requested more than once under one key, such as
// requests with an Idempotency-Key. Package httplock uses it for its option WithIdempotency.
//
// # Model
//
// A Work has a name, made of its key, and a fingerprint of what was requested. Its record says who
// runs it, where it is parked, and its outcome:
//
//	Begin   the work is to run now: from here on its name is bound to its fingerprint
//	Finish  what came of it
//	Parked  it was deferred, and will run later
//	Lookup  what is known, without changing it
//	Forget  the record is removed, and its work runs again
//
// The record is not a lock. Begin and Finish are called by the exclusive holder of a core.Lease whose key is the same
// for all work of one fingerprint, with that lease's fence. So if a holder finds a record that was begun and not
// finished, the earlier holder has died or lost its lease: the work runs again. A holder that lost its lease can still
// call Finish: if another one has begun since, with a greater fence, the late call is refused with ErrStaleFence.
//
// # What is not promised
//
// Work runs at least once: it runs again if its process died before Finish, if its lease was lost, if Finish did not
// reach Redis, and if Redis lost the record. Work whose record has expired counts as new.
//
// A record is one Redis key, <prefix>:idem{}:<name>, with a TTL. It holds hashes, a
// fence, a ticket and the outcome: as it was given, or sealed (WithEncryption).
//
// # Looking after records
//
// NameOf returns the name of a request's record, to find out whether a payment ran, or to let it run again:
//
//	w := idempotency.Work{Name: idempotency.NameOf("POST /payments", "user-7", key)}
//	record, err := store.Lookup(ctx, w)
//	forgotten, err := store.ForgetIf(ctx, w.Name, record)
//
// An Observer, set by WithObserver, gets how each call ended.
package idempotency
