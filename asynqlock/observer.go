package asynqlock

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/internal/observing"
)

// Observer gets the outcomes of tasks. Its methods are called on the goroutines of the
// tasks' handlers: they must be safe for concurrent use and return quickly. A panic is
// logged. Embed [NopObserver], so that new methods do not break yours.
//
// Keys and ids in the events are for logs and traces; they make poor metric labels.
type Observer interface {
	// OnOutcome is called exactly once for each time that asynq hands a task to PerKey, when PerKey
	// has finished with it and before asynq learns of the result, also if the handler panics. For a
	// task on its last attempt that stays in its worker this is not before its ctx ends. Each of
	// nested guards has its own outcome: the outer one's is deferred or too old if the inner one's
	// is, and failed where the inner one found no key.
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
	// OutcomeDone: the handler ran within its lease, and returned nil.
	OutcomeDone OutcomeKind = "done"
	// OutcomeFailed: the handler returned an error or panicked, or the key function or the policy failed.
	OutcomeFailed OutcomeKind = "failed"
	// OutcomeLost: the lease was lost while the handler ran.
	OutcomeLost OutcomeKind = "lost"
	// OutcomeDeferred: the task was not run, and is handed out again: as itself, or as Clone.
	OutcomeDeferred OutcomeKind = "deferred"
	// OutcomeTooOld: the task was refused its key for longer than WithMaxAge, and is archived.
	OutcomeTooOld OutcomeKind = "too_old"
	// OutcomeNoKey: the task has no usable key, and is archived.
	OutcomeNoKey OutcomeKind = "no_key"
	// OutcomeExpired: the task was on its last attempt, could not be cloned, and its time is over.
	OutcomeExpired OutcomeKind = "expired"
	// OutcomeSkipped: WithSkip let the task pass without a key. What the handler returned does not
	// matter.
	OutcomeSkipped OutcomeKind = "skipped"
)

// Outcome is the outcome of one task at a guard.
type Outcome struct {
	Kind OutcomeKind
	// Type, Queue and ID are those of the task.
	Type, Queue, ID string
	// Key is the key that it asked for; empty if none was found.
	Key string
	// Took is the time since asynq handed the task out.
	Took time.Duration
	// Since is when a task that was deferred, or is too old, was first refused its key; zero: not known.
	Since time.Time
	// Delay is after how long a deferred task is handed out again at the latest: a release wakes it
	// sooner.
	Delay time.Duration
	// Clone is the id of the clone as which a deferred task goes on; empty if it keeps its own.
	Clone string
	// Err is what asynq gets; nil if the handler returned nil, or panicked.
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
		if old, ok := errors.AsType[*textError](err); ok {
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
