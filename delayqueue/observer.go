package delayqueue

import (
	"context"
	"time"
)

// Observer is told what a Queue and its Workers do, on the goroutine that does it and on several at
// once. Its methods must be safe for concurrent use and quick, and must not call the Queue or the
// Worker; what they panic with is logged. Embed [NopObserver], so that new methods do not break
// yours.
//
// Keys and ids are in the events for logs and traces; they make poor metric labels.
type Observer interface {
	// OnEnqueuing: a call of Queue.Enqueue, or one of the policy to store a call, begins; its OnEnqueued follows. The ctx
	// that is returned, which must be derived from the argument, takes the argument's place in the call and in OnEnqueued. The
	// trace that is returned becomes the job's Trace, if it is a W3C traceparent; e.Job.Trace leaves that as it is.
	OnEnqueuing(ctx context.Context, e Enqueuing) (_ context.Context, trace string)
	// OnEnqueued: a call of Queue.Enqueue has ended, or one of the policy to store a call. It is
	// called exactly once for each, before that returns, whether the job was stored or not.
	OnEnqueued(ctx context.Context, e Enqueued)
	// OnStarted: a message's handler is about to be called. ctx is the handler's.
	OnStarted(ctx context.Context, e Started)
	// OnSettled: a claim on a message came to its end. ctx is that of the claim.
	OnSettled(ctx context.Context, e Settled)
	// OnSwept: a look at the queue found something to tidy up.
	OnSwept(ctx context.Context, e Swept)
	// OnWarning: the queue does not work as well as it could, or does so no longer.
	OnWarning(ctx context.Context, w Warning)
}

// Enqueuing tells of a job that is about to be stored.
type Enqueuing struct {
	// Queue is the queue's name.
	Queue string
	// Job is as the caller gave it; its ID is made if it was empty. It may be invalid.
	Job Job
	// Parked: the policy stores a call, because its key is held.
	Parked bool
}

// EnqueueKind is how a call to store a job ended. The kinds are few and fixed: they make good
// metric labels.
type EnqueueKind string

// How a call to store a job can end.
const (
	// EnqueueStored: the job was stored.
	EnqueueStored EnqueueKind = "stored"
	// EnqueueDuplicate: a job of its ID was stored before; see Receipt.Stored.
	EnqueueDuplicate EnqueueKind = "duplicate"
	// EnqueueKeyFull: the call failed with ErrKeyFull.
	EnqueueKeyFull EnqueueKind = "key_full"
	// EnqueuePrincipalFull: the call failed with ErrPrincipalFull.
	EnqueuePrincipalFull EnqueueKind = "principal_full"
	// EnqueueQueueFull: the call failed with ErrQueueFull.
	EnqueueQueueFull EnqueueKind = "queue_full"
	// EnqueueTooLarge: the call failed with ErrPayloadTooLarge.
	EnqueueTooLarge EnqueueKind = "too_large"
	// EnqueueLeft: the caller's ctx was cancelled. The job may be stored.
	EnqueueLeft EnqueueKind = "left"
	// EnqueueDeadline: the deadline of the caller's ctx passed. The job may be stored.
	EnqueueDeadline EnqueueKind = "deadline"
	// EnqueueUnavailable: the call failed with core.ErrUnavailable. The job may be stored.
	EnqueueUnavailable EnqueueKind = "unavailable"
	// EnqueueError: the call failed in another way, such as with ErrInvalidJob.
	EnqueueError EnqueueKind = "error"
)

// Enqueued says how a call to store a job ended.
type Enqueued struct {
	// Queue is the queue's name.
	Queue string
	Kind  EnqueueKind
	// ID, Key, Name, Principal and Trace are the job's, as the caller gave them; ID is made if it was
	// empty, and Trace may be OnEnqueuing's. Of a job that is invalid they may be anything.
	ID, Key, Name, Principal, Trace string
	// Size is that of its payload, in bytes, before encryption. Delay is the job's.
	Size  int
	Delay time.Duration
	// Parked: the policy stored a call, because its key was held.
	Parked bool
	// ExpiresAt is when the message becomes too old to be started; zero if it was not stored.
	ExpiresAt time.Time
	// Took is the time from the call to its end.
	Took time.Duration
	// Err is the call's error; nil if the job is stored.
	Err error
}

// Started tells of a message whose handler is about to be called.
type Started struct {
	// Queue is the queue's name.
	Queue   string
	Message Message
	// Age is how long ago the message was enqueued, and Lag how long ago it became due, both by the
	// clock of Redis. A message with a key is due when its turn in the key's FIFO has come. Lag is
	// zero if it is not known, after a reply of Redis was lost.
	Age, Lag time.Duration
	// KeyWait is the time from the message's claim until its key was granted to the Worker; zero
	// without a key. How often it met a held key before that is Message.Conflicts.
	KeyWait time.Duration
	// QueuedAfter: others of its key were queued after it when it was claimed.
	QueuedAfter bool
}

// Outcome is how a claim on a message ended.
type Outcome string

// The outcomes of a claim.
const (
	// OutcomeDone: the handler returned nil, and the message has ended.
	OutcomeDone Outcome = "done"
	// OutcomeRetry: the attempt failed, or ended as RetryLater, and there will be another one.
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
	// Queue is the queue's name.
	Queue   string
	Message Message
	Outcome Outcome
	// Err is why the message is not done. Nil if it is. If the queue is Encrypted (WithEncryption), its text is a secret as payloads are:
	// Redis has it sealed.
	Err       error
	Encrypted bool
	// Delay is how long the message waits before it is due again.
	Delay time.Duration
	// Took is the time from the claim to its end.
	Took time.Duration
}

// Swept tells what a look at the queue tidied up.
type Swept struct {
	// Queue is the queue's name.
	Queue string
	// Redelivered counts messages whose worker died: they are due again.
	Redelivered int64
	// Expired counts messages that became too old to be started.
	Expired int64
}

// NopObserver does nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

// OnEnqueuing changes nothing.
func (NopObserver) OnEnqueuing(ctx context.Context, e Enqueuing) (context.Context, string) {
	return ctx, e.Job.Trace
}

// OnEnqueued does nothing.
func (NopObserver) OnEnqueued(context.Context, Enqueued) {}

// OnStarted does nothing.
func (NopObserver) OnStarted(context.Context, Started) {}

// OnSettled does nothing.
func (NopObserver) OnSettled(context.Context, Settled) {}

// OnSwept does nothing.
func (NopObserver) OnSwept(context.Context, Swept) {}

// OnWarning does nothing.
func (NopObserver) OnWarning(context.Context, Warning) {}
