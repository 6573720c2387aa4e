package httplock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// teapot answers every problem in a way of its own.
func teapot(seen chan *httplock.Problem) httplock.ProblemHandler {
	return func(w http.ResponseWriter, _ *http.Request, p *httplock.Problem) {
		seen <- p
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, p.Error())
	}
}

func TestProblem_IsHandedToItsHandler(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env, core.WithTTL(time.Second))
		conflicts, others := make(chan *httplock.Problem, 1), make(chan *httplock.Problem, 1)
		onConflict := httplock.WithConflictHandler(teapot(conflicts))
		onError := httplock.WithErrorHandler(teapot(others))
		guard := b.Locker.Guard(core.RejectConflicts)
		bad := func(*http.Request) (string, error) { return "", httplock.BadKey(errors.New(testbed.Secret)) }
		lose := func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("X-Of-Handler", "stays")
			b.LoseLeases(t)
			<-r.Context().Done()
		}

		release := b.Hold(t)
		for _, h := range []http.Handler{
			guarded(guard, mustNotRun(t), onConflict, onError), guarded(guard, mustNotRun(t), onConflict), guarded(guard, mustNotRun(t), onError),
		} {
			resp := testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "")
			require.Equal(t, http.StatusTeapot, resp.Status)
			require.Equal(t, "httplock: status 409: Another request is being worked on", resp.Body)
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
			require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
			var p *httplock.Problem
			select {
			case p = <-conflicts:
			case p = <-others:
			}
			require.Equal(t, http.StatusConflict, p.Status)
			require.ErrorIs(t, p, core.ErrConflict)
			require.Positive(t, p.RetryAfter)
			require.Nil(t, p.Framework)
		}
		release()

		h := httplock.PerKey(guard, bad, onConflict, onError)(mustNotRun(t))
		require.Equal(t, http.StatusTeapot, testbed.Call(t, h, http.MethodPost, "/", "").Status)
		p := <-others
		require.Equal(t, http.StatusBadRequest, p.Status)
		require.ErrorContains(t, p.Err, testbed.Secret)
		require.NotContains(t, p.Error(), testbed.Secret)
		require.Zero(t, p.RetryAfter)
		testbed.RequireProblem(t, testbed.Call(t, httplock.PerKey(guard, bad, onConflict)(mustNotRun(t)), http.MethodPost, "/", ""),
			http.StatusBadRequest, "bad-key", false)

		resp := testbed.Call(t, guarded(guard, lose, onConflict, onError), http.MethodPost, testbed.OrderPath, "")
		require.Equal(t, http.StatusTeapot, resp.Status)
		require.NotContains(t, resp.Header, "Content-Length", "that was of the handler's response")
		require.Equal(t, "stays", resp.Header.Get("X-Of-Handler"))
		p = <-others
		require.Equal(t, http.StatusInternalServerError, p.Status)
		require.ErrorIs(t, p, core.ErrLeaseLost)
		b.RequireFree(t)
	})
}

func TestProblem_HandlersThatWriteNothing(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	silent := func(w http.ResponseWriter, _ *http.Request, _ *httplock.Problem) { w.Header().Set("X-Seen", "1") }
	resp := testbed.Call(t, guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithErrorHandler(silent)), http.MethodPost, testbed.OrderPath, "")
	testbed.RequireProblem(t, resp, http.StatusConflict, "conflict", true)
	require.Equal(t, "1", resp.Header.Get("X-Seen"))

	partly := func(w http.ResponseWriter, r *http.Request, p *httplock.Problem) {
		if p.Status == http.StatusConflict {
			p.Write(w, r)
		}
	}
	resp = testbed.Call(t, guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), httplock.WithErrorHandler(partly)), http.MethodPost, testbed.OrderPath, "")
	testbed.RequireProblem(t, resp, http.StatusConflict, "conflict", true)
}

func TestReceipts_AreNoProblem(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	never := httplock.WithErrorHandler(func(http.ResponseWriter, *http.Request, *httplock.Problem) { t.Error("called") })
	resp := testbed.Call(t, guarded(b.Locker.Guard(&testbed.Parking{}), mustNotRun(t), never), http.MethodPost, testbed.OrderPath, "")
	require.Equal(t, http.StatusAccepted, resp.Status)
}

