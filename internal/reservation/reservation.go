// Package reservation lets delayqueue and locktest reserve keys of core. A reserved key is granted only to work that
// was parked because the key was held: no fresh call overtakes it. Only the queue knows when a reservation is over,
// so these functions are not in core's public API; and delayqueue cannot import core/internal, so they are here. Core
// provides them when it is initialised. Core's types are type parameters, since this package cannot import core:
// [Get] panics, in the initialisation of its caller, if the two sides name different ones.
package reservation

import (
	"context"
	"errors"
	"time"
)

// ErrRenewed means that the key was reserved anew, and stays reserved.
var ErrRenewed = errors.New("key is reserved anew")

// Functions are core's. The type parameters are core's *Locker, *Lease, AcquireOption, Decision and Preference.
//
// Those with a ctx block for one round trip, and no longer than ctx allows. With a Locker of
// NewQuorum they fail with [errors.ErrUnsupported].
type Functions[Locker, Lease, Option, Decision, Preference any] struct {
	// Reserve reserves key for span from now, or for longer if it is reserved for longer already: 100 ms to 24 h, by
	// the server's clock. A holder of the key goes on holding it. Until the reservation ends only calls with Reserved
	// get the key; others, those for shared and counted leases and for several keys too, meet a conflict or wait. It
	// returns the reservation's stamp. After an error the key may be reserved.
	Reserve func(ctx context.Context, l Locker, key string, span time.Duration) (stamp int64, err error)
	// Stamp returns the stamp of a key's reservation, which grows with each reservation of the key. Zero: the
	// key is not reserved.
	Stamp func(ctx context.Context, l Locker, key string) (int64, error)
	// Unreserve ends a key's reservation, unless its stamp is greater than stamp: then it stays, and the error wraps
	// [ErrRenewed]. The fence of a lease serves as a stamp: what was reserved after the grant stays, and so does what
	// another call with Reserved has made its own. If nobody holds the key, the calls that wait are served at once.
	// After any other error the reservation may have ended; it ends by itself in any case.
	Unreserve func(ctx context.Context, l Locker, key string, stamp int64) error

	// Reserved makes a TryAcquire one for parked work: it takes a reserved key that is free before all calls that
	// wait, and a reservation then lasts for span from now at least. If the key is held, so that the try is refused,
	// the key is reserved for span. A try that takes a key that is not reserved makes no reservation. 100 ms to 24 h.
	// Elsewhere than at TryAcquire it is an ErrInvalidOption; a Locker of NewQuorum ignores it.
	Reserved func(span time.Duration) Option
	// WasReserved reports whether the key was reserved when the lease was granted: if so, the
	// reservation has to be ended. It is false for a nil lease.
	WasReserved func(lease Lease) bool

	// Release releases a lease and ends its key's reservation, unless that was made anew after the grant: then, or if
	// Redis did not say, reserved is true.
	Release func(ctx context.Context, lease Lease) (reserved bool, err error)

	// Reserving has a deferred call's key reserved for span, once OnConflict has returned and before
	// the call fails with its *DeferredError: a call that comes after its caller was told does not
	// overtake the work. It costs a round trip. The call is deferred even if that fails. If work is not nil it is asked,
	// in the background, when the key may be free; and if it rests, which is that perhaps it could not run now, also at once. A
	// message can be lost, and none comes when a lease ends without a release.
	//
	// A span below 100 ms counts as 100 ms, one above 24 h as 24 h. Nothing is reserved if span is
	// not positive, the decision is another one, or the Locker is one of NewQuorum.
	Reserving func(d Decision, span time.Duration, work Work, rests bool) Decision

	// StoresUnder says the prefix of a policy's queue, in its Honors: core asks when a Guard is made, through policies that hold others.
	StoresUnder func(p Preference, prefix string)
}

// Work is the parked work of a queue. It is comparable: equal ones are told once.
type Work interface {
	// Left reports whether there is work of a key that could run: if not the key's reservation is ended. If the key may be free it
	// has that run soon.
	Left(ctx context.Context, key string, free bool) (left bool, err error)
}

var provided any

// Provide sets the functions. Core calls it once, in its initialisation.
func Provide[Locker, Lease, Option, Decision, Preference any](f Functions[Locker, Lease, Option, Decision, Preference]) {
	provided = f
}

// Get returns the functions. A package that imports core may call it in its own initialisation.
func Get[Locker, Lease, Option, Decision, Preference any]() Functions[Locker, Lease, Option, Decision, Preference] {
	return provided.(Functions[Locker, Lease, Option, Decision, Preference])
}
