package core

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/perkey-go/perkey/core/internal/waitqueue"
)

// Reserve keeps key for parked work, for d from now, or longer if it is reserved for
// longer already: 100 ms to 24 h. Whoever holds the key goes on holding it. Until the
// reservation ends only calls with the option Reserved get the key; others, those with
// Shared, Counted and of AcquireAll too, meet a conflict or wait. It ends by itself or
// with Lease.Unreserve, and counts by the server's clock.
//
// It blocks for one round trip, and no longer than ctx allows. After an error the key
// may be reserved. On a Locker of NewQuorum it fails with errors.ErrUnsupported.
func (l *Locker) Reserve(ctx context.Context, key string, d time.Duration) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	if err := checkTTL("Reserve", d); err != nil {
		return err
	}
	_, err := l.keep(ctx, key, d)
	return err
}

// keep reserves a key, and returns the reservation's stamp.
func (l *Locker) keep(ctx context.Context, key string, d time.Duration) (stamp int64, err error) {
	one, err := l.deployment("reserve")
	if err != nil {
		return 0, err
	}
	val, err := one.admin(ctx, "reserve", key, reserveScript, false, "", d.Milliseconds())
	if err == nil {
		l.waiters.reservedBy(key) // before the message comes, if this Locker holds it
		stamp, _ = val.(int64)
	}
	return stamp, err
}

// Reserved makes a TryAcquire one for the work that its key is reserved for: it takes a
// reserved key that is free all the same, before all calls that wait, and a reservation
// then lasts for d from now at least. If the key is held, so that the try is refused, it
// is reserved for d: nobody else gets it next. A try that takes a key without a
// reservation makes none.
//
// It is for who runs what was parked, with NotifyRelease to hear of the release; 100 ms
// to 24 h. Elsewhere than at TryAcquire it is an ErrInvalidOption. A Locker of NewQuorum
// ignores it.
func Reserved(d time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.keep = d
		return checkTTL("Reserved", d)
	}
}

// Reserved reports whether the key was reserved when the lease was granted, so that
// somebody has to call Unreserve.
func (l *Lease) Reserved() bool { return l != nil && l.kept }

// Unreserve ends the key's reservation. If Reserve or a deferred call has made it anew,
// or another call with Reserved has taken the key, since this lease was granted, it stays,
// and the error wraps ErrReserved. If nobody holds the key, those who wait are served at
// once. It may be called before or after Release, and when the lease was lost.
//
// It blocks for one round trip, and no longer than ctx allows. After any other error
// the reservation may have ended; it does so by itself in any case. On a Locker of NewQuorum
// it fails with errors.ErrUnsupported.
func (l *Lease) Unreserve(ctx context.Context) error {
	if l == nil {
		return nil
	}
	return l.hold.locker.Unreserve(ctx, l.Key(), l.fence)
}

// Unreserve ends a key's reservation if its stamp, as Inspect tells it, is no greater
// than stamp. If it was made anew since it stays, and the error wraps ErrReserved. See
// Lease.Unreserve.
func (l *Locker) Unreserve(ctx context.Context, key string, stamp int64) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	d, err := l.deployment("unreserve")
	if err != nil {
		return err
	}
	val, err := d.admin(ctx, "unreserve", key, unreserveScript, false, "", stamp)
	if err == nil && val == int64(0) {
		err = fmt.Errorf("core: unreserve %q: %w", key, ErrReserved)
	}
	return err
}

// reservations are the keys that were said to be reserved of late, and when.
type reservations struct {
	said  map[string]time.Time
	swept time.Time
}

// A hold is handed over for MaxHandOver at most, so that only what was said about then
// matters. The message can come a little before the hold does.
const reservationCounts = 2 * waitqueue.MaxHandOver

// note records that key is reserved.
func (r *reservations) note(key string, now time.Time) {
	if now.Sub(r.swept) > time.Second {
		r.swept = now
		maps.DeleteFunc(r.said, func(_ string, at time.Time) bool { return now.Sub(at) > reservationCounts })
	}
	r.said[key] = now
}

// of reports whether key is reserved, as far as is known.
func (r *reservations) of(key string, now time.Time) bool {
	at, ok := r.said[key]
	return ok && now.Sub(at) <= reservationCounts
}

// reservedBy records that key is reserved: no hold on it is handed over.
func (w *waiters) reservedBy(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reserved.note(key, time.Now())
}
