package asynqlock

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/internal/observing"
)

// Observer is told what PerKey does with tasks, on the goroutine of their handlers and on several at once. Its
// methods must be safe for concurrent use and quick; what they panic with is logged. Embed [NopObserver], so that
// new methods do not break yours.
//
// Keys and ids are in the events for logs and traces; they make poor metric labels.
type Observer interface {
	// OnOutcome: a task that asynq handed to PerKey has come to its end there. It is called exactly once each
	// time, also if the handler panics, before asynq learns of it. A task on its last attempt that stays in its
	// worker has come to no end, until its ctx ends. Of nested guards each tells its own: the outer one's is deferred or
	// too old if the inner one's is, and failed where the inner one found no key.
	OnOutcome(ctx context.Context, e Outcome)
}

// NopObserver does nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

// OnOutcome does nothing.
func (NopObserver) OnOutcome(context.Context, Outcome) {}

// OutcomeKind is what became of a task. The kinds are few and fixed: they make good metric labels.
type OutcomeKind string

// What can become of a task.
const (
	// OutcomeDone: the handler ran within its lease, and returned nil.
	OutcomeDone OutcomeKind = "done"
	// OutcomeFailed: the handler returned an error or panicked, or the key function or the policy failed.
	OutcomeFailed OutcomeKind = "failed"
	// OutcomeLost: the lease was lost while the handler ran.
	OutcomeLost OutcomeKind = "lost"
	// OutcomeDeferred: the task was not run, and comes back: as itself, or as Clone.
	OutcomeDeferred OutcomeKind = "deferred"
	// OutcomeTooOld: the task was refused its key for longer than WithMaxAge, and is archived.
	OutcomeTooOld OutcomeKind = "too_old"
	// OutcomeNoKey: the task has no usable key, and is archived.
	OutcomeNoKey OutcomeKind = "no_key"
	// OutcomeExpired: the task was on its last attempt, could not be cloned, and its time is over.
	OutcomeExpired OutcomeKind = "expired"
	// OutcomeSkipped: WithSkip let the task pass without a key. What the handler returned is not looked at.
	OutcomeSkipped OutcomeKind = "skipped"
)

// Outcome says what became of a task.
type Outcome struct {
	Kind OutcomeKind
	// Type, Queue and ID are the task's.
	Type, Queue, ID string
	// Key is what it asked for; empty if that was not found.
	Key string
	// Took is the time since asynq handed the task out.
	Took time.Duration
	// Since is when a task that was deferred, or is too old, was first refused its key; zero: not known.
	Since time.Time
	// Delay is when a deferred task comes back at the latest: a release brings it back sooner.
	Delay time.Duration
	// Clone is the id under which a deferred task goes on, if that is not its own.
	Clone string
	// Err is what asynq is given; nil if the handler was done, or panicked.
	Err error
}

// Recorder counts tasks by their type and outcome, an OutcomeKind. It must be safe for concurrent use. An ops.Recorder is
// one.
type Recorder interface {
	CountTask(taskType, outcome string)
}

// end is the outcome of a task that ends with err, unless its kind is known.
func (e *Outcome) end(err error) {
	e.Err = err
	d, deferred := isDeferred(err)
	switch {
	case e.Kind != "":
	case deferred:
		e.Kind, e.Since, e.Delay, e.Clone = OutcomeDeferred, d.since, d.delay, d.clone
	case errors.Is(err, ErrTooOld):
		e.Kind = OutcomeTooOld
		if old, ok := errors.AsType[*wordedError](err); ok {
			e.Since = old.since
		}
	case err == nil:
		e.Kind = OutcomeDone
	default:
		e.Kind = OutcomeFailed
	}
}

// observe tells the recorder and the observer of an outcome.
func (m *middleware) observe(ctx context.Context, task *asynq.Task, began time.Time, e *Outcome) {
	if m.recorder != nil {
		observing.Tell(ctx, m.logger, "asynqlock", func() { m.recorder.CountTask(task.Type(), string(e.Kind)) })
	}
	if m.observer == nil {
		return
	}
	e.Type, e.Took = task.Type(), time.Since(began)
	e.ID, _ = asynq.GetTaskID(ctx)
	e.Queue, _ = asynq.GetQueueName(ctx)
	observing.Tell(ctx, m.logger, "asynqlock", func() { m.observer.OnOutcome(ctx, *e) })
}
