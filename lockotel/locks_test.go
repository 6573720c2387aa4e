package lockotel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/lockotel"
	"github.com/perkey-go/perkey/retry"
)

// tracing records the spans of one test.
type tracing struct {
	*sdk.TracerProvider
	*tracetest.SpanRecorder
	skipped *int // of the spans that ended
}

func newTracing(opts ...sdk.TracerProviderOption) tracing {
	recorder := tracetest.NewSpanRecorder()
	return tracing{sdk.NewTracerProvider(append(opts, sdk.WithSpanProcessor(recorder))...), recorder, new(int)}
}

// Reset forgets the spans that ended until now.
func (tr tracing) Reset() { *tr.skipped = len(tr.SpanRecorder.Ended()) }

func (tr tracing) Ended() []sdk.ReadOnlySpan { return tr.SpanRecorder.Ended()[*tr.skipped:] }

func (tr tracing) option() lockotel.Option { return lockotel.WithTracerProvider(tr.TracerProvider) }

// request begins the span of a request.
func (tr tracing) request(ctx context.Context) (context.Context, trace.Span) {
	return tr.Tracer("test").Start(ctx, "request")
}

// ours are the spans that lockotel has ended.
func (tr tracing) ours() (spans []sdk.ReadOnlySpan) {
	for _, span := range tr.Ended() {
		if span.InstrumentationScope().Name == lockotel.ScopeName {
			spans = append(spans, span)
		}
	}
	return spans
}

func (tr tracing) one(t testing.TB, name string) sdk.ReadOnlySpan {
	t.Helper()
	var found []sdk.ReadOnlySpan
	for _, span := range tr.Ended() {
		if span.Name() == name {
			found = append(found, span)
		}
	}
	require.Len(t, found, 1, name)
	return found[0]
}

func attributesOf(span sdk.ReadOnlySpan) map[string]any {
	all := map[string]any{}
	for _, a := range span.Attributes() {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}

func nothing(context.Context) error { return nil }

// parkable is a call that can be stored.
func parkable(key string) core.Call {
	return core.Call{Key: key, Name: "ship", Encode: func() ([]byte, error) { return []byte("work"), nil }}
}

func TestLocks_NothingOfCallsThatGetTheirKeyAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		tr := newTracing()
		l := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix), core.WithObserver(lockotel.Locks(nil, tr.option(), lockotel.WithRootSpans())))
		ctx, request := tr.request(t.Context())
		require.NoError(t, l.Do(ctx, "k", func(ctx context.Context) error {
			return l.Do(ctx, "k", nothing)
		}))
		set, err := l.AcquireAll(ctx, []string{"a", "b"})
		require.NoError(t, err)
		require.NoError(t, set.Release(ctx))
		request.End()
		require.Empty(t, tr.ours())
	})
}

