package lockotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Queues returns an observer for queues, [delayqueue.WithQueueObserver], that makes a PRODUCER span around each call to
// store a job, parked or enqueued, and then passes events to next. The job's Trace becomes the span's context, for
// [Middleware] to link to; a Trace that the caller gave is the span's parent if the ctx has no span; otherwise it is
// linked, unless it belongs to the same trace. A nil next is [delayqueue.DefaultObserver]: warnings are logged as
// without an observer.
func Queues(next delayqueue.Observer, opts ...Option) delayqueue.Observer {
	if nilcheck.IsNil(next) {
		next = delayqueue.DefaultObserver()
	}
	return &queues{next, configure(opts)}
}

type queues struct {
	delayqueue.Observer
	options
}

type producerKey struct{}

func (o *queues) OnEnqueuing(ctx context.Context, e delayqueue.Enqueuing) (context.Context, string) {
	operation := "enqueue"
	if e.Parked {
		operation = "park"
	}
	opts := make([]trace.SpanStartOption, 0, 3)
	opts = append(opts, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		o.messaging(e.Queue, operation, "send", e.Job.ID, len(e.Job.Payload), e.Job.Name, e.Job.Key)...))
	parent := ctx
	if given := spanContextOf(e.Job.Trace); given.IsValid() {
		switch current := trace.SpanContextFromContext(ctx); {
		case !current.IsValid():
			parent = trace.ContextWithRemoteSpanContext(ctx, given)
		case given.TraceID() != current.TraceID():
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: given}))
		}
	}
	ctx, span := o.tracer.Start(parent, operation+" "+e.Queue, opts...)
	if stored := traceparent(ctx); stored != "" {
		e.Job.Trace = stored
	}
	return o.Observer.OnEnqueuing(context.WithValue(ctx, producerKey{}, span), e)
}

func (o *queues) OnEnqueued(ctx context.Context, e delayqueue.Enqueued) {
	if span, _ := ctx.Value(producerKey{}).(trace.Span); span != nil {
		span.SetAttributes(outcomeAttribute.String(string(e.Kind)))
		switch e.Kind {
		case delayqueue.EnqueueStored, delayqueue.EnqueueDuplicate, delayqueue.EnqueueCancelled:
		default:
			o.failed(span, string(e.Kind), e.Err)
		}
		span.End()
	}
	o.Observer.OnEnqueued(ctx, e)
}

// Middleware returns middleware, for [delayqueue.WithMiddleware], that wraps a Worker's handler in
// a CONSUMER span with a link to the span that stored the message: give it first, so that it is the
// outermost. queue is the queue's name. The handler's ctx has the span, and so does its message's
// Trace.
//
// The span is a new trace, unless ctx has a span. Its outcome is [delayqueue.OutcomeOf] of the
// handler's error: a conflict and HandBack are not errors.
func Middleware(queue string, opts ...Option) delayqueue.Middleware {
	o := configure(opts)
	return func(next delayqueue.Handler) delayqueue.Handler {
		return func(ctx context.Context, m delayqueue.Message) error { return o.run(ctx, queue, m, next) }
	}
}

func (o *options) run(ctx context.Context, queue string, m delayqueue.Message, next delayqueue.Handler) (err error) {
	opts := make([]trace.SpanStartOption, 0, 3)
	opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(append(
		o.messaging(queue, "run", "process", m.ID, len(m.Payload), m.Name, m.Key), attemptAttribute.Int(m.Attempt))...))
	if stored := spanContextOf(m.Trace); stored.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: stored}))
	}
	ctx, span := o.tracer.Start(ctx, "run "+queue, opts...)
	if current := traceparent(ctx); current != "" {
		m.Trace = current
	}
	returned := false
	defer func() {
		outcome := delayqueue.OutcomeOf(err)
		switch {
		case !returned:
			outcome = delayqueue.OutcomeRetry
			o.failed(span, "panic", nil)
		case outcome == delayqueue.OutcomeRetry, outcome == delayqueue.OutcomeDead:
			o.failed(span, string(outcome), err)
		}
		span.SetAttributes(outcomeAttribute.String(string(outcome)))
		span.End()
	}()
	err = next(ctx, m)
	returned = true
	return err
}

// messaging are the attributes of a span of a queue.
func (o *options) messaging(queue, operation, kind, id string, size int, name, key string) []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 9)
	attributes = append(attributes, attribute.String("messaging.system", "perkey"), attribute.String("messaging.destination.name", queue),
		attribute.String("messaging.operation.name", operation), attribute.String("messaging.operation.type", kind),
		attribute.String("messaging.message.id", id), attribute.Int("messaging.message.body.size", size))
	return o.named(attributes, name, key)
}

const traceparentHeader = "traceparent"

// traceparent is that of the span in ctx, or empty.
func traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparentHeader]
}

// spanContextOf is what a traceparent says. It is not valid if that is not.
func spanContextOf(text string) trace.SpanContext {
	if text == "" {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparentHeader: text})
	return trace.SpanContextFromContext(ctx)
}
