package delayqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

const testTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// traces notes what an observer is told, and what handlers get.
type traces struct {
	NopObserver
	mu  sync.Mutex
	all map[string][]string
}

func (o *traces) note(what, id, trace string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[id] = append(o.all[id], what+" "+trace)
}

func (o *traces) of(id string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[id]
}

func (o *traces) OnEnqueued(_ context.Context, e Enqueued) { o.note("enqueued", e.ID, e.Trace) }
func (o *traces) OnStarted(_ context.Context, e Started) {
	o.note("started", e.Message.ID, e.Message.Trace)
}

func (o *traces) OnSettled(_ context.Context, e Settled) {
	o.note("settled", e.Message.ID, e.Message.Trace)
}

// A trace travels with its message, also with one that is large, or tried again, and with one whose payload looks like a trace.
func TestTrace_TravelsWithTheMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, opts := range map[string][]Option{
			"plain": nil, "sealed": {WithEncryption(keyringOf(randomKey()))},
		} {
			seen := &traces{all: map[string][]string{}}
			q := hookedQueue(t, env, name, nil, append(opts, WithQueueObserver(seen))...)
			payloads := map[string][]byte{
				"small": []byte("small"), "large": bytes.Repeat([]byte("large"), 2000), "empty": {}, "odd": []byte(traceMagic + "\x05abc"),
				"without": []byte("without"), "odd-without": []byte(traceMagic + "\x03abcdef"),
			}
			trace := func(id string) string {
				if strings.HasSuffix(id, "without") {
					return ""
				}
				return testTrace
			}
			for id, payload := range payloads {
				enqueueJob(t, q, Job{ID: id, Key: id, Payload: payload, Trace: trace(id)})
				stored := of(q.Payload(t.Context(), id))(t)
				require.Equal(t, string(payload), string(stored))
			}
			w, err := NewWorker(q, lockerTest(t, q), func(_ context.Context, m Message) error {
				if m.Attempt == 1 {
					return errors.New("once more")
				}
				if string(m.Payload) != string(payloads[m.Key]) {
					seen.note("payload", m.ID, string(m.Payload))
				}
				seen.note("ran", m.ID, m.Trace)
				return nil
			}, WithRetryBackoff(time.Millisecond, time.Millisecond), WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			require.NoError(t, w.Start())
			for id := range payloads {
				want := []string{}
				for _, what := range []string{"enqueued", "started", "settled", "started", "ran", "settled"} {
					want = append(want, what+" "+trace(id))
				}
				redistest.Eventually(t, func() bool { return len(seen.of(id)) >= len(want) }, "it ran")
				require.ElementsMatch(t, want, seen.of(id), "of %q: the next attempt may begin before the end of the last one is told", id)
			}
			require.NoError(t, w.Stop(t.Context()))
		}
	})
}

// giver is an observer that has a span around each call.
type giver struct {
	traces
	give func(ctx context.Context) (context.Context, string)
}

type spanKey struct{}

func (o *giver) OnEnqueuing(ctx context.Context, e Enqueuing) (context.Context, string) {
	what := "enqueuing in " + e.Queue
	if e.Parked {
		what = "parking in " + e.Queue
	}
	o.note(what, e.Job.ID, e.Job.Trace)
	return o.give(ctx)
}

func (o *giver) OnEnqueued(ctx context.Context, e Enqueued) {
	span, _ := ctx.Value(spanKey{}).(string)
	o.note("enqueued"+span, e.ID, e.Trace)
}

