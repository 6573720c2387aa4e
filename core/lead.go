package core

import (
	"context"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/backoff"
)

// Lead runs fn while holding key: leader election. Every candidate calls Lead; they wait in order
// of arrival, and fn runs in one of them at a time.
//
// The ctx of fn ends when the lease does, before the next leader can start; when ctx ends; and when
// the Locker is shut down or closed. fn must return then. Its return releases the key, and a
// message tells the next candidate at once. An fn that goes on after ctx ended keeps the key. One
// that goes on after its lease was lost overlaps with the next leader; a store tells the two apart
// by [Lease.Fence]. Lead never runs fn a second time while the first run has not returned.
//
// If the lease was held until fn returned, Lead returns fn's result, nil or an error. If the lease
// was lost, it waits until fn has returned, and is a candidate again. If Redis is unavailable or
// too many calls wait ([WithMaxWaiters]), it does not return either: it tries again, after a random
// delay that grows to 2 s, and the [Observer] gets an outcome for each try. While fn does not run,
// Lead returns ctx's error when ctx ends and [ErrClosed] when the Locker closes; it returns at once
// if its arguments are invalid.
//
// In client-go's leaderelection, Run returns when the lease is lost; with etcd's
// concurrency.Election the caller campaigns, watches its session and resigns. Lead campaigns again
// by itself, and resigns when fn returns. As there, only its ctx tells fn to stop.
func (l *Locker) Lead(ctx context.Context, key string, fn func(context.Context) error, opts ...AcquireOption) error {
	o, invalid := l.acquireOptions(opts)
	if fn == nil {
		invalid = errNoFunction
	}
	for failures := 1; ; failures++ {
		lease, err := l.obtain(ctx, Call{Key: key, Name: o.name, ID: o.id}, waitForever{}, o, invalid)
		if lease != nil {
			led, lost := l.lead(ctx, lease, fn)
			if lost == nil {
				return led
			}
			if lease.granted.Elapsed(time.Now()) > leadPauseMax {
				failures = 1
			}
		} else if kind := outcomeOf(ctx, err, ""); kind != OutcomeUnavailable && kind != OutcomeConflict {
			return err
		}
		_ = l.life.Pause(ctx, backoff.Full(failures, leadPauseMin, leadPauseMax)) // if it was cut short, the next obtain returns why
	}
}

// The bounds of the random delay after a failed call or a lost lease: of the first one, and of any.
const (
	leadPauseMin = 100 * time.Millisecond
	leadPauseMax = 2 * time.Second
)

// lead runs fn under the lease, as runToEnd does. Its ctx also ends when the Locker refuses calls.
func (l *Locker) lead(ctx context.Context, lease *Lease, fn func(context.Context) error) (err, lost error) {
	defer context.AfterFunc(l.life.Context(), func() { lease.cancel(store.Closed("lead", lease.Key())) })()
	return lease.runToEnd(ctx, fn)
}