func TestLocks_WhatHasASpan(t *testing.T) {
	t.Parallel()
	shedFree := fmt.Errorf("core: too many wait: %w", core.ErrUnavailable)
	for name, c := range map[string]struct {
		e     core.Outcome
		spans int
		want  codes.Code
	}{
		"waited":                 {core.Outcome{Kind: core.OutcomeAcquired, DidWait: true, Waited: time.Millisecond, Attempts: 2, Waiting: 1}, 1, codes.Unset},
		"waited for an instant":  {core.Outcome{Kind: core.OutcomeAcquired, DidWait: true, Waited: time.Millisecond - 1}, 0, codes.Unset},
		"a slow Redis":           {core.Outcome{Kind: core.OutcomeAcquired, Waited: time.Second}, 0, codes.Unset},
		"refused at once":        {core.Outcome{Kind: core.OutcomeConflict, Mode: core.ModeExclusive, Name: "ship", Key: "k"}, 1, codes.Unset},
		"deferred":               {core.Outcome{Kind: core.OutcomeDeferred, Waited: time.Second}, 1, codes.Unset},
		"cancelled":              {core.Outcome{Kind: core.OutcomeCancelled, Cause: context.Canceled}, 1, codes.Unset},
		"too late":               {core.Outcome{Kind: core.OutcomeDeadline, Cause: context.DeadlineExceeded}, 1, codes.Unset},
		"without a Redis":        {core.Outcome{Kind: core.OutcomeUnavailable, Cause: core.ErrUnavailable}, 1, codes.Error},
		"closed":                 {core.Outcome{Kind: core.OutcomeClosed, Cause: core.ErrClosed}, 1, codes.Error},
		"an error":               {core.Outcome{Kind: core.OutcomeError, Cause: errors.New("the key k is odd")}, 1, codes.Error},
		"shed though it is free": {core.Outcome{Kind: core.OutcomeShed, Cause: shedFree}, 1, codes.Error},
		"shed":                   {core.Outcome{Kind: core.OutcomeShed, Cause: &core.ConflictError{}}, 1, codes.Unset},
	} {
		tr := newTracing()
		ctx, request := tr.request(t.Context())
		lockotel.Locks(nil, tr.option()).OnOutcome(ctx, c.e)
		require.Len(t, tr.ours(), c.spans, name)
		for _, span := range tr.ours() {
			require.Equal(t, "perkey.acquire", span.Name())
			require.Equal(t, request.SpanContext().SpanID(), span.Parent().SpanID(), name)
			require.Equal(t, request.SpanContext().TraceID(), span.SpanContext().TraceID(), name)
			require.Equal(t, trace.SpanKindInternal, span.SpanKind())
			require.Equal(t, c.e.Waited, span.EndTime().Sub(span.StartTime()), name)
			require.Equal(t, c.want, span.Status().Code, name)
			require.Empty(t, span.Status().Description, "it may name the key")
			want := map[string]any{
				"perkey.outcome": string(c.e.Kind), "perkey.waited": c.e.Waited.Seconds(), "perkey.attempts": int64(c.e.Attempts), "perkey.waiting": int64(c.e.Waiting),
			}
			if c.want == codes.Error {
				want["error.type"] = string(c.e.Kind)
			}
			if c.e.Name != "" {
				want["perkey.name"], want["perkey.mode"] = c.e.Name, string(c.e.Mode)
			}
			require.Equal(t, want, attributesOf(span), name)
		}
	}
}

// A key, and an error's text, which may name it, are told only if that is wanted.
func TestLocks_KeysAreToldIfTheyAreWanted(t *testing.T) {
	t.Parallel()
	e := core.Outcome{Kind: core.OutcomeError, Key: "ann", Keys: []string{"ann", "bob"}, Cause: errors.New("the key ann is odd")}
	for _, wanted := range []bool{false, true} {
		tr, opts := newTracing(), []lockotel.Option(nil)
		if wanted {
			opts = append(opts, lockotel.WithKeys())
		}
		observer := lockotel.Locks(core.NopObserver{}, append(opts, tr.option())...)
		ctx, request := tr.request(t.Context())
		observer.OnOutcome(ctx, e)
		observer.OnLost(ctx, core.Lost{Key: "ann", Kind: core.LossExpired, Cause: errors.New("ann")})
		request.End()
		if text := fmt.Sprintf("%+v", tracetest.SpanStubsFromReadOnlySpans(tr.Ended())); !wanted {
			require.NotContains(t, text, "ann")
			continue
		}
		span := tr.one(t, "perkey.acquire")
		require.Equal(t, "the key ann is odd", span.Status().Description)
		require.Equal(t, "ann", attributesOf(span)["perkey.key"])
		require.Equal(t, []string{"ann", "bob"}, attributesOf(span)["perkey.keys"])
	}
}

