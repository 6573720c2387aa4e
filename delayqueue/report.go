package delayqueue

// The events of the Queue for its Observer, and its warning.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/observing"
)

// observe calls an Observer.
func observe(log *slog.Logger, tell func()) {
	observing.Tell(context.Background(), log, "delayqueue", tell)
}

// reporter tells the Observer of a Queue.
type reporter struct {
	name      string // of the Queue
	observer  Observer
	workers   *workerWatch
	recurring map[WarningKind]*recurring
	delayTold sync.Once
}

func newReporter(name string, o Observer) *reporter {
	return &reporter{name: name, observer: o, workers: newWorkerWatch(), recurring: map[WarningKind]*recurring{
		WarnForgotten: {over: "%d dead letters were forgotten, and none for %s"},
		WarnClockBack: {over: "the clock of redis was not set back again for %[2]s"},
	}}
}

// enqueuing calls OnEnqueuing. It returns the ctx of the call and the job's trace.
func (q *reporter) enqueuing(ctx context.Context, job Job) (context.Context, string) {
	of, trace := ctx, job.Trace
	observe(slog.Default(), func() {
		observed, ownTrace := q.observer.OnEnqueuing(ctx, Enqueuing{Queue: q.name, Job: job, Parked: job.parked})
		if observed != nil {
			of = observed
		}
		if validTrace(ownTrace) && (trace == "" || validTrace(trace)) { // one that the caller has wrong is reported
			trace = ownTrace
		}
	})
	return of, trace
}

// enqueued calls OnEnqueued.
func (q *reporter) enqueued(ctx context.Context, job Job, receipt Receipt, err error, began time.Time) {
	e := Enqueued{
		Queue: q.name, Kind: enqueueKind(ctx, receipt, err), ID: job.ID, Key: job.Key, Name: job.Name, Principal: job.Principal, Trace: job.Trace,
		Size: len(job.Payload), Delay: job.Delay, Parked: job.parked, ExpiresAt: receipt.ExpiresAt, Took: time.Since(began), Err: err,
	}
	observe(slog.Default(), func() { q.observer.OnEnqueued(ctx, e) })
}

func enqueueKind(ctx context.Context, receipt Receipt, err error) EnqueueKind {
	over := ctx.Err()
	switch {
	case err == nil && receipt.Stored:
		return EnqueueStored
	case err == nil:
		return EnqueueDuplicate
	case over != nil && errors.Is(err, over): // the ctx's cause may wrap any of those below
		if errors.Is(over, context.DeadlineExceeded) {
			return EnqueueDeadline
		}
		return EnqueueCancelled
	case errors.Is(err, ErrKeyFull):
		return EnqueueKeyFull
	case errors.Is(err, ErrPrincipalFull):
		return EnqueuePrincipalFull
	case errors.Is(err, ErrQueueFull):
		return EnqueueQueueFull
	case errors.Is(err, ErrPayloadTooLarge):
		return EnqueueTooLarge
	case errors.Is(err, core.ErrUnavailable):
		return EnqueueUnavailable
	}
	return EnqueueError
}

// WarnNoWorker reports that calls are parked, and that no Worker has claimed for 30 s: none
// runs on this queue, or [Worker.Pause] pauses it. A process that has parked a call reports it, once:
// when it parks another one, or at a check, which it makes every 31 s while something is queued or
// runs. It is reported again, as resolved, when the process enqueues something or checks, and a Worker has
// claimed since or nothing is queued any more.
const WarnNoWorker WarningKind = "no_worker"

// noWorkerAfter is longer than an idle Worker does without a claim.
const noWorkerAfter = 30 * time.Second

// workerWatch are the partitions that nobody works on.
type workerWatch struct {
	mu      sync.Mutex
	gone    map[*store.Partition]bool
	looking map[*store.Partition]bool // a timer looks again, for when nothing more is parked
	again   time.Duration             // after which time
}

func newWorkerWatch() *workerWatch {
	return &workerWatch{gone: map[*store.Partition]bool{}, looking: map[*store.Partition]bool{}, again: noWorkerAfter + time.Second}
}

// lookAgain looks later whether somebody works on what was parked in a partition, and then again, until nothing
// is queued or runs there, or the client is closed. Its caller has the mutex.
func (w *workerWatch) lookAgain(q *reporter, p *store.Partition) {
	if w.looking[p] {
		return
	}
	w.looking[p] = true
	time.AfterFunc(w.again, func() {
		w.mu.Lock()
		delete(w.looking, p)
		w.mu.Unlock()
		switch since, err := p.Unclaimed(context.Background()); {
		case err == nil:
			q.noteClaim(p, since, since >= 0)
		case !errors.Is(err, redis.ErrClosed): // not known: Redis may be away
			w.mu.Lock()
			w.lookAgain(q, p)
			w.mu.Unlock()
		}
	})
}

// noteClaim notes for how long no Worker has claimed in a partition; less than 0: none need have. Parked: a call was
// parked there.
func (q *reporter) noteClaim(p *store.Partition, since time.Duration, parked bool) {
	w := q.workers
	w.mu.Lock()
	before := len(w.gone)
	if since < noWorkerAfter {
		delete(w.gone, p)
	} else if parked {
		w.gone[p] = true
	}
	if parked {
		w.lookAgain(q, p)
	}
	after := len(w.gone)
	w.mu.Unlock()
	if (before == 0) == (after == 0) {
		return
	}
	warning := Warning{Kind: WarnNoWorker, Resolved: after == 0, Detail: "a worker has claimed, or nothing is queued any more"}
	if after > 0 {
		warning.Detail = fmt.Sprintf("parked, but no worker has claimed for %s: start one with this queue's name and prefix", since.Round(time.Second))
	}
	q.warn(warning)
}

// DefaultObserver returns the [Observer] of a Queue without [WithQueueObserver], for an Observer of
// yours that passes events on to it. It logs warnings with [slog.Default].
func DefaultObserver() Observer { return logWarnings{} }

type logWarnings struct{ NopObserver }

// OnWarning logs the warning.
func (logWarnings) OnWarning(ctx context.Context, w Warning) {
	level := slog.LevelWarn
	if w.Resolved {
		level = slog.LevelInfo
	}
	slog.Default().LogAttrs(ctx, level, "delayqueue: warning", slog.String("queue", w.Queue),
		slog.String("kind", string(w.Kind)), slog.Bool("resolved", w.Resolved), slog.String("detail", w.Detail))
}
