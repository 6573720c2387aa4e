package ops

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// requestKinds in the order of requestCounters, recordKinds in that of Recorder.records.
var (
	requestKinds = [...]httplock.OutcomeKind{
		httplock.OutcomeRan, httplock.OutcomePassed, httplock.OutcomePanicked, httplock.OutcomeLost, httplock.OutcomeConflict,
		httplock.OutcomeParked, httplock.OutcomeDuplicate, httplock.OutcomeShed, httplock.OutcomeCancelled, httplock.OutcomeDeadline,
		httplock.OutcomeUnavailable, httplock.OutcomeRefused, httplock.OutcomeError,
	}
	recordKinds = [...]idempotency.EventKind{
		idempotency.EventBegun, idempotency.EventStored, idempotency.EventParked, idempotency.EventReplayed, idempotency.EventInProgress,
		idempotency.EventMismatch, idempotency.EventStaleFence, idempotency.EventForgotten, idempotency.EventError,
	}
)

type requestCounters [len(requestKinds)]atomic.Int64

// Requests returns an observer for the middleware of routes, [httplock.WithObserver], that counts
// events in r and then passes them to next, which may be nil.
func (r *Recorder) Requests(next httplock.Observer) httplock.Observer {
	if nilcheck.IsNil(next) {
		next = httplock.NopObserver{}
	}
	return &requestObserver{r, next}
}

type requestObserver struct {
	*Recorder
	next httplock.Observer
}

func (o *requestObserver) OnOutcome(ctx context.Context, e httplock.Outcome) {
	o.requests.of(e.Name)[indexOf(requestKinds[:], e.Kind)].Add(1)
	if w := o.watched.Load(); w != nil {
		w.add(Event{At: time.Now(), Source: sourceRequests, Kind: string(e.Kind), Key: e.Key, Name: e.Name, ID: e.Ticket, Took: e.Took}, e.Err)
	}
	o.next.OnOutcome(ctx, e)
}

// Idempotency returns an observer for an idempotency.Store, [idempotency.WithObserver], that counts
// events in r and then passes them to next, which may be nil.
func (r *Recorder) Idempotency(next idempotency.Observer) idempotency.Observer {
	if nilcheck.IsNil(next) {
		next = idempotency.NopObserver{}
	}
	return &recordObserver{r, next}
}

type recordObserver struct {
	*Recorder
	next idempotency.Observer
}

func (o *recordObserver) OnEvent(ctx context.Context, e idempotency.Event) {
	o.records[indexOf(recordKinds[:], e.Kind)].Add(1)
	o.next.OnEvent(ctx, e)
}