func TestProblem_AdaptersCanTakeTheProblem(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	m := newMiddleware(t, b.Locker.Guard(core.RejectConflicts))
	var problem *httplock.Problem
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tracked, status := httplock.Track(w, r)
		written := func() bool { return status() != 0 }
		ran := m.Serve(httplock.Exchange{
			Writer: tracked, Request: r, Written: written, Framework: "mine",
			Key:     func() (string, error) { return testbed.OrderKey, nil },
			Next:    func(*http.Request) { t.Error("it ran") },
			Problem: func(p *httplock.Problem) { problem = p },
		})
		assert.False(t, ran)
		assert.False(t, written())
		doc, err := json.Marshal(problem)
		assert.NoError(t, err)
		tracked.WriteHeader(problem.StatusCode())
		_, _ = tracked.Write(doc)
		assert.True(t, written())
	})
	resp := testbed.Call(t, h, http.MethodPost, "/", "")
	require.Equal(t, "mine", problem.Framework)
	require.Equal(t, http.StatusConflict, resp.Status)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Contains(t, resp.Body, `problems.md#conflict"`)
	require.NotContains(t, resp.Body, testbed.Secret)

	ran := false
	m.Serve(httplock.Exchange{Request: testbed.Request(t, http.MethodPost, "/", ""), Skip: func() bool { return true }, Next: func(*http.Request) { ran = true }})
	require.True(t, ran, "the adapter lets it pass")
}

func TestResponse_RetryAfterFollowsTheHoldersLease(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t))

	short, err := b.Rival.TryAcquire(t.Context(), testbed.OrderKey, core.FixedLease(900*time.Millisecond))
	require.NoError(t, err)
	resp := testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "")
	if resp.Status == http.StatusConflict { // a machine that stood still for 0.9 s has no conflict
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
	}
	_ = short.Release(t.Context())

	long, err := b.Rival.TryAcquire(t.Context(), testbed.OrderKey, core.FixedLease(time.Hour))
	require.NoError(t, err)
	require.NoError(t, long.Extend(t.Context(), time.Hour))
	seen := map[float64]bool{}
	for range 20 {
		resp := testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "")
		var doc map[string]any
		require.NoError(t, json.Unmarshal([]byte(resp.Body), &doc))
		ms := doc["retry_after_ms"].(float64)
		require.GreaterOrEqual(t, ms, 24000.0, "from the lease")
		require.LessOrEqual(t, ms, 30000.0, "capped")
		seen[ms] = true
	}
	require.Greater(t, len(seen), 1, "jittered")
	require.NoError(t, long.Release(t.Context()))
}

func TestResponse_ParkedRequestIsAnsweredWith202(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	guard := b.Locker.Guard(&testbed.Parking{})
	resp := testbed.Call(t, guarded(guard, mustNotRun(t), httplock.WithStatusPath("/tickets/")), http.MethodPost, testbed.OrderPath, "{}")
	require.Equal(t, "/tickets/"+testbed.TicketID, testbed.RequireParked(t, resp))
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	require.JSONEq(t, `{"id":"`+testbed.TicketID+`","state":"queued","expires_at":"2027-01-15T08:00:00.123Z"}`, resp.Body)

	resp = testbed.Call(t, guarded(guard, mustNotRun(t)), http.MethodPost, testbed.OrderPath, "{}")
	require.Equal(t, http.StatusAccepted, resp.Status)
	require.NotContains(t, resp.Header, "Location", "off until mounted")
	require.NotContains(t, resp.Header, "Link")
}

func TestPolicy_ErrorsHaveTheirStatus(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	for name, test := range map[string]struct {
		err    error
		status int
		kind   string
		retry  bool
	}{
		"queue full for the key":    {delayqueue.ErrKeyFull, http.StatusTooManyRequests, "key-queue-full", true},
		"queue full for the client": {delayqueue.ErrPrincipalFull, http.StatusTooManyRequests, "principal-queue-full", true},
		"queue full":                {delayqueue.ErrQueueFull, http.StatusServiceUnavailable, "queue-full", true},
		"payload over the queue's":  {delayqueue.ErrPayloadTooLarge, http.StatusRequestEntityTooLarge, "body-too-large", false},
		"redis down":                {core.ErrUnavailable, http.StatusServiceUnavailable, "unavailable", true},
		"redis down, by time-out":   {fmt.Errorf("%w: %w", core.ErrUnavailable, context.DeadlineExceeded), http.StatusServiceUnavailable, "unavailable", true},
		"the deferral of another":   {&core.DeferredError{}, http.StatusInternalServerError, "internal", false},
		"both":                      {errors.Join(&core.DeferredError{}, &core.ConflictError{}), http.StatusConflict, "conflict", true},
		"closed":                    {core.ErrClosed, http.StatusServiceUnavailable, "unavailable", true},
		"anything else":             {errors.New(testbed.OrderKey), http.StatusInternalServerError, "internal", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := guarded(b.Locker.Guard(testbed.Failing{Err: fmt.Errorf("wrapped: %w", test.err)}), mustNotRun(t))
			testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, ""), test.status, test.kind, test.retry)
		})
	}
}

