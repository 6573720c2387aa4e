package httplock

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/perkey-go/perkey/internal/nilcheck"
	"github.com/perkey-go/perkey/internal/observing"
)

// Observer gets the outcome of each request that reaches a Middleware. Its methods are
// called on the requests' goroutines: they must be safe for concurrent use and return
// quickly. A panic is logged. Embed [NopObserver], so that new methods do not break
// yours.
//
// Keys and tickets in the events are for logs and traces; they make poor metric labels.
type Observer interface {
	// OnOutcome is called exactly once for each request that the guard has finished with, replays
	// and those that need no key included: after the key is released, before [Middleware.Serve]
	// returns or a panic passes through it. Each of nested guards has its own outcome: if the inner
	// one refuses a request, the outer one's outcome is that it ran. ctx is the request's, as it
	// reached the guard.
	OnOutcome(ctx context.Context, e Outcome)
}

// NopObserver does nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

// OnOutcome does nothing.
func (NopObserver) OnOutcome(context.Context, Outcome) {}

// OutcomeKind is the kind of an Outcome. The kinds are few and fixed: they make good metric labels.
type OutcomeKind string

// The kinds of outcome.
const (
	// OutcomeRan: the handler ran within its lease, and returned, whatever it answered.
	OutcomeRan OutcomeKind = "ran"
	// OutcomePassed: the request needed no key, as a GET, an OPTIONS, by WithSkip or [NoKey], and the handler returned.
	OutcomePassed OutcomeKind = "passed"
	// OutcomePanicked: the handler, or another function of the service such as the key function, panicked or
	// ended its goroutine.
	OutcomePanicked OutcomeKind = "panicked"
	// OutcomeLost: the lease was lost while the handler ran.
	OutcomeLost OutcomeKind = "lost"
	// OutcomeConflict: the key is held, and the request neither waits any longer nor is parked. 409.
	OutcomeConflict OutcomeKind = "conflict"
	// OutcomeParked: the request was parked. 202.
	OutcomeParked OutcomeKind = "parked"
	// OutcomeDuplicate: the request was made before under its Idempotency-Key, and was answered with the first
	// one's response or ticket, or with 409 if the response was not kept.
	OutcomeDuplicate OutcomeKind = "duplicate"
	// OutcomeShed: too much is queued or waits already. 429 or 503.
	OutcomeShed OutcomeKind = "shed"
	// OutcomeCancelled: the client left before the handler ran.
	OutcomeCancelled OutcomeKind = "cancelled"
	// OutcomeDeadline: a deadline of the server's passed before the handler ran. 503.
	OutcomeDeadline OutcomeKind = "deadline"
	// OutcomeUnavailable: Redis could not be asked, or the Locker is closed. 503.
	OutcomeUnavailable OutcomeKind = "unavailable"
	// OutcomeRefused: the request cannot run, and the client is at fault: it has no usable key, its Idempotency-Key is
	// missing, malformed or another request's, its body is too large, late or unreadable, or its principal may not.
	// 4xx.
	OutcomeRefused OutcomeKind = "refused"
	// OutcomeError: the request cannot run, and the service is at fault: the key function
	// or the policy failed, or the guard is misconfigured, 500; or it would wait for its
	// own sender, 508.
	OutcomeError OutcomeKind = "error"
)

// Outcome is the outcome of one request at a guard.
type Outcome struct {
	Kind OutcomeKind
	// Name is the route's, as Exchange.Name has it. A method that HTTP does not define is OTHER in
	// the name.
	Name string
	// Key is the key that the request asked for; empty if it needed none or none was found.
	Key string
	// Status is the response's, which may be that of a [Timeout] in front. 0: not known, as where
	// the handler panicked, or returned an error that the framework answers later.
	Status int
	// Took is the time spent in the guard, the handler included.
	Took time.Duration
	// Replay is set if this was the replay of a parked request.
	Replay bool
	// Ticket is the ticket's id, of a replay or of a request that was parked; empty if there is
	// none.
	Ticket string
	// Err is why the handler did not run, or that its lease was lost. It may name the key.
	Err error
}

// WithObserver sets an Observer, which gets each request's outcome. Requests that [FromConfig]
// refuses because it cannot know their route are only logged, once.
func WithObserver(o Observer) Option {
	return func(m *Middleware) error {
		if nilcheck.IsNil(o) {
			return invalid("WithObserver: the observer is nil")
		}
		m.observer = o
		return nil
	}
}

// observed is serve with an observer.
func (m *Middleware) observed(x Exchange) (ran bool) {
	x.outcome = &Outcome{Kind: OutcomePanicked, Name: x.callName()}
	if replay := replayFrom(x.Request.Context()); replay != nil {
		x.outcome.Replay, x.outcome.Ticket = true, replay.id
	}
	began, returned := time.Now(), false
	defer func() {
		if !returned {
			x.outcome.Kind, x.outcome.Status = OutcomePanicked, 0
		}
		x.outcome.Took = time.Since(began)
		m.observe(x)
	}()
	ran = m.serve(x)
	returned = true
	if kind := x.outcome.Kind; x.Status != nil && (written(x) || kind == OutcomeRan || kind == OutcomePassed) {
		x.outcome.Status = x.Status()
	}
	x.outcome.Status = cmp.Or(answeredFor(x.Writer), x.outcome.Status)
	return ran
}

// observe tells the observer, whose panic must not break a request.
func (m *Middleware) observe(x Exchange) {
	ctx := x.Request.Context()
	observing.Tell(ctx, m.log, "httplock", func() { m.observer.OnOutcome(ctx, *x.outcome) })
}

// ends notes what became of a request, if somebody wants to know. What is noted last counts.
func (x Exchange) ends(kind OutcomeKind, status int) {
	if x.outcome != nil {
		x.outcome.Kind, x.outcome.Status, x.outcome.Err = kind, status, x.err
	}
}

// outcome is what becomes of a request that is answered with a problem.
func (k problemKind) outcome() OutcomeKind {
	switch k.name {
	case problemConflict.name:
		return OutcomeConflict
	case problemKeyFull.name, problemPrincipalFull.name, problemQueueFull.name, problemWaitingFull.name, problemPrincipalWaitingFull.name:
		return OutcomeShed
	case problemUnavailable.name:
		return OutcomeUnavailable
	case problemTimeout.name:
		return OutcomeDeadline
	case problemNotKept.name:
		return OutcomeDuplicate
	case problemOutcomeUnknown.name:
		return OutcomeLost
	}
	if k.status < http.StatusInternalServerError {
		return OutcomeRefused
	}
	return OutcomeError
}
