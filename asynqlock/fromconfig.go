package asynqlock

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Tasks returns the guard of a type of tasks, and the function that makes their keys from payload
// and headers. False: they need no key. It must be safe for concurrent use. A config.Runtime is
// one.
type Tasks interface {
	Task(taskType string) (guard *core.Guard, key func(payload []byte, headers map[string]string) (string, error), ok bool)
}

// FromConfig returns middleware that guards each task, by its type, as a configuration says at that
// moment. Errors of its keys mean the same as those of a KeyFunc. The servers that run it are made
// by NewServer, or need Configure.
//
// If tasks is a [Recorder], as a config.Runtime is, it counts what becomes of them, unless WithRecorder gives another one.
//
// FromConfig panics on a mistake in its arguments, as PerKey does. A guard of Tasks that cannot work is logged once, and
// its tasks are deferred: none is run.
func FromConfig(tasks Tasks, opts ...Option) asynq.MiddlewareFunc {
	s, err := settingsOf(opts)
	if err == nil && nilcheck.IsNil(tasks) {
		err = invalid("FromConfig(nil)")
	}
	if err != nil {
		panic(err)
	}
	if r, ok := tasks.(Recorder); ok && s.recorder == nil {
		s.recorder = r
	}
	return func(next asynq.Handler) asynq.Handler {
		var (
			made  sync.Map // *core.Guard: asynq.Handler
			count atomic.Int64
		)
		handlerOf := func(ctx context.Context, guard *core.Guard) asynq.Handler {
			if handler, ok := made.Load(guard); ok {
				return handler.(asynq.Handler)
			}
			if count.Add(1)%mostMade == 0 {
				made.Clear()
			}
			m := &middleware{guard: guard, settings: s, broken: guard.Err(), key: configKey}
			handler, known := made.LoadOrStore(guard, m.wrap(next))
			if m.broken != nil && !known {
				s.log().ErrorContext(ctx, "asynqlock: misconfigured: no task behind this guard is run", "error", m.broken)
			}
			return handler.(asynq.Handler)
		}
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			guard, key, ok := tasks.Task(task.Type())
			if !ok {
				return next.ProcessTask(ctx, task)
			}
			return handlerOf(ctx, guard).ProcessTask(context.WithValue(ctx, keyOf{}, taskKey(key)), task)
		})
	}
}

// mostMade bounds the handlers that are kept: a reload makes new guards.
const mostMade = 1000

// taskKey is what makes a task's key, as Tasks return it; keyOf is where a task's ctx has it.
type (
	taskKey func(payload []byte, headers map[string]string) (string, error)
	keyOf   struct{}
)

// configKey is the KeyFunc of tasks whose key Tasks make. It is called before the handler, which may be another
// FromConfig's.
func configKey(ctx context.Context, task *asynq.Task) (string, error) {
	key, _ := ctx.Value(keyOf{}).(taskKey)
	if key == nil {
		return "", invalid("the key function of the type %q is nil", task.Type())
	}
	return key(task.Payload(), task.Headers())
}
