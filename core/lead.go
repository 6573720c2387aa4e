package core

import (
	"context"
	"time"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/backoff"
)

// Lead runs fn while holding key: leader election. Every candidate calls Lead; they wait in order of
// arrival, and fn runs in one of them at a time.
//
// The ctx of fn ends when the lease does, before the next leader can start; when ctx ends; and when
// the Locker is shut down or closed. fn must return then: its return releases the key, and the next
// candidate gets it by a message, at once. An fn that goes on after ctx ended keeps the key; one that goes
// on after its lease was lost overlaps with the next leader, and its store tells them apart by
// [Lease.Fence]. Lead never runs fn a second time while the first has not returned.
//
// Lead returns what fn returned, nil or an error, if the lease was held until then. If the lease was lost,
// it waits until fn has returned, and is a candidate again. Nor does it return when Redis is unavailable or too
// many calls wait (WithMaxWaiters): it tries again, after a random delay that grows to
// 2 s, and the [Observer] is told of each try. While fn does not run Lead returns with ctx's error
// when ctx ends, with ErrClosed when the Locker closes, and at once if its arguments are invalid.
//
// In client-go's leaderelection Run returns when the lease is lost, and in etcd's concurrency.Election the
// caller campaigns, watches its session and resigns: Lead campaigns again by itself, and resigns when fn
// returns. As there, nothing but its ctx stops fn.
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
		_ = l.life.Pause(ctx, backoff.Full(failures, leadPauseMin, leadPauseMax)) // the next call for the key says why it ended
	}
}

// How long a candidate whose call has failed, or whose lease was lost, waits at most, at first and
// in the end.
const (
	leadPauseMin = 100 * time.Millisecond
	leadPauseMax = 2 * time.Second
)

// lead runs fn under the lease, as runToEnd does; its ctx ends also when the Locker takes no more calls.
func (l *Locker) lead(ctx context.Context, lease *Lease, fn func(context.Context) error) (err, lost error) {
	defer context.AfterFunc(l.life.Context(), func() { lease.cancel(store.Closed("lead", lease.Key())) })()
	return lease.runToEnd(ctx, fn)
}
