package core

// Reservations of keys for parked work. Only the delay queue makes them, through internal/reservation.

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/core/internal/waitqueue"
	"github.com/perkey-go/perkey/internal/reservation"
)

func init() {
	reservation.Provide(reservation.Functions[*Locker, *Lease, AcquireOption, Decision, Preference]{
		Reserve: reserve, Stamp: stampOf, Unreserve: unreserve,
		Reserved: reserved, WasReserved: wasReserved, Reserving: reserving, StoresUnder: storesUnder,
	})
}

func reserve(ctx context.Context, l *Locker, key string, span time.Duration) (stamp int64, err error) {
	if err := checkTTL("Reserve", span); err != nil {
		return 0, err
	}
	stamp, err = l.store.Reserve(ctx, key, span)
	if err == nil {
		l.waiters.reservedBy(key) // before the message comes, if this Locker holds it
	}
	return stamp, err
}

func stampOf(ctx context.Context, l *Locker, key string) (int64, error) {
	info, err := l.store.Inspect(ctx, key)
	if err != nil || info.Reserved <= 0 {
		return 0, err
	}
	return info.Stamp, nil
}

func unreserve(ctx context.Context, l *Locker, key string, stamp int64) error {
	ended, err := l.store.Unreserve(ctx, key, stamp)
	if err == nil && !ended {
		err = fmt.Errorf("core: unreserve %q: %w", key, reservation.ErrRenewed)
	}
	return err
}

func reserved(span time.Duration) AcquireOption {
	return func(o *acquireOptions) error {
		o.reserve = span
		return checkTTL("Reserved", span)
	}
}

func wasReserved(l *Lease) bool { return l != nil && l.reserved }

func reserving(d Decision, span time.Duration, parked func(context.Context) (bool, error)) Decision {
	d.reserve, d.parked = span, parked
	return d
}

// reservations are the keys that are reserved according to a message or a reply, with the time of
// that.
type reservations struct {
	said  map[string]time.Time
	swept time.Time
}

// What is said of a reservation matters to grants that were made before it. Such a grant can be
// heard of later, if its reply takes longer, and then is handed over for MaxHandOver at most.
const reservationCounts = store.ReplyTimeout + waitqueue.MaxHandOver

// note records that key is reserved.
func (r *reservations) note(key string, now time.Time) {
	if now.Sub(r.swept) > time.Second {
		r.swept = now
		maps.DeleteFunc(r.said, func(_ string, at time.Time) bool { return now.Sub(at) > reservationCounts })
	}
	r.said[key] = now
}

// since reports whether key may have been reserved since a grant that was made later than made.
func (r *reservations) since(key string, made schedule.Instant, now time.Time) bool {
	at, ok := r.said[key]
	return ok && schedule.InstantOf(at) >= made || made.Elapsed(now) > reservationCounts
}

// reservedBy records that key is reserved: no grant of it is handed over.
func (w *waiters) reservedBy(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reserved.note(key, time.Now())
}
