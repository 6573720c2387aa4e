package delayqueue

import (
	"context"
	"errors"
	"time"

	"github.com/perkey-go/perkey/core"
)

// Observer is told what a Queue and its Workers do. Its methods are called on the goroutine that
// does it, on several at the same time. They must be safe for concurrent use and quick, and must
// not call the Queue or the Worker; a panic is logged. Embed [NopObserver], so that methods that
// are added later do not break your implementation.
//
// Keys and ids are in the events for logs and traces; they make poor metric labels.
type Observer interface {
	// OnEnqueuing is called when a call of [Queue.Enqueue], or of a policy that stores a call, begins; OnEnqueued follows. The
	// ctx that it returns must be derived from the argument, and replaces it in the call and in OnEnqueued. The
	// trace that it returns becomes the job's Trace, if it is a W3C traceparent; return e.Job.Trace to change nothing.
	OnEnqueuing(ctx context.Context, e Enqueuing) (_ context.Context, trace string)
	// OnEnqueued is called exactly once for each such call, before it returns, whether the job was stored or not.
	OnEnqueued(ctx context.Context, e Enqueued)
	// OnStarted is called before a message's handler. ctx is the handler's.
	OnStarted(ctx context.Context, e Started)
	// OnSettled is called when a claim on a message has ended. ctx is that of the claim.
	OnSettled(ctx context.Context, e Settled)
	// OnReaped is called when a claim found messages of dead workers, or messages that were too old.
	OnReaped(ctx context.Context, e Reaped)
	// OnWarning is called when something keeps the queue from working as it should, and when it is over.
	OnWarning(ctx context.Context, w Warning)
}

// Enqueuing describes a job that is about to be stored, for [Observer].OnEnqueuing.
type Enqueuing struct {
	// Queue is the queue's name.
	Queue string
	// Job is as the caller gave it, with an ID if that was empty. It may be invalid.
	Job Job
	// Parked: a policy stores a call, because its key is held.
	Parked bool
}

// EnqueueKind is how a call that stores a job ended. The kinds are few and fixed, so they make good
// metric labels.
type EnqueueKind string

// How a call that stores a job can end.
const (
	// EnqueueStored: the job was stored.
	EnqueueStored EnqueueKind = "stored"
	// EnqueueDuplicate: a job with its ID was stored before; see [Receipt].Stored.
	EnqueueDuplicate EnqueueKind = "duplicate"
	// EnqueueKeyFull: the call failed with ErrKeyFull.
	EnqueueKeyFull EnqueueKind = "key_full"
	// EnqueuePrincipalFull: the call failed with ErrPrincipalFull.
	EnqueuePrincipalFull EnqueueKind = "principal_full"
	// EnqueueQueueFull: the call failed with ErrQueueFull.
	EnqueueQueueFull EnqueueKind = "queue_full"
	// EnqueueTooLarge: the call failed with ErrPayloadTooLarge.
	EnqueueTooLarge EnqueueKind = "too_large"
	// EnqueueCancelled: the caller's ctx was cancelled. The job may be stored.
	EnqueueCancelled EnqueueKind = "cancelled"
	// EnqueueDeadline: the deadline of the caller's ctx passed. The job may be stored.
	EnqueueDeadline EnqueueKind = "deadline"
	// EnqueueUnavailable: the call failed with core.ErrUnavailable. The job may be stored.
	EnqueueUnavailable EnqueueKind = "unavailable"
	// EnqueueError: the call failed in another way, such as with ErrInvalidJob.
	EnqueueError EnqueueKind = "error"
)

