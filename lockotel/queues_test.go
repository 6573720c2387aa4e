package lockotel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/lockotel"
)

const clients = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// newQueue makes a queue that tells tr.
func newQueue(t testing.TB, env *redistest.Env, tr tracing, opts ...delayqueue.Option) *delayqueue.Queue {
	t.Helper()
	queue, err := delayqueue.New(env.Client(t), "ship", append([]delayqueue.Option{
		delayqueue.WithPrefix(env.Prefix), delayqueue.WithQueueObserver(lockotel.Queues(delayqueue.NopObserver{}, tr.option())),
	}, opts...)...)
	require.NoError(t, err)
	return queue
}

// work starts a worker that is stopped with the test.
func work(t testing.TB, tr tracing, queue *delayqueue.Queue, l *core.Locker, h delayqueue.Handler) {
	t.Helper()
	testbed.Work(t, queue, l, h, delayqueue.WithMiddleware(lockotel.Middleware("ship", tr.option())),
		delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
}

// named are the spans of a name that have ended.
func (tr tracing) named(name string) (spans []sdk.ReadOnlySpan) {
	for _, span := range tr.Ended() {
		if span.Name() == name {
			spans = append(spans, span)
		}
	}
	return spans
}

func requireMessaging(t testing.TB, span sdk.ReadOnlySpan, kind trace.SpanKind, operation, operationType, id string, size int) {
	t.Helper()
	require.Equal(t, kind, span.SpanKind())
	got := attributesOf(span)
	for name, want := range map[string]any{
		"messaging.system": "perkey", "messaging.destination.name": "ship", "messaging.operation.name": operation,
		"messaging.operation.type": operationType, "messaging.message.id": id, "messaging.message.body.size": int64(size),
	} {
		require.Equal(t, want, got[name], name)
	}
}

// A job that is enqueued, and a call that is parked, have a span in the caller's. Their runs are linked to it.
func TestQueues_ARunIsLinkedToTheSpanThatStoredIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		l := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix))
		stored := func(ctx context.Context, queue *delayqueue.Queue) (id string, err error) {
			_, err = queue.Enqueue(ctx, delayqueue.Job{ID: "one", Key: "free", Name: "ship", Payload: []byte("work")})
			return "one", err
		}
		parked := func(ctx context.Context, queue *delayqueue.Queue) (id string, err error) {
			lease, err := l.TryAcquire(t.Context(), "held")
			if err != nil {
				return "", err
			}
			err = l.Guard(delayqueue.Policy(queue)).Do(ctx, parkable("held"), nothing)
			if deferred, ok := errors.AsType[*core.DeferredError](err); ok {
				return deferred.Ticket.ID, lease.Release(t.Context())
			}
			return "", err
		}
		for operation, store := range map[string]func(context.Context, *delayqueue.Queue) (id string, err error){"enqueue": stored, "park": parked} {
			t.Run(operation, func(t *testing.T) {
				tr := newTracing()
				queue := newQueue(t, env, tr)
				ctx, request := tr.request(t.Context())
				id, err := store(ctx, queue)
				require.NoError(t, err)
				request.End()
				producer := tr.one(t, operation+" ship")
				requireMessaging(t, producer, trace.SpanKindProducer, operation, "send", id, 4)
				require.Equal(t, request.SpanContext().SpanID(), producer.Parent().SpanID())
				require.Equal(t, "stored", attributesOf(producer)["perkey.outcome"])
				require.Empty(t, producer.Links())
				require.NotContains(t, attributesOf(producer), "perkey.key")

				work(t, tr, queue, l, func(ctx context.Context, _ delayqueue.Message) error {
					handled(ctx, tr)
					return nil
				})
				redistest.Eventually(t, func() bool { return len(tr.named("run ship")) == 1 }, "it ran")
				consumer := tr.one(t, "run ship")
				requireMessaging(t, consumer, trace.SpanKindConsumer, "run", "process", id, 4)
				require.False(t, consumer.Parent().IsValid(), "a trace of its own")
				require.NotEqual(t, producer.SpanContext().TraceID(), consumer.SpanContext().TraceID())
				require.Len(t, consumer.Links(), 1)
				linked := consumer.Links()[0].SpanContext
				require.True(t, linked.Equal(producer.SpanContext().WithRemote(true)), "%v, want %v", linked, producer.SpanContext())
				require.Equal(t, consumer.SpanContext().SpanID(), tr.one(t, "handled").Parent().SpanID())
				require.Equal(t, codes.Unset, consumer.Status().Code)
				require.Equal(t, int64(1), attributesOf(consumer)["perkey.attempt"])
			})
		}
	})
}

