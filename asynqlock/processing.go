package asynqlock

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/core"
)

// processing is a task that asks for its key, and perhaps runs.
type processing struct {
	*middleware
	server *server // nil: Configure was not applied
	key    string
	list   waitlist
	task   *asynq.Task
	next   asynq.Handler

	asked   func()   // it does not ask any more
	started chan int // how many wait; nil: it did not run
	lost    bool     // the lease was lost while it ran
	ahead   bool     // the next was woken while it ran; may be read after started
}

const (
	// shortRun is how long tasks run for which the next one is woken at their start, and not at their end:
	// asynq's look for it takes about as long.
	shortRun = 50 * time.Millisecond
	// nextWait is how long that one waits for its key in its worker. One task of a key does at a time.
	nextWait = 100 * time.Millisecond
	// stillRunningAfter is after which time a handler is said to run on whose ctx has ended.
	stillRunningAfter = time.Second
)

// nextWaits is the policy of a task that is the next for its key.
type nextWaits struct{}

// Waits implements core.WaitingPolicy.
func (nextWaits) Waits() bool { return true }

// OnConflict implements core.ConflictPolicy.
func (nextWaits) OnConflict(_ context.Context, c core.Conflict) (core.Decision, error) {
	if c.Waited >= nextWait {
		return core.Reject(), nil
	}
	return core.RetryAfter(nextWait - c.Waited), nil
}

// mayWait is for how long the task may wait for its key in its worker, if it is the next. A policy says that
// itself.
func (p *processing) mayWait() time.Duration {
	if p.server == nil || p.guard.Policy() != nil || !p.guard.Exclusive() {
		return 0
	}
	return 2 * nextWait
}

// do runs the task while it holds its key. When the key is released, also by a panic, the next that waits for it
// is woken.
func (p *processing) do(ctx context.Context, guard *core.Guard, mayWait time.Duration) error {
	defer p.ended(ctx)
	id, _ := asynq.GetTaskID(ctx)
	var result error
	err := guard.Do(ctx, core.Call{Key: p.key, Name: p.task.Type(), ID: id, Prefer: inTime(ctx)}, func(leased context.Context) error {
		defer p.typically(time.Now())
		defer p.warnIfStillRunning(ctx)()
		p.begin(leased)
		result = p.next.ProcessTask(leased, p.task)
		return nil // so that err is the lease's
	})
	switch {
	case err == nil:
		return result
	case p.started == nil:
		return p.refused(ctx, p.key, err, mayWait)
	default:
		if _, deferred := isDeferred(result); deferred { // further in: nothing ran that could have lost anything
			return result
		}
		p.lost = true
		return lost(err, result, p.key)
	}
}

// inTime has a wait end before asynq gives the task up, so that it is deferred, and has not failed.
func inTime(ctx context.Context) core.Preference {
	deadline, is := ctx.Deadline()
	if !is {
		return core.Preference{}
	}
	left := time.Until(deadline)
	return core.Preference{Bounded: true, Wait: left - min(left/10, time.Second)}
}

// begin takes the task out of the list, beside its handler. If such tasks are done soon, the next is woken now, so
// that it is there when this one ends.
func (p *processing) begin(ctx context.Context) {
	p.started = make(chan int, 1)
	if p.server == nil {
		p.started <- 0
		return
	}
	p.asked()
	short := p.guard.Exclusive() && p.isShort()
	ctx = context.WithoutCancel(ctx)
	go func() {
		waiting, _ := p.list.start(ctx, p.server.rdb, taskOf(ctx))
		if waiting > 0 && short {
			p.ahead, _ = p.server.wake(ctx, p.list, p.expected(), time.Now().Add(inWorker))
		}
		p.started <- waiting
	}()
}

// ended wakes the next, unless that was done. What takes long goes on without the worker: a Redis that is slow, since
// clients of go-redis may ignore a ctx that ends, and a next that is slow to be put aside.
func (p *processing) ended(ctx context.Context) {
	if p.started == nil || p.server == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		waiting := <-p.started
		// Those that are refused meanwhile are told by OnFree, but only when nobody holds the key.
		if waiting > 0 && !p.ahead || !p.guard.Exclusive() {
			p.server.freed(ctx, p.list, p.expected())
		}
	}()
	select {
	case <-done:
	case <-time.After(inWorker):
	}
}

// warnIfStillRunning logs once that a handler has not returned some time after its ctx ended: asynq has then given the
// task up, and runs it once more.
func (p *processing) warnIfStillRunning(ctx context.Context) (returned func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(stillRunningAfter):
			p.warnedStillRunning.Do(func() {
				p.log().WarnContext(ctx, "asynqlock: a handler still runs although its ctx has ended, by the task's Timeout or Deadline, a cancelation or a shutdown: "+
					"asynq has given up on this run, and the task's next run waits until the handler returns: handlers must return when their ctx ends",
					"type", p.task.Type(), "cause", context.Cause(ctx))
			})
		}
	})
	return func() {
		stop()
		close(done)
	}
}

// expected is how many tasks of one key may be woken and not back yet.
func (m *middleware) expected() int {
	if m.guard.Exclusive() {
		return 1
	}
	return math.MaxInt32
}

// maxTypes bounds for how many types it is known how long their tasks run: callers choose them.
const maxTypes = 1000

// typically counts a run in how long tasks of the type run: an average that forgets.
func (p *processing) typically(began time.Time) {
	known, is := p.typical.Load(p.task.Type())
	if !is {
		if p.types.Add(1) > maxTypes {
			return
		}
		known, _ = p.typical.LoadOrStore(p.task.Type(), &atomic.Int64{})
	}
	average, took := known.(*atomic.Int64), int64(time.Since(began))
	if before := average.Load(); before > 0 {
		took = before + (took-before)/8
	}
	average.Store(max(took, 1))
}

func (p *processing) isShort() bool {
	known, ok := p.typical.Load(p.task.Type())
	return ok && known.(*atomic.Int64).Load() <= int64(shortRun)
}