func TestLocks_RootSpansIfTheyAreWanted(t *testing.T) {
	t.Parallel()
	tr := newTracing()
	lockotel.Locks(nil, tr.option()).OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeConflict})
	require.Empty(t, tr.Started())
	lockotel.Locks(nil, tr.option(), lockotel.WithRootSpans()).OnOutcome(t.Context(), core.Outcome{Kind: core.OutcomeConflict})
	require.False(t, tr.one(t, "perkey.acquire").Parent().IsValid())
}

func TestLocks_OfARequestThatIsNotSampled(t *testing.T) {
	asked := &countingSampler{Sampler: sdk.NeverSample()}
	tr := newTracing(sdk.WithSampler(asked))
	ctx, request := tr.request(t.Context())
	require.False(t, request.SpanContext().IsSampled())
	asked.times = 0
	waited := core.Outcome{Kind: core.OutcomeAcquired, DidWait: true, Waited: time.Second}
	for _, opts := range [][]lockotel.Option{{tr.option()}, {tr.option(), lockotel.WithRootSpans()}} {
		observer := lockotel.Locks(core.NopObserver{}, opts...)
		require.Zero(t, testing.AllocsPerRun(100, func() { observer.OnOutcome(ctx, waited) }))
		require.Zero(t, asked.times, "the trace is not sampled")
	}
	require.Empty(t, tr.Started())
}

// A span that is recorded and not sampled has children, if the sampler wants them.
func TestLocks_OfARequestThatIsRecorded(t *testing.T) {
	t.Parallel()
	asked := &countingSampler{Sampler: recordOnly{}}
	tr := newTracing(sdk.WithSampler(asked))
	ctx, request := tr.request(t.Context())
	require.True(t, request.IsRecording() && !request.SpanContext().IsSampled())
	lockotel.Locks(core.NopObserver{}, tr.option()).OnOutcome(ctx, core.Outcome{Kind: core.OutcomeConflict})
	require.Equal(t, 2, asked.times)
	require.Len(t, tr.ours(), 1)
}

type countingSampler struct {
	sdk.Sampler
	times int
}

func (s *countingSampler) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	s.times++
	return s.Sampler.ShouldSample(p)
}

type recordOnly struct{}

func (recordOnly) ShouldSample(sdk.SamplingParameters) sdk.SamplingResult {
	return sdk.SamplingResult{Decision: sdk.RecordOnly}
}
func (recordOnly) Description() string { return "recordOnly" }

// nilProvider is a provider that was never made.
type nilProvider struct{ trace.TracerProvider }

// Without a provider it is the global one, which has none here: nothing is told, and nothing breaks.
func TestLocks_NoProvider(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, provider := range []trace.TracerProvider{nil, (*nilProvider)(nil)} {
			opts := []lockotel.Option{nil, lockotel.WithTracerProvider(provider), lockotel.WithRootSpans()}
			l := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix), core.WithObserver(lockotel.Locks(nil, opts...)))
			queue, err := delayqueue.New(env.Client(t), "ship", delayqueue.WithPrefix(env.Prefix),
				delayqueue.WithReservationWindow(0), delayqueue.WithQueueObserver(lockotel.Queues(nil, opts...)))
			require.NoError(t, err)
			lease := testbed.Take(t, l, "k")
			_, err = l.TryAcquire(t.Context(), "k")
			require.ErrorIs(t, err, core.ErrConflict)
			err = l.Guard(delayqueue.Policy(queue)).Do(t.Context(), parkable("k"), nothing)
			require.ErrorIs(t, err, core.ErrDeferred)
			require.NoError(t, lease.Release(t.Context()))

			const given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
			seen := ""
			run := lockotel.Middleware("ship", opts...)(func(_ context.Context, m delayqueue.Message) error {
				seen = m.Trace
				return nil
			})
			require.NoError(t, run(t.Context(), delayqueue.Message{Trace: given}))
			require.Equal(t, given, seen, "a message keeps its trace")
		}
	})
}

// counting counts what it is told, as an observer after lockotel's.
type counting struct {
	core.NopObserver
	mu       sync.Mutex
	calls    int
	outcomes map[string]int // of those that a span is due for
}