func TestQueues_TheTraceThatTheCallerGave(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		tr := newTracing()
		queue := newQueue(t, env, tr)
		enqueue := func(ctx context.Context, given string) sdk.ReadOnlySpan {
			tr.Reset()
			_, err := queue.Enqueue(ctx, delayqueue.Job{Trace: given})
			require.NoError(t, err)
			return tr.one(t, "enqueue ship")
		}
		alone := enqueue(t.Context(), "")
		require.False(t, alone.Parent().IsValid())

		its := enqueue(t.Context(), clients)
		require.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", its.SpanContext().TraceID().String())
		require.Equal(t, "00f067aa0ba902b7", its.Parent().SpanID().String())
		require.Empty(t, its.Links())

		ctx, request := tr.request(t.Context())
		another := enqueue(ctx, clients)
		require.Equal(t, request.SpanContext().SpanID(), another.Parent().SpanID())
		require.Len(t, another.Links(), 1)
		require.Equal(t, "00f067aa0ba902b7", another.Links()[0].SpanContext.SpanID().String())

		same := enqueue(ctx, fmt.Sprintf("00-%s-00f067aa0ba902b7-01", request.SpanContext().TraceID()))
		require.Equal(t, request.SpanContext().SpanID(), same.Parent().SpanID())
		require.Empty(t, same.Links(), "it is the span's own trace")

		tr.Reset()
		_, err := queue.Enqueue(ctx, delayqueue.Job{Trace: "junk"})
		require.ErrorIs(t, err, delayqueue.ErrInvalidJob)
		require.Equal(t, codes.Error, tr.one(t, "enqueue ship").Status().Code)
	})
}

func TestQueues_EachEndOfACallToStoreAJob(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		tr := newTracing()
		queue := newQueue(t, env, tr, delayqueue.WithMaxDepthPerKey(1), delayqueue.WithMaxPayload(10))
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		late, end := context.WithTimeout(t.Context(), 0)
		defer end()
		dead := testbed.NewQueue(t, testbed.FragileClient(t, "127.0.0.1:1"), "ship", delayqueue.WithQueueObserver(lockotel.Queues(nil, tr.option())))
		for _, c := range []struct {
			ctx   context.Context
			queue *delayqueue.Queue
			job   delayqueue.Job
			kind  delayqueue.EnqueueKind
			want  codes.Code
		}{
			{t.Context(), queue, delayqueue.Job{ID: "a", Key: "ann"}, delayqueue.EnqueueStored, codes.Unset},
			{t.Context(), queue, delayqueue.Job{ID: "a", Key: "ann"}, delayqueue.EnqueueDuplicate, codes.Unset},
			{t.Context(), queue, delayqueue.Job{Key: "ann"}, delayqueue.EnqueueKeyFull, codes.Error},
			{t.Context(), queue, delayqueue.Job{Payload: make([]byte, 11)}, delayqueue.EnqueueTooLarge, codes.Error},
			{t.Context(), queue, delayqueue.Job{Delay: -1}, delayqueue.EnqueueError, codes.Error},
			{t.Context(), dead, delayqueue.Job{}, delayqueue.EnqueueUnavailable, codes.Error},
			{gone, queue, delayqueue.Job{}, delayqueue.EnqueueCancelled, codes.Unset},
			{late, queue, delayqueue.Job{}, delayqueue.EnqueueDeadline, codes.Error},
		} {
			tr.Reset()
			_, _ = c.queue.Enqueue(c.ctx, c.job)
			span := tr.one(t, "enqueue ship")
			require.Equal(t, string(c.kind), attributesOf(span)["perkey.outcome"])
			require.Equal(t, c.want, span.Status().Code, c.kind)
			require.NotContains(t, fmt.Sprint(span.Attributes(), span.Status(), span.Events()), "ann")
		}
	})
}

