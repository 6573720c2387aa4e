package core

import (
	"context"
	"time"
)

// ConflictPolicy decides what happens to a call whose key is held.
//
// A policy is a function of the conflict alone: it keeps no state per call, so
// one value serves all goroutines for ever. Policies compose by holding the
// next one. An error refuses the call with that error.
type ConflictPolicy interface {
	OnConflict(ctx context.Context, c Conflict) (Decision, error)
}

// RejectConflicts is the policy that rejects: a call whose key is held fails at once with a
// [*ConflictError], and over HTTP with 409.
var RejectConflicts ConflictPolicy = rejectConflicts{}

type rejectConflicts struct{}

func (rejectConflicts) OnConflict(context.Context, Conflict) (Decision, error) { return Reject(), nil }

// WaitingPolicy may be implemented by a policy. If Waits reports that its first decision is
// to wait, as it nearly always is, its calls stand in Redis's queue from their first
// question on, which saves them a second one. If it is not, they leave again.
type WaitingPolicy interface {
	Waits() bool
}

// Validator may be implemented by a policy: [Guard.Err] reports what Validate finds
// wrong with it.
type Validator interface {
	Validate() error
}

// Conflict is what a policy knows of a call whose key is held.
type Conflict struct {
	Call Call
	// Attempt counts how often the call asked for the key: 1 at the first
	// conflict. Being behind another call of this process counts as asking.
	Attempt int
	// Waited is the time since the first attempt.
	Waited time.Duration
	// LastDelay is the delay of the decision before this one; zero at first.
	LastDelay time.Duration
	// Remaining is what is left of the holder's lease. A holder may release
	// earlier, or renew. Zero: not known.
	Remaining time.Duration
	// Waiting is how many calls wait for the key, this one included if it does, as
	// far as is known: those of other processes count as one each.
	Waiting int
}

// Decision says what happens to a call whose key is held. The zero Decision
// rejects it.
type Decision struct {
	kind   decisionKind
	delay  time.Duration
	ticket Ticket
	// Of reservation.Functions.Reserving.
	reserve time.Duration
	parked  func(context.Context) (bool, error)
}

type decisionKind int

const (
	decideReject decisionKind = iota
	decideRetry
	decideDeferred
)

// Reject refuses the call with a *ConflictError.
func Reject() Decision { return Decision{} }

// RetryAfter lets the call wait for d, or until it is granted the key if that is earlier;
// after d the policy decides again. Should the message of a grant be lost while the call
// waits, that is noticed after 1 to 5 s, however long d is. A negative d is zero.
func RetryAfter(d time.Duration) Decision {
	return Decision{kind: decideRetry, delay: max(d, 0)}
}

// Deferred refuses the call with a *DeferredError that carries the ticket: the
// work was stored, and will run later.
func Deferred(t Ticket) Decision { return Decision{kind: decideDeferred, ticket: t} }

// Delay reports whether the decision is to retry, and after how long.
func (d Decision) Delay() (time.Duration, bool) { return d.delay, d.kind == decideRetry }

// Ticket reports whether the decision is to run later, and under which ticket.
func (d Decision) Ticket() (Ticket, bool) { return d.ticket, d.kind == decideDeferred }

// String names the decision: "reject", "retry" or "deferred".
func (d Decision) String() string {
	switch d.kind {
	case decideRetry:
		return "retry"
	case decideDeferred:
		return "deferred"
	default:
		return "reject"
	}
}

// Ticket is the receipt for work that was accepted to run later.
type Ticket struct {
	// ID names the work. It cannot be guessed.
	ID string
	// Queue is the name of the queue that holds it.
	Queue string
	// ExpiresAt is when the work becomes too old to be started.
	ExpiresAt time.Time
}