func (o *counting) OnOutcome(_ context.Context, e core.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if e.Kind != core.OutcomeAcquired || e.DidWait && e.Waited >= time.Millisecond {
		o.outcomes[string(e.Kind)]++
	}
}

// Many callers, half of them in traces that are sampled: each of their spans is in the trace of its caller.
func TestLocks_ManyCallersAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const callers, each = 64, 20
		tr, next := newTracing(), &counting{outcomes: map[string]int{}}
		l := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix), core.WithObserver(lockotel.Locks(next, tr.option())))
		wait := l.Guard(retry.Policy{MaxWait: 50 * time.Millisecond})
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for i := range each {
					ctx, request := tr.request(t.Context())
					key := fmt.Sprint("k", rand.IntN(4))
					if i%2 == 0 {
						_ = wait.Do(ctx, core.Call{Key: key, Name: request.SpanContext().TraceID().String()}, func(context.Context) error {
							time.Sleep(time.Millisecond)
							return nil
						})
					} else if lease, err := l.TryAcquire(ctx, key, core.Named(request.SpanContext().TraceID().String(), "")); err == nil {
						_ = lease.Release(ctx)
					}
					request.End()
				}
			})
		}
		wg.Wait()
		require.Equal(t, callers*each, next.calls, "each is told to the next observer")
		require.NotEmpty(t, next.outcomes[string(core.OutcomeAcquired)])
		got := map[string]int{}
		for _, span := range tr.ours() {
			all := attributesOf(span)
			got[all["perkey.outcome"].(string)]++ //nolint:forcetypeassert // a string, or the test fails
			require.Equal(t, all["perkey.name"], span.SpanContext().TraceID().String())
			require.True(t, span.Parent().IsValid())
		}
		require.Equal(t, next.outcomes, got)
	})
}

// A lease that is lost is an event of its holder's span.
func TestLocks_ALostLeaseIsAnEvent(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		tr := newTracing()
		l := testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix), core.WithObserver(lockotel.Locks(core.NopObserver{}, tr.option())))
		ctx, request := tr.request(t.Context())
		require.ErrorIs(t, l.Do(ctx, "k", func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}, core.Named("pay", ""), core.MaxHold(time.Second)), core.ErrLeaseLost)
		request.End()
		events := tr.one(t, "request").Events()
		require.Len(t, events, 1)
		require.Equal(t, "perkey.lease_lost", events[0].Name)
		require.Contains(t, events[0].Attributes, attribute.String("perkey.name", "pay"))
	})
}

// The observer's other events are the next one's.
func TestLocks_TellsTheNext(t *testing.T) {
	t.Parallel()
	var next told
	o, ctx := lockotel.Locks(&next), context.Background()
	o.OnOutcome(ctx, core.Outcome{})
	o.OnWaiting(ctx, core.Waiting{})
	o.OnReleased(ctx, core.Released{})
	o.OnLost(ctx, core.Lost{})
	o.OnUnclaimed(ctx, core.Unclaimed{})
	o.OnRenewed(ctx, core.Renewed{})
	o.OnWarning(ctx, core.Warning{})
	require.Equal(t, told(7), next)
}

type told int

func (n *told) OnOutcome(context.Context, core.Outcome)     { *n++ }
func (n *told) OnWaiting(context.Context, core.Waiting)     { *n++ }
func (n *told) OnReleased(context.Context, core.Released)   { *n++ }
func (n *told) OnLost(context.Context, core.Lost)           { *n++ }
func (n *told) OnUnclaimed(context.Context, core.Unclaimed) { *n++ }
func (n *told) OnRenewed(context.Context, core.Renewed)     { *n++ }
func (n *told) OnWarning(context.Context, core.Warning)     { *n++ }

func TestMain(m *testing.M) {
	logging.Disable() // some tests have a Redis that is not there
	redistest.Main(m)
}