// Enqueued describes how a call that stores a job ended, for [Observer].OnEnqueued.
type Enqueued struct {
	// Queue is the queue's name.
	Queue string
	Kind  EnqueueKind
	// ID, Key, Name, Principal and Trace are the job's, as the caller gave them; an empty ID was replaced, and
	// Trace may be that of OnEnqueuing. If the job is invalid they may be anything.
	ID, Key, Name, Principal, Trace string
	// Size is that of its payload, in bytes, before encryption. Delay is the job's.
	Size  int
	Delay time.Duration
	// Parked: a policy stored a call, because its key was held.
	Parked bool
	// ExpiresAt is when the message becomes too old to be started; zero if it was not stored.
	ExpiresAt time.Time
	// Took is the time from the call to its end.
	Took time.Duration
	// Err is the call's error; nil if the job is stored.
	Err error
}

// Started describes a message whose handler is about to be called, for [Observer].OnStarted.
type Started struct {
	// Queue is the queue's name.
	Queue   string
	Message Message
	// Age is how long ago the message was enqueued, and Lag how long ago it became due, both by the
	// clock of Redis. A message with a key is due when it is the first in the key's FIFO. Lag is
	// zero if it is not known, after a reply of Redis was lost.
	Age, Lag time.Duration
	// KeyWait is the time from the message's claim until its key was granted to the Worker; zero
	// without a key. Message.Conflicts is how often its key was held before.
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
	// OutcomeReturned: the message went back unchanged, because the Worker
	// was stopped or paused, could not ask for the key, or cannot run it ([HandBack]).
	OutcomeReturned Outcome = "returned"
	// OutcomeDead: the message is a dead letter.
	OutcomeDead Outcome = "dead"
	// OutcomeExpired: the attempt failed, and the message will be too old for
	// another one.
	OutcomeExpired Outcome = "expired"
	// OutcomeLate: the claim was lost, or Redis did not reply before its end, so
	// the result was not stored. The message runs again, or has already done so.
	OutcomeLate Outcome = "late"
)

// OutcomeOf returns how a claim ends whose handler returned err, as far as err alone says:
// [OutcomeDone] for nil, [OutcomeConflict] for core.ErrConflict, [OutcomeReturned] for [HandBack],
// [OutcomeDead] for [SkipRetry], and otherwise [OutcomeRetry]. A [Middleware] can use it to tell
// failures from other ends. An [Observer] gets the real outcome.
func OutcomeOf(err error) Outcome {
	var (
		skip     *skipRetryError
		handBack *handBackError
		later    *retryLaterError
	)
	switch {
	case err == nil:
		return OutcomeDone
	case errors.As(err, &skip):
		return OutcomeDead
	case errors.As(err, &handBack):
		return OutcomeReturned
	case !errors.As(err, &later) && errors.Is(err, core.ErrConflict):
		return OutcomeConflict
	}
	return OutcomeRetry
}

// Settled describes a claim that has ended, for [Observer].OnSettled.
type Settled struct {
	// Queue is the queue's name.
	Queue   string
	Message Message
	Outcome Outcome
	// Err is why the message is not done; nil if it is. If the queue is Encrypted (WithEncryption), its text is a secret as payloads are:
	// Redis has it sealed.
	Err       error
	Encrypted bool
	// Delay is how long the message waits before it is due again.
	Delay time.Duration
	// Took is the time from the claim to its end.
	Took time.Duration
}

// Reaped describes what a claim found beside its messages, for [Observer].OnReaped.
type Reaped struct {
	// Queue is the queue's name.
	Queue string
	// Redelivered counts messages whose worker died: they were made due again.
	Redelivered int64
	// Expired counts messages that became too old to be started.
	Expired int64
}

// Warning reports something that keeps a queue from working as it should. No call fails because of
// it.
type Warning struct {
	// Queue is the queue's name.
	Queue string
	Kind  WarningKind
	// Detail describes what was found.
	Detail string
	// Resolved: what an earlier Warning of this kind reported is over.
	Resolved bool
}

// WarningKind is the kind of a [Warning].
type WarningKind string

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

// OnReaped does nothing.
func (NopObserver) OnReaped(context.Context, Reaped) {}

// OnWarning does nothing.
func (NopObserver) OnWarning(context.Context, Warning) {}