func TestResponse_RequestsThatCannotBeReplayedAreRefusedAsConflicts(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	p := &testbed.Parking{}
	handler := httplock.PerKey(b.Locker.Guard(p), func(*http.Request) (string, error) { return testbed.OrderKey, nil },
		httplock.WithLockedSafeMethods())(mustNotRun(t))

	upgrade := testbed.Request(t, http.MethodGet, "/ws", "")
	upgrade.Header.Set("Connection", "Upgrade")
	upgrade.Header.Set("Upgrade", "websocket")
	trailers := testbed.Request(t, http.MethodPost, "/", "x")
	trailers.Trailer = http.Header{"X-Checksum": nil}
	connect := testbed.Request(t, http.MethodConnect, "example.com:443", "")
	asterisk := testbed.Request(t, http.MethodPost, "/", "")
	asterisk.RequestURI, asterisk.URL.Path = "*", "*"
	for name, r := range map[string]*http.Request{"upgrade": upgrade, "trailers": trailers, "connect": connect, "asterisk": asterisk} {
		t.Run(name, func(t *testing.T) {
			testbed.RequireProblem(t, testbed.Do(handler, r), http.StatusConflict, "conflict", true)
		})
	}
	require.Empty(t, p.Parked())

	t.Run("trailers that were not declared", func(t *testing.T) {
		r := testbed.Request(t, http.MethodPost, "/", "")
		r.Body = readerThat(func() { r.Trailer = http.Header{"X-Late": {"1"}} })
		testbed.RequireProblem(t, testbed.Do(handler, r), http.StatusConflict, "conflict", true)
		require.Empty(t, p.Parked())
	})
}

func TestResponse_AStatusAloneIsAResponseThatWasBegun(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t), core.WithTTL(time.Second))
	resp := testbed.Call(t, guarded(b.Locker.Guard(core.RejectConflicts), func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		b.LoseLeases(t)
		<-r.Context().Done()
	}), http.MethodPost, testbed.OrderPath, "")
	require.Equal(t, http.StatusCreated, resp.Status)
	require.Empty(t, resp.Body)
}

// readerThat is an empty body that does something when it is read.
type readerThat func()

func (f readerThat) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func (readerThat) Close() error { return nil }

// A client that is refused by a quick route does not wait for the end of a lease, and one that is refused by a route that keeps its keys does.
func TestRetryAfter_FollowsHowLongTheRoutesRequestsHoldTheirKeys(t *testing.T) {
	for name, test := range map[string]struct {
		opts        []core.AcquireOption
		least, most float64
	}{
		"quick handler": {nil, 800, 1000},
		"MinHold":       {[]core.AcquireOption{core.MinHold(5 * time.Second)}, 4000, 5000},
	} {
		t.Run(name, func(t *testing.T) {
			b := testbed.New(t, redistest.Embedded(t))
			h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts, test.opts...), httplock.Query("order:", "id"))(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
			post := func(order string) testbed.Answer { return testbed.Call(t, h, http.MethodPost, "/?id="+order, "") }
			held, err := b.Rival.TryAcquire(t.Context(), "order:7", core.FixedLease(time.Hour))
			require.NoError(t, err)
			wait := func() float64 {
				refused := post("7")
				require.Equal(t, http.StatusConflict, refused.Status)
				var problem struct {
					RetryAfter float64 `json:"retry_after_ms"`
				}
				require.NoError(t, json.Unmarshal([]byte(refused.Body), &problem))
				return problem.RetryAfter
			}
			require.GreaterOrEqual(t, wait(), 8000.0, "nothing is known yet but the lease")
			require.Equal(t, http.StatusNoContent, post("8").Status)
			require.GreaterOrEqual(t, wait(), test.least)
			require.LessOrEqual(t, wait(), test.most)
			require.NoError(t, held.Release(t.Context()))
		})
	}
}