func TestMiddleware_EachEndOfAHandler(t *testing.T) {
	t.Parallel()
	oops := errors.New("oops")
	for _, c := range []struct {
		outcome delayqueue.Outcome
		want    codes.Code
		kind    string
		handler func() error
	}{
		{delayqueue.OutcomeDone, codes.Unset, "", func() error { return nil }},
		{delayqueue.OutcomeConflict, codes.Unset, "", func() error { return core.ErrConflict }},
		{delayqueue.OutcomeReturned, codes.Unset, "", func() error { return delayqueue.HandBack(oops) }},
		{delayqueue.OutcomeRetry, codes.Error, "retry", func() error { return oops }},
		{delayqueue.OutcomeRetry, codes.Error, "retry", func() error { return delayqueue.RetryLater(oops, 0) }},
		{delayqueue.OutcomeDead, codes.Error, "dead", func() error { return delayqueue.SkipRetry(oops) }},
		{delayqueue.OutcomeRetry, codes.Error, "panic", func() error { panic(oops) }},
		{delayqueue.OutcomeRetry, codes.Error, "panic", func() error { runtime.Goexit(); return nil }},
	} {
		for _, keys := range []bool{false, true} {
			tr, opts := newTracing(), []lockotel.Option(nil)
			if keys {
				opts = append(opts, lockotel.WithKeys())
			}
			run := lockotel.Middleware("ship", append(opts, tr.option())...)(func(context.Context, delayqueue.Message) error { return c.handler() })
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { _ = recover() }()
				_ = run(context.Background(), delayqueue.Message{ID: "id", Key: "ann", Attempt: 2, Trace: "junk"})
			})
			wg.Wait()
			span := tr.one(t, "run ship")
			got := attributesOf(span)
			require.Equal(t, string(c.outcome), got["perkey.outcome"])
			require.Equal(t, c.want, span.Status().Code, c.outcome)
			if c.kind == "" {
				require.NotContains(t, got, "error.type")
			} else {
				require.Equal(t, c.kind, got["error.type"])
			}
			require.Equal(t, int64(2), got["perkey.attempt"])
			require.Empty(t, span.Links(), "its trace is not valid")
			if keys {
				require.Equal(t, "ann", got["perkey.key"])
			} else {
				require.NotContains(t, got, "perkey.key")
				require.Empty(t, span.Status().Description)
			}
		}
	}
}

// A run whose span is not sampled has a trace nevertheless, so that the handler's spans are not sampled either.
func TestMiddleware_OfARunThatIsNotSampled(t *testing.T) {
	t.Parallel()
	tr := newTracing(sdk.WithSampler(sdk.NeverSample()))
	run := lockotel.Middleware("ship", tr.option())(func(ctx context.Context, m delayqueue.Message) error {
		require.Equal(t, "00-"+trace.SpanContextFromContext(ctx).TraceID().String()+"-"+trace.SpanContextFromContext(ctx).SpanID().String()+"-00", m.Trace)
		return nil
	})
	require.NoError(t, run(t.Context(), delayqueue.Message{Trace: clients}))
	require.Empty(t, tr.Started())
}

// Many jobs at once, each with the link of its own.
func TestQueues_ManyAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const jobs = 200
		tr := newTracing()
		queue := newQueue(t, env, tr)
		l := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix))
		work(t, tr, queue, l, func(context.Context, delayqueue.Message) error { return nil })
		var wg sync.WaitGroup
		for i := range jobs {
			wg.Go(func() {
				ctx, request := tr.request(t.Context())
				defer request.End()
				_, err := queue.Enqueue(ctx, delayqueue.Job{ID: fmt.Sprint(i), Key: fmt.Sprint("k", i%7)})
				if err != nil {
					t.Errorf("enqueue: %v", err)
				}
			})
		}
		wg.Wait()
		redistest.Eventually(t, func() bool { return len(tr.named("run ship")) >= jobs }, "all ran")
		producers := map[any]trace.SpanID{}
		for _, span := range tr.named("enqueue ship") {
			producers[attributesOf(span)["messaging.message.id"]] = span.SpanContext().SpanID()
		}
		require.Len(t, producers, jobs)
		for _, span := range tr.named("run ship") {
			require.Len(t, span.Links(), 1)
			require.Equal(t, producers[attributesOf(span)["messaging.message.id"]], span.Links()[0].SpanContext.SpanID())
		}
	})
}
