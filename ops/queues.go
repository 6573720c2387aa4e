package ops

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// enqueueKinds and settleKinds in the order of queueCounters.
var (
	enqueueKinds = [...]delayqueue.EnqueueKind{
		delayqueue.EnqueueStored, delayqueue.EnqueueDuplicate, delayqueue.EnqueueKeyFull, delayqueue.EnqueuePrincipalFull,
		delayqueue.EnqueueQueueFull, delayqueue.EnqueueTooLarge, delayqueue.EnqueueCancelled, delayqueue.EnqueueDeadline,
		delayqueue.EnqueueUnavailable, delayqueue.EnqueueError,
	}
	settleKinds = [...]delayqueue.Outcome{
		delayqueue.OutcomeDone, delayqueue.OutcomeRetry, delayqueue.OutcomeConflict, delayqueue.OutcomeReturned,
		delayqueue.OutcomeDead, delayqueue.OutcomeExpired, delayqueue.OutcomeLate,
	}
)

// errSealed stands in events, which go to Redis in clear, for an error that Redis has sealed.
var errSealed = errors.New("an error that is not shown, since the queue is encrypted")

type queueCounters struct {
	enqueued             [len(enqueueKinds)]atomic.Int64
	settled              [len(settleKinds)]atomic.Int64
	redelivered, expired atomic.Int64
	lag, keyWait, claim  histogram
}

func (c *queueCounters) used() bool {
	return anyCounted(c.enqueued[:]) || anyCounted(c.settled[:]) || c.redelivered.Load()+c.expired.Load() != 0
}

// Queues returns an observer for queues and their workers, [delayqueue.WithQueueObserver], that
// counts events in r and then passes them to next. A nil next is [delayqueue.DefaultObserver]:
// warnings are logged as without an observer.
func (r *Recorder) Queues(next delayqueue.Observer) delayqueue.Observer {
	if nilcheck.IsNil(next) {
		next = delayqueue.DefaultObserver()
	}
	return &queueObserver{r, next}
}

type queueObserver struct {
	*Recorder
	next delayqueue.Observer
}

func (o *queueObserver) OnEnqueuing(ctx context.Context, e delayqueue.Enqueuing) (context.Context, string) {
	return o.next.OnEnqueuing(ctx, e)
}

func (o *queueObserver) OnEnqueued(ctx context.Context, e delayqueue.Enqueued) {
	o.queues.of(e.Queue).enqueued[indexOf(enqueueKinds[:], e.Kind)].Add(1)
	if e.Kind == delayqueue.EnqueueUnavailable {
		o.notable.add(enqueueEvent(&e), e.Err)
	}
	if w := o.watched.Load(); w != nil {
		w.add(enqueueEvent(&e), e.Err)
	}
	o.next.OnEnqueued(ctx, e)
}

func (o *queueObserver) OnStarted(ctx context.Context, e delayqueue.Started) {
	c := o.queues.of(e.Queue)
	c.lag.add(e.Lag)
	if e.Message.Key != "" {
		c.keyWait.add(e.KeyWait)
	}
	if w := o.watched.Load(); w != nil {
		w.add(messageEvent(e.Queue, "started", &e.Message, e.Lag), nil)
	}
	o.next.OnStarted(ctx, e)
}

func (o *queueObserver) OnSettled(ctx context.Context, e delayqueue.Settled) {
	c := o.queues.of(e.Queue)
	c.settled[indexOf(settleKinds[:], e.Outcome)].Add(1)
	c.claim.add(e.Took)
	why := e.Err
	if why != nil && e.Encrypted {
		why = errSealed
	}
	if e.Outcome == delayqueue.OutcomeDead || e.Outcome == delayqueue.OutcomeExpired {
		o.notable.add(messageEvent(e.Queue, string(e.Outcome), &e.Message, e.Took), why)
	}
	if w := o.watched.Load(); w != nil {
		w.add(messageEvent(e.Queue, string(e.Outcome), &e.Message, e.Took), why)
	}
	o.next.OnSettled(ctx, e)
}

func (o *queueObserver) OnReaped(ctx context.Context, e delayqueue.Reaped) {
	c := o.queues.of(e.Queue)
	c.redelivered.Add(e.Redelivered)
	c.expired.Add(e.Expired)
	if e.Expired > 0 {
		o.notable.add(Event{At: time.Now(), Source: sourceQueues, Kind: string(delayqueue.OutcomeExpired), Queue: e.Queue, Count: e.Expired}, nil)
	}
	o.next.OnReaped(ctx, e)
}

func (o *queueObserver) OnWarning(ctx context.Context, w delayqueue.Warning) {
	o.warnings.add(warning{sourceQueues, string(w.Kind)}, w.Queue, w.Resolved)
	o.notable.add(warningEvent(sourceQueues, string(w.Kind), w.Queue, w.Detail, w.Resolved), nil)
	o.next.OnWarning(ctx, w)
}
