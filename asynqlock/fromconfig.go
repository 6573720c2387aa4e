package asynqlock

import (
	"context"
	"log/slog"
	"sync"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/absent"
)

// Tasks says which guard a type of tasks has, and what makes their keys of a payload and headers; false: they need no
// key. It must be safe for concurrent use. A config.Runtime is one.
type Tasks interface {
	Task(taskType string) (guard *core.Guard, key func(payload []byte, headers map[string]string) (string, error), ok bool)
}

// FromConfig returns middleware that guards each task as a configuration says at that moment, by its type. An error of
// a key is as one of a KeyFunc. The servers that run it need Configure.
//
// A mistake in its arguments is logged once, and no task is then run, as with PerKey.
func FromConfig(tasks Tasks, opts ...Option) asynq.MiddlewareFunc {
	s, err := settingsOf(opts)
	if err == nil && absent.Is(tasks) {
		err = invalid("FromConfig(nil)")
	}
	if err != nil {
		slog.Error("asynqlock: misconfigured: no task behind FromConfig is run", "error", err)
		return (&middleware{broken: err, settings: defaults()}).wrap
	}
	return func(next asynq.Handler) asynq.Handler {
		var made sync.Map // type: *guarded
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			guard, key, ok := tasks.Task(task.Type())
			if !ok {
				return next.ProcessTask(ctx, task)
			}
			if known, ok := made.Load(task.Type()); ok && known.(*guarded).guard == guard {
				return known.(*guarded).handler.ProcessTask(ctx, task)
			}
			m := &middleware{guard: guard, settings: s, broken: guard.Err(), key: func(_ context.Context, task *asynq.Task) (string, error) {
				return key(task.Payload(), task.Headers())
			}}
			g := &guarded{guard, m.wrap(next)}
			made.Store(task.Type(), g)
			return g.handler.ProcessTask(ctx, task)
		})
	}
}

// guarded is a handler behind a guard.
type guarded struct {
	guard   *core.Guard
	handler asynq.Handler
}
