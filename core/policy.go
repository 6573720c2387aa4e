package core

import (
	"context"
	"time"

	"github.com/perkey-go/perkey/internal/reservation"
)

// ConflictPolicy decides what happens to a call whose key is held: see [Reject], [RetryAfter] and
// [Deferred]. If it returns an error, the call fails with that error, and was not deferred whatever the error wraps.
//
// A policy is a function of the conflict alone: it keeps no state per call, so one value serves all
// goroutines. Policies compose: one holds the next, which decides when it gives up.
type ConflictPolicy interface {
	OnConflict(ctx context.Context, c Conflict) (Decision, error)
}

// RejectConflicts is the policy that rejects: a call whose key is held fails at once with a
// [*ConflictError], over HTTP with status 409.
var RejectConflicts ConflictPolicy = rejectConflicts{}

type rejectConflicts struct{}

func (rejectConflicts) OnConflict(context.Context, Conflict) (Decision, error) { return Reject(), nil }

// WaitingPolicy may be implemented by a [ConflictPolicy]. Waits reports whether its first decision
// is nearly always to wait. The calls of such a policy join Redis's queue with their first request,
// which saves a second one. If the policy decides otherwise, they leave the queue.
type WaitingPolicy interface {
	Waits() bool
}

// Validator may be implemented by a [ConflictPolicy]: [Guard.Err] reports the error of Validate.
type Validator interface {
	Validate() error
}

// Conflict describes a call whose key is held, for its [ConflictPolicy].
type Conflict struct {
	Call Call
	// Attempt counts how often the call asked for the key: 1 at the first
	// conflict. To wait behind another call of the same process counts as asking.
	Attempt int
	// Waited is the time since the first attempt.
	Waited time.Duration
	// LastDelay is the delay of the decision before this one; zero at first.
	LastDelay time.Duration
	// Remaining is how much is left of the holder's lease. The holder may release earlier, or renew. Zero: not known.
	Remaining time.Duration
	// Waiting is how many calls wait for the key, as far as is known, this one included if it
	// waits: the calls of each other process count as one.
	Waiting int
}

// Decision says what happens to a call whose key is held: [Reject], [RetryAfter] or [Deferred]. The
// zero Decision rejects it.
type Decision struct {
	kind   decisionKind
	delay  time.Duration
	ticket Ticket
	// Of reservation.Functions.Reserving.
	reserve time.Duration
	work    reservation.Work
	rests   bool
}

type decisionKind int

const (
	decideReject decisionKind = iota
	decideRetry
	decideDeferred
)

// Reject refuses the call with a [*ConflictError].
func Reject() Decision { return Decision{} }

// RetryAfter lets the call wait for d, or until it is granted the key if that is earlier; after d
// the policy decides again. If the message of a grant is lost while the call waits, the call
// notices that after 1 to 5 s, however long d is. A negative d is zero.
func RetryAfter(d time.Duration) Decision {
	return Decision{kind: decideRetry, delay: max(d, 0)}
}

// Deferred refuses the call with a [*DeferredError] that carries the ticket: the work was stored, and will run later.
func Deferred(t Ticket) Decision { return Decision{kind: decideDeferred, ticket: t} }

// Delay returns the delay of [RetryAfter], and whether the decision is one.
func (d Decision) Delay() (time.Duration, bool) { return d.delay, d.kind == decideRetry }

// Ticket returns the ticket of [Deferred], and whether the decision is one.
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
	// ID names the work. It cannot be guessed, but from [Call].DeduplicationID.
	ID string
	// Queue is the name of the queue that holds it.
	Queue string
	// ExpiresAt is when the work becomes too old to be started.
	ExpiresAt time.Time
}
