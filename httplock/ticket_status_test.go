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

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