// What an observer returns when a call to store a job begins takes the place of the call's ctx and of the job's trace.
func TestTrace_OfAnObserver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const given = "00-11111111111111111111111111111111-2222222222222222-00"
		seen := &giver{traces: traces{all: map[string][]string{}}}
		q := testQueue(t, env, WithQueueObserver(seen))
		locker := lockerTest(t, q)
		lease := of(locker.TryAcquire(t.Context(), "held"))(t)
		defer func() { _ = lease.Release(context.Background()) }()
		w, err := NewWorker(q, locker, func(_ context.Context, m Message) error {
			seen.note("ran", m.ID, m.Trace)
			return nil
		}, WithObserver(NopObserver{}))
		require.NoError(t, err)
		require.NoError(t, w.Start())
		defer func() { require.NoError(t, w.Stop(context.Background())) }()

		span := func(ctx context.Context) context.Context { return context.WithValue(ctx, spanKey{}, " in its span") }
		for name, c := range map[string]struct {
			give func(context.Context) (context.Context, string)
			want []string
		}{
			"both":    {func(ctx context.Context) (context.Context, string) { return span(ctx), given }, []string{"enqueued in its span " + given, "ran " + given}},
			"nothing": {func(context.Context) (context.Context, string) { return nil, "" }, []string{"enqueued " + testTrace, "ran " + testTrace}},
			"junk":    {func(ctx context.Context) (context.Context, string) { return ctx, "00-a-b-01" }, []string{"enqueued " + testTrace, "ran " + testTrace}},
		} {
			seen.give = c.give
			enqueueJob(t, q, Job{ID: name, Trace: testTrace})
			want := append([]string{"enqueuing in q " + testTrace}, c.want...)
			redistest.Eventually(t, func() bool { return len(seen.of(name)) == len(want) }, "it ran")
			require.ElementsMatch(t, want, seen.of(name), name)
		}

		park := func(trace string) []string {
			err := locker.Guard(Policy(q)).Do(t.Context(), core.Call{Key: "held", Trace: trace, Encode: func() ([]byte, error) { return nil, nil }},
				func(context.Context) error { return nil })
			deferred, _ := errors.AsType[*core.DeferredError](err)
			require.NotNil(t, deferred)
			return seen.of(deferred.Ticket.ID)
		}
		seen.give = func(ctx context.Context) (context.Context, string) { return span(ctx), given }
		require.Equal(t, []string{"parking in q " + testTrace, "enqueued in its span " + given}, park(testTrace))
		seen.give = func(ctx context.Context) (context.Context, string) { return ctx, "" }
		for _, trace := range []string{"", "00-a-b-01"} { // one that is not valid is left out: it may be a client's
			require.Equal(t, []string{"parking in q ", "enqueued "}, park(trace))
		}

		require.ErrorIs(t, errOf(q.Enqueue(t.Context(), Job{ID: "invalid", Trace: "00-a-b-01"})), ErrInvalidJob, "it hides no mistake of the caller")
	})
}

func TestOutcomeOf_IsWhatTheErrorSays(t *testing.T) {
	t.Parallel()
	oops := errors.New("oops")
	for _, c := range []struct {
		want Outcome
		err  error
	}{
		{OutcomeDone, nil},
		{OutcomeRetry, oops},
		{OutcomeRetry, RetryLater(core.ErrConflict, 0)},
		{OutcomeConflict, fmt.Errorf("of another key: %w", core.ErrConflict)},
		{OutcomeReturned, fmt.Errorf("not here: %w", HandBack(core.ErrConflict))},
		{OutcomeDead, fmt.Errorf("never: %w", SkipRetry(oops))},
	} {
		require.Equal(t, c.want, OutcomeOf(c.err), "%v", c.err)
	}
}

func TestTrace_IsATraceparent(t *testing.T) {
	t.Parallel()
	for _, trace := range []string{
		" " + testTrace[1:], testTrace[:54], testTrace + "0", testTrace + "-00", strings.ToUpper(testTrace), "ff" + testTrace[2:], testTrace[:54] + "g",
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", testTrace[:36] + strings.Repeat("0", 16) + "-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba90-b7-01",
	} {
		require.ErrorIs(t, Job{ID: "id", MaxAge: time.Minute, Trace: trace}.validate(1), ErrInvalidJob, trace)
	}
	for _, trace := range []string{"", testTrace, "cc" + testTrace[2:]} {
		require.NoError(t, Job{ID: "id", MaxAge: time.Minute, Trace: trace}.validate(1), trace)
	}
}

func FuzzTrace(f *testing.F) {
	f.Add("", []byte("payload"))
	f.Add(testTrace, []byte(traceMagic))
	f.Add("", []byte(traceMagic+"\xff"))
	f.Fuzz(func(t *testing.T, trace string, payload []byte) {
		if len(trace) > traceLength {
			return
		}
		gotTrace, got := splitTrace(withTrace(trace, payload))
		require.Equal(t, trace, gotTrace)
		require.True(t, bytes.Equal(payload, got))
		splitTrace(payload)
	})
}
