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
		Reserved: reserved, WasReserved: wasReserved, Release: release, Reserving: reserving, StoresUnder: storesUnder,
	})
}

func reserve(ctx context.Context, l *Locker, key string, span time.Duration) (stamp int64, err error) {
	if err := checkTTL("Reserve", span); err != nil {
		return 0, err
	}
	reply, err := l.reserve(ctx, key, store.ReserveRequest{Span: span})
	return reply.Stamp, err
}

func (l *Locker) reserve(ctx context.Context, key string, req store.ReserveRequest) (store.ReserveReply, error) {
	reply, err := l.store.Reserve(ctx, key, req)
	if err == nil {
		l.waiters.reservedBy(key) // before the message comes, if this Locker holds it
	}
	return reply, err
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

func release(ctx context.Context, l *Lease) (reserved bool, err error) {
	now := time.Now()
	was, err := l.release(ctx, now, false, true)
	return was != leaseHeld || l.grant.reservedStill, l.released(was, err, now)
}

func reserving(d Decision, span time.Duration, work reservation.Work, rests bool) Decision {
	d.reserve, d.work, d.rests = span, work, rests
	return d
}

// reserve reserves the key for a call that was deferred, and has the work run when the key may be free: at once if somebody
// else may have had it since the call was refused, else when it is released. The call is stored even if this fails.
func (a *attempt) reserve(d Decision) {
	l, key := a.locker, a.call.Key
	if d.reserve <= 0 {
		return
	}
	known := l.notifications.releases(key)
	reply, _ := l.reserve(a.ctx, key, store.ReserveRequest{Span: min(max(d.reserve, MinTTL), MaxTTL), Watch: l.id, Fence: a.latest})
	switch {
	case d.work == nil:
		return
	case reply.Held:
		l.store.Start()
		l.notifications.register(key, &listener{id: d.work, tell: func(key string) {
			l.life.Background(func() { l.runParked(key, d, 0, true) }) // calls that were refused later may have reserved it anew
		}}, known, max(a.conflict.Remaining, d.reserve))
	}
	if !reply.Held || d.rests {
		l.life.Background(func() { l.runParked(key, d, reply.Stamp, !reply.Held) })
	}
}

// runParked has the parked work of a key run, if the key may be free. If there is none it ends the key's reservation, which has the
// stamp, or one that is not known: 0.
func (l *Locker) runParked(key string, d Decision, stamp int64, free bool) {
	ctx := l.life.Context()
	for end := time.Now().Add(d.reserve); time.Now().Before(end); {
		left, err := d.work.Left(ctx, key, free)
		switch {
		case err == nil && left, !l.store.Queues():
			return
		case err == nil && stamp != 0:
			_ = unreserve(ctx, l, key, stamp)
			return
		case err == nil: // and look once more
			if stamp, err = stampOf(ctx, l, key); err == nil && stamp == 0 {
				return
			}
		}
		if err != nil && l.life.Pause(ctx, time.Second) != nil {
			return
		}
	}
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
