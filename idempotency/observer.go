package idempotency

import (
	"context"
	"errors"
	"time"

	"github.com/perkey-go/perkey/internal/nilcheck"
	"github.com/perkey-go/perkey/internal/observing"
)

// Observer gets the events of a Store. Its methods are called on the goroutines that call
// the Store: they must be safe for concurrent use, return quickly, and not call the
// Store. A panic is logged. Embed [NopObserver], so that new methods do not break yours.
type Observer interface {
	// OnEvent is called when a call of the Store has ended. One request may make several calls: a
	// request that waits for its key calls Lookup before and Begin after the wait.
	OnEvent(ctx context.Context, e Event)
}

// NopObserver does nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

// OnEvent does nothing.
func (NopObserver) OnEvent(context.Context, Event) {}

// EventKind is how a call of the Store ended. The kinds are few and fixed: they make good metric labels.
type EventKind string

// The kinds of events.
const (
	// EventBegun: Begin let the caller run the work.
	EventBegun EventKind = "begun"
	// EventStored: Finish stored the outcome.
	EventStored EventKind = "stored"
	// EventParked: Parked stored the ticket.
	EventParked EventKind = "parked"
	// EventReplayed: Begin or Lookup returned the outcome, or Lookup a ticket that has not expired.
	EventReplayed EventKind = "replayed"
	// EventInProgress: Lookup found that the work was begun, and not finished: its holder may have died since.
	EventInProgress EventKind = "in_progress"
	// EventMismatch: the call failed with ErrMismatch.
	EventMismatch EventKind = "mismatch"
	// EventStaleFence: the call failed with ErrStaleFence.
	EventStaleFence EventKind = "stale_fence"
	// EventForgotten: Forget removed a record.
	EventForgotten EventKind = "forgotten"
	// EventError: the call failed in another way, such as with core.ErrUnavailable or ErrSealed.
	EventError EventKind = "error"
)

// Event is the end of a call of the Store. There is no Event for a Lookup or Forget that finds
// nothing, for a Lookup that finds only an expired ticket, or for a Lookup without a fingerprint.
type Event struct {
	Kind EventKind
	// Name is the Work's name. It is for logs, and makes a poor metric label.
	Name string
	// Err is the call's error.
	Err error
}

// WithObserver sets an Observer, which gets the Store's events.
func WithObserver(o Observer) Option {
	return func(s *Store) error {
		if nilcheck.IsNil(o) {
			return invalid("WithObserver: the observer is nil")
		}
		s.observer = o
		return nil
	}
}

// observe tells of a call that ended with err, or else as done says.
func (s *Store) observe(ctx context.Context, name string, done EventKind, err error) {
	if s.observer == nil || done == "" && err == nil {
		return
	}
	switch {
	case errors.Is(err, ErrMismatch):
		done = EventMismatch
	case errors.Is(err, ErrStaleFence):
		done = EventStaleFence
	case err != nil:
		done = EventError
	}
	observing.Tell(ctx, nil, "idempotency", func() { s.observer.OnEvent(ctx, Event{done, name, err}) })
}

// event is what a Lookup found.
func (r Record) event() EventKind {
	switch {
	case r.Outcome != nil, r.Ticket.ID != "" && time.Now().Before(r.Ticket.ExpiresAt):
		return EventReplayed
	case r.Begun:
		return EventInProgress
	}
	return ""
}
