package lockotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// minWait is how long a call must have waited for a span, if it got its key.
const minWait = time.Millisecond

// Locks returns an observer for Lockers, [core.WithObserver], that makes spans of calls
// that waited for their key or were refused it, and then passes events to next. A nil
// next is [core.DefaultObserver]: lost leases and warnings are logged as without an
// observer.
func Locks(next core.Observer, opts ...Option) core.Observer {
	if nilcheck.IsNil(next) {
		next = core.DefaultObserver(nil)
	}
	return &locks{next, configure(opts)}
}

type locks struct {
	core.Observer
	options
}

func (o *locks) OnOutcome(ctx context.Context, e core.Outcome) {
	if e.Kind != core.OutcomeAcquired || e.DidWait && e.Waited >= minWait {
		o.trace(ctx, &e)
	}
	o.Observer.OnOutcome(ctx, e)
}

// trace makes the span of a call that ended just now, unless the span that it would be in is not sampled: to ask the sampler
// again costs more than a call for a key that its process has.
func (o *locks) trace(ctx context.Context, e *core.Outcome) {
	parent := trace.SpanFromContext(ctx)
	if of := parent.SpanContext(); of.IsValid() && !of.IsSampled() && !parent.IsRecording() || !of.IsValid() && !o.roots {
		return
	}
	end := time.Now()
	attributes := make([]attribute.KeyValue, 0, 8)
	attributes = append(attributes, outcomeAttribute.String(string(e.Kind)), waitedAttribute.Float64(e.Waited.Seconds()),
		attemptsAttribute.Int(e.Attempts), waitingAttribute.Int(e.Waiting))
	attributes = o.named(attributes, e.Name, e.Key)
	if e.Mode != "" {
		attributes = append(attributes, modeAttribute.String(string(e.Mode)))
	}
	if o.keys && e.Keys != nil {
		attributes = append(attributes, keysAttribute.StringSlice(e.Keys))
	}
	_, span := o.tracer.Start(ctx, "perkey.acquire", trace.WithTimestamp(end.Add(-e.Waited)), trace.WithAttributes(attributes...))
	if isFailure(e) {
		o.failed(span, string(e.Kind), e.Cause)
	}
	span.End(trace.WithTimestamp(end))
}

// isFailure reports whether a call failed. A conflict is an answer, and so is a caller's time that is over.
func isFailure(e *core.Outcome) bool {
	switch e.Kind {
	case core.OutcomeShed, core.OutcomeUnavailable, core.OutcomeClosed, core.OutcomeError:
		return !errors.Is(e.Cause, core.ErrConflict)
	}
	return false
}

func (o *locks) OnLost(ctx context.Context, e core.Lost) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		attributes := []attribute.KeyValue{lossAttribute.String(string(e.Kind)), heldAttribute.Float64(e.Held.Seconds())}
		span.AddEvent("perkey.lease_lost", trace.WithAttributes(o.named(attributes, e.Name, e.Key)...))
	}
	o.Observer.OnLost(ctx, e)
}
