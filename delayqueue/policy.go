package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/reservation"
)

// Policy is the conflict policy that stores a call whose key is held in q: the call is refused with
// a *core.DeferredError, and a [Worker] runs it later. A call without Encode cannot be stored and
// is rejected. If the queue does not take the call, it is refused with the queue's error.
func Policy(q *Queue) core.ConflictPolicy { return policy{queue: q} }

// Coalesce is [Policy] for calls of which only the latest matters, such as saves of a document: for
// each key, name and principal at most one call is parked. A newer call replaces it at its place in
// the FIFO; see [Job].Coalesce. A call that was given to a handler is not replaced: while it waits for its next attempt, fresh
// calls run, and it runs after them. If it must not undo a newer call, it has to find that out by a
// version.
func Coalesce(q *Queue) core.ConflictPolicy { return policy{queue: q, coalesce: true} }

// Debounce is [Coalesce] with a quiet period: a call that was parked runs when no newer one has
// arrived for quiet, and at most maxDelay after the arrival of the first of the calls that it
// replaced. See [Job].QuietPeriod. Both are at least 1 ms and
// shorter than the queue's max age, and quiet is no longer than maxDelay.
//
// In its quiet period, and then until it runs, a call's key is reserved for it, so that no fresh call runs before it and is
// undone by it; unless, after the quiet period, a call before it waits for its next attempt: fresh ones run then, as with Coalesce.
// Other calls of the key meet a conflict meanwhile, so quiet should be short. A call
// whose key is neither held nor reserved runs at once: a policy is not asked about it. To make
// every call of a stream wait, enqueue jobs with Job.QuietPeriod.
func Debounce(q *Queue, quiet, maxDelay time.Duration) core.ConflictPolicy {
	return policy{queue: q, coalesce: true, debounce: true, quiet: quiet, maxDelay: maxDelay}
}

type policy struct {
	queue              *Queue
	coalesce, debounce bool
	quiet, maxDelay    time.Duration // of Debounce
}

// reservations reserve the keys of parked messages.
var reservations = reservation.Get[*core.Locker, *core.Lease, core.AcquireOption, core.Decision, core.Preference]()

// Validate returns an error for a nil queue, and for a quiet period that cannot work. It wraps
// core.ErrInvalidOption. core.Locker.Guard calls it.
func (p policy) Validate() error {
	if p.queue == nil {
		return invalidOption("Policy: the queue is nil")
	}
	if p.debounce {
		if wrong := checkQuiet(p.quiet, p.maxDelay, p.queue.maxAge); wrong != "" {
			return invalidOption("Debounce(%s, %s): %s", p.quiet, p.maxDelay, wrong)
		}
	}
	return nil
}

// Honors implements core.PreferencePolicy: it always defers, as a caller asks for with Async.
func (p policy) Honors(prefers core.Preference) core.Preference {
	if p.queue != nil {
		reservations.StoresUnder(prefers, p.queue.prefix)
	}
	return core.Preference{Async: prefers.Async}
}

// Waits implements core.WaitingPolicy: it never waits.
func (policy) Waits() bool { return false }

// OnConflict implements core.ConflictPolicy.
func (p policy) OnConflict(ctx context.Context, c core.Conflict) (core.Decision, error) {
	if err := p.Validate(); err != nil {
		return core.Reject(), err
	}
	if c.Call.Encode == nil {
		return core.Reject(), nil
	}
	payload, err := c.Call.Encode()
	if err != nil {
		return core.Reject(), fmt.Errorf("delayqueue: encode the call: %w", err)
	}
	job := Job{ID: ident.Random(16), Key: c.Call.Key, Name: c.Call.Name, Principal: c.Call.Principal, Payload: payload, parked: true, wait: p.waitsForKey(c), fresh: true}
	if of := c.Call.DeduplicationID; of != "" {
		job.ID, job.fresh = ident.Hash([]byte(of), []byte(job.Key), []byte(job.Name), []byte(job.Principal))[:32], false
	}
	if validTrace(c.Call.Trace) {
		job.Trace = c.Call.Trace
	}
	job.Coalesce, job.QuietPeriod, job.MaxDelay = p.coalesce, p.quiet, p.maxDelay
	began := time.Now()
	ctx, job.Trace = p.queue.reports.enqueuing(ctx, job)
	receipt, err := p.queue.park(ctx, &job)
	p.queue.reports.enqueued(ctx, job, receipt, err, began)
	if err != nil {
		return core.Reject(), err
	}
	return reservations.Reserving(core.Deferred(receipt.Ticket), p.reserves(), parkedWork{p.queue}, receipt.rests), nil
}

// afterLease is how long after the end of its holder's lease a key is tried.
const afterLease = 50 * time.Millisecond

// keyWait is for how long a parked call waits for the message that its key is free, before a worker tries all the same: messages can be lost.
const keyWait = time.Second

// waitsForKey is for how long a call waits at most to be told that its key is free. Without a reservation nobody tells; a worker's try
// makes that longer, so it comes in time.
func (p policy) waitsForKey(c core.Conflict) time.Duration {
	wait := min(keyWait, p.queue.reservationWindow/2)
	if c.Remaining > 0 {
		wait = min(wait, c.Remaining+afterLease)
	}
	return wait
}

// parkedWork is what a queue has parked.
type parkedWork struct{ queue *Queue }

// Left implements reservation.Work.
func (w parkedWork) Left(ctx context.Context, key string, free bool) (left bool, err error) {
	if freed := w.queue.freed.Load(); free && freed != nil {
		(*freed)(key)
		return true, nil
	}
	return w.queue.wake(ctx, key, free)
}

// mostFollowing bounds how many messages of one DeduplicationID that are over are looked at.
const mostFollowing = 8

// park stores a call, and returns the id that it has then. One with a DeduplicationID has the first id whose message is not
// over: all processes see the same ones.
func (q *Queue) park(ctx context.Context, job *Job) (Receipt, error) {
	own := job.fresh
	for following := 0; ; following++ {
		receipt, err := q.enqueue(ctx, *job)
		if errors.Is(err, core.ErrUnavailable) && ctx.Err() == nil {
			// Perhaps only the reply was lost, and the call will run: the same id gets the same ticket.
			job.fresh = false
			receipt, err = q.enqueue(ctx, *job)
		}
		receipt.Stored = err == nil && (own || receipt.Stored)
		switch {
		case own || !receipt.over:
			return receipt, err
		case following < mostFollowing:
			job.ID = ident.Hash([]byte(job.ID))[:32]
		default:
			job.ID, job.fresh, own = ident.Random(16), true, true
		}
	}
}

// reserves is for how long the key stays reserved: a quiet period comes on top.
func (p policy) reserves() time.Duration {
	if p.queue.reservationWindow == 0 {
		return 0
	}
	return min(p.queue.reservationWindow+p.quiet, core.MaxTTL)
}
