package asynqlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/core"
)

// PerKey returns asynq middleware that runs one task at a time per key, for a mux
// (mux.Use) or around a single handler. The servers that run it are made by NewServer, or need Configure.
//
// PerKey panics on a mistake in its arguments, with an error that wraps core.ErrInvalidOption. New
// returns the error.
func PerKey(guard *core.Guard, key KeyFunc, opts ...Option) asynq.MiddlewareFunc {
	mw, err := New(guard, key, opts...)
	if err != nil {
		panic(err)
	}
	return mw
}

// New is PerKey with an error instead of a panic. The error wraps core.ErrInvalidOption.
func New(guard *core.Guard, key KeyFunc, opts ...Option) (asynq.MiddlewareFunc, error) {
	m, err := build(guard, key, opts)
	if err != nil {
		return nil, err
	}
	return m.wrap, nil
}

// middleware is what one PerKey guards with.
type middleware struct {
	guard *core.Guard
	key   KeyFunc
	settings
	broken error // why no task can be run

	guards  sync.Map     // *server: a guard whose releases wake that one's tasks
	typical sync.Map     // a type of tasks: *atomic.Int64, how long one runs
	types   atomic.Int64 // how often a type was met that is not in typical

	unconfigured, badKeyFunc, warnedStillRunning sync.Once // what is logged once
}

func build(guard *core.Guard, key KeyFunc, opts []Option) (*middleware, error) {
	switch {
	case guard == nil:
		return nil, invalid("the guard is nil: make one with Locker.Guard")
	case guard.Err() != nil:
		return nil, guard.Err()
	case key == nil:
		return nil, invalid(`the key function is nil: give it one, such as asynqlock.JSONField("wallet:", "user_id")`)
	}
	s, err := settingsOf(opts)
	return &middleware{guard: guard, key: key, settings: s}, err
}

func settingsOf(opts []Option) (settings, error) {
	s := defaults()
	for _, opt := range opts {
		if opt == nil {
			return s, invalid("an option is nil")
		}
		if err := opt(&s); err != nil {
			return s, err
		}
	}
	return s, nil
}

// wrap guards next.
func (m *middleware) wrap(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) (err error) {
		began, returned := time.Now(), false
		var e Outcome
		defer func() {
			switch d, deferred := isDeferred(err); {
			case !returned: // a panic
				e.Kind = OutcomeFailed
			case deferred && d.stays:
				return
			default:
				e.end(err)
			}
			m.observe(ctx, task, began, &e)
		}()
		err = m.handle(ctx, task, next, &e)
		returned = true
		return err
	})
}

// handle processes a task. One that stays in its worker is processed again by the outermost guard, so that it
// holds no key meanwhile.
func (m *middleware) handle(ctx context.Context, task *asynq.Task, next asynq.Handler, e *Outcome) error {
	if workerOf(ctx) != nil {
		return m.process(ctx, task, next, e)
	}
	w := &worker{}
	ctx = context.WithValue(ctx, workerKey{}, w)
	err := m.process(ctx, task, next, e)
	for {
		d, deferred := isDeferred(err)
		if !deferred || !d.stays {
			return err
		}
		inTime := sleep(ctx, max(m.minDelay, minStay))
		switch {
		case !inTime:
		case w.unsure: // the clone and this one might both run
			d.mayWait = 0 // nor may it wait to be the next for its key
			err = m.postpone(ctx, d.key, &d.refusal)
		default:
			err = m.process(ctx, task, next, e)
			inTime = !endedBeforeRun(err)
		}
		if !inTime {
			e.Kind = OutcomeExpired
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // a shutdown: asynq puts the task back
				e.Kind, e.Since = OutcomeDeferred, d.since
			}
			return outOfTime(ctx, d)
		}
	}
}

