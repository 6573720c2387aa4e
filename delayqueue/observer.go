package delayqueue

import "time"

// Observer is told what a Worker does, on the goroutine that does it. Its
// methods must be quick. Embed NopObserver, so that new methods do not break
// yours.
type Observer interface {
	// OnStarted: a message's handler is about to be called.
	OnStarted(m Message)
	// OnSettled: a claim on a message came to its end.
	OnSettled(e Settled)
	// OnSwept: a look at the queue found something to tidy up.
	OnSwept(e Swept)
}

// Outcome is how a claim on a message ended.
type Outcome string

// The outcomes of a claim.
const (
	// OutcomeDone: the handler returned nil, and the message has ended.
	OutcomeDone Outcome = "done"
	// OutcomeRetry: the attempt failed, and there will be another one.
	OutcomeRetry Outcome = "retry"
	// OutcomeConflict: a key was held; no attempt was spent.
	OutcomeConflict Outcome = "conflict"
	// OutcomeReturned: the message went back as it had come, because the Worker
	// was stopped, could not ask for the key, or cannot run it (HandBack).
	OutcomeReturned Outcome = "returned"
	// OutcomeDead: the message is a dead letter.
	OutcomeDead Outcome = "dead"
	// OutcomeExpired: the attempt failed, and the message will be too old for
	// another one.
	OutcomeExpired Outcome = "expired"
	// OutcomeLate: the claim was lost, or Redis did not answer until its end, so
	// the queue did not take the result. The message runs again, or has done so.
	OutcomeLate Outcome = "late"
)

// Settled tells of a claim that came to its end.
type Settled struct {
	Message Message
	Outcome Outcome
	// Err is why the message is not done. Nil if it is.
	Err error
	// Delay is how long the message waits before it is due again.
	Delay time.Duration
	// Took is the time from the claim to its end.
	Took time.Duration
}

// Swept tells what a look at the queue tidied up.
type Swept struct {
	// Redelivered counts messages whose worker died: they are due again.
	Redelivered int64
	// Expired counts messages that became too old to be started.
	Expired int64
}

// NopObserver does nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

// OnStarted does nothing.
func (NopObserver) OnStarted(Message) {}

// OnSettled does nothing.
func (NopObserver) OnSettled(Settled) {}

// OnSwept does nothing.
func (NopObserver) OnSwept(Swept) {}
