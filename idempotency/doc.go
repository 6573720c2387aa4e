// Package idempotency remembers in Redis what came of work that may be asked for more
// than once under one key, such as requests with an Idempotency-Key: package httplock
// uses it for its option WithIdempotency.
//
// # Model
//
// A Work is named by its key and by a fingerprint of what was asked for. Its record says
// who runs it, where it is parked, and what came of it:
//
//	Begin   the work is to run now: from here on its key is bound to its fingerprint
//	Finish  what came of it
//	Parked  it was deferred, and will run later
//	Lookup  what is known, without changing it
//	Forget  the record is removed, and its work runs again
//
// The record is no lock. Begin and Finish are called by the exclusive holder of a
// core.Lease whose key is the same for all work of one fingerprint, and carry its fence.
// So whoever finds a record that was begun and not finished knows that whoever began it
// is no more, or has lost its lease: the work runs again. A holder that lost its lease
// can still call Finish: if another one has begun since, its fence is greater, and what
// the late one says is refused with ErrOvertaken.
//
// # What is not promised
//
// Work runs at least once: it runs again if its process died before Finish, if its lease
// was lost, if Finish did not reach Redis, and if Redis lost the record. Nothing is known
// of work whose record has expired.
//
// A record is one Redis key, <prefix>:idem{}:<name>, with a TTL. It holds hashes, a
// fence, a ticket and the outcome: as it was given, or sealed (WithEncryption).
//
// # Looking after records
//
// NameOf finds the record of a request, for who is asked whether a payment ran, or is to let it run again:
//
//	w := idempotency.Work{Name: idempotency.NameOf("POST /payments", "user-7", key)}
//	record, err := store.Lookup(ctx, w)
//	forgotten, err := store.ForgetIf(ctx, w.Name, record)
//
// WithObserver tells what each call ended with.
package idempotency