// process runs a task while holding its key, or says why not. The key is released
// when next returns, and not when ctx ends: asynq hands the task out again at that
// moment, and the held key is what keeps the copies apart.
func (m *middleware) process(ctx context.Context, task *asynq.Task, next asynq.Handler, e *Outcome) error {
	*e = Outcome{}
	if m.broken != nil {
		return m.postpone(ctx, "", &refusal{why: "the guard is misconfigured", cause: m.broken})
	}
	if m.skip != nil && m.skip(ctx, task) {
		e.Kind = OutcomeSkipped
		return next.ProcessTask(ctx, task)
	}
	key, err := m.key(ctx, task)
	if err == nil {
		err = core.ValidateKey(key)
	}
	if err != nil {
		err = m.keyless(ctx, task, err)
		if errors.Is(err, asynq.SkipRetry) && !errors.Is(err, ErrTooOld) {
			e.Kind = OutcomeNoKey
		}
		return err
	}

	e.Key = key
	s, _ := ctx.Value(serverKey{}).(*server)
	p := &processing{middleware: m, server: s, key: key, list: listOf(m.guard.Locker(), key), task: task, next: next}
	if s != nil {
		s.check(ctx, m)
		defer s.asks(p)()
	} else if id, ofServer := asynq.GetTaskID(ctx); ofServer {
		m.unconfigured.Do(func() {
			m.log().WarnContext(ctx, "asynqlock: the server of a task was not made by asynqlock.NewServer, and Configure was not applied to its asynq.Config: "+
				"tasks that are refused their key count as failed, wait exponentially longer, and are archived when no retry is left", "task", id)
		})
	}
	err = p.do(ctx, m.guardOf(s), p.mayWait())
	if d, deferred := isDeferred(err); deferred && d.next {
		err = p.do(ctx, m.guardOf(s).WithPolicy(nextWaits{}), 0)
	}
	if p.lost {
		e.Kind = OutcomeLost
	}
	return err
}

// guardOf is the guard for the tasks of a server: when a key may be free that one of them was refused,
// the next that waits for it is woken.
func (m *middleware) guardOf(s *server) *core.Guard {
	if s == nil {
		return m.guard
	}
	if g, ok := m.guards.Load(s); ok {
		return g.(*core.Guard)
	}
	g, _ := m.guards.LoadOrStore(s, m.guard.OnFree(func(ctx context.Context, key string) {
		s.freed(ctx, listOf(m.guard.Locker(), key), m.expected())
	}))
	return g.(*core.Guard)
}

// keyless deals with a task whose key could not be found.
func (m *middleware) keyless(ctx context.Context, task *asynq.Task, err error) error {
	if errors.Is(err, core.ErrInvalidKey) && !errors.Is(err, asynq.SkipRetry) {
		return unusable("%w", err)
	}
	if !errors.Is(err, core.ErrInvalidOption) {
		return err
	}
	m.badKeyFunc.Do(func() {
		m.log().ErrorContext(ctx, "asynqlock: misconfigured: tasks are not run", "type", task.Type(), "error", err)
	})
	return m.postpone(ctx, "", &refusal{why: "the key function is misconfigured", cause: err})
}

// refused deals with a task that the guard did not run.
func (m *middleware) refused(ctx context.Context, key string, err error, mayWait time.Duration) error {
	var conflict *core.ConflictError
	switch {
	case errors.As(err, &conflict):
		return m.postpone(ctx, key, &refusal{why: "the key is held", cause: err, remaining: conflict.Remaining, mayWait: mayWait})
	case errors.Is(err, core.ErrDeferred):
		return m.postpone(ctx, key, &refusal{why: "the key is held, and asynq's tasks cannot be parked", cause: err})
	case errors.Is(err, core.ErrUnavailable), errors.Is(err, core.ErrClosed):
		why := redact(err, key)
		m.log().WarnContext(ctx, "asynqlock: task not run", "error", why)
		return m.postpone(ctx, key, &refusal{why: why, cause: err})
	default:
		return &textError{text: "asynqlock: not run: " + redact(err, key), errs: []error{err}, endedBeforeRun: ctx.Err() != nil}
	}
}

// postpone has a task that was not run come back later.
func (m *middleware) postpone(ctx context.Context, key string, r *refusal) error {
	r.key = key
	s, _ := ctx.Value(serverKey{}).(*server)
	if s == nil {
		r.why += " (asynqlock.Configure was not applied)"
		return &deferredError{refusal: *r}
	}
	return s.postpone(ctx, m, listOf(m.guard.Locker(), key), r)
}

// delay is when to ask again for a key whose holder's lease has so much left.
// Tasks that were refused together are spread out.
func (m *middleware) delay(remaining time.Duration) time.Duration {
	if remaining <= 0 {
		remaining = unknownRemaining
	}
	d := min(max(remaining, m.minDelay), m.maxDelay)
	return max(d-jitter(d/2), m.minDelay)
}
