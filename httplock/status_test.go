package httplock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

func TestRetryAfterFollowsTheHoldersLease(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	h := guarded(core.NewGuard(b.locker, nil), mustNotRun(t))

	short, err := b.rival.TryAcquire(t.Context(), "order:"+secret, core.FixedLease(900*time.Millisecond))
	require.NoError(t, err)
	resp := call(t, h, http.MethodPost, ordersPath, "")
	if resp.status == http.StatusConflict { // a machine that stood still for 0.9 s has no conflict
		require.Equal(t, "1", resp.header.Get("Retry-After"))
	}
	_ = short.Release(t.Context())

	long, err := b.rival.TryAcquire(t.Context(), "order:"+secret, core.FixedLease(time.Hour))
	require.NoError(t, err)
	require.NoError(t, long.Extend(t.Context(), time.Hour))
	seen := map[float64]bool{}
	for range 20 {
		resp := call(t, h, http.MethodPost, ordersPath, "")
		var doc map[string]any
		require.NoError(t, json.Unmarshal([]byte(resp.body), &doc))
		ms := doc["retry_after_ms"].(float64)
		require.GreaterOrEqual(t, ms, 24000.0, "from the lease")
		require.LessOrEqual(t, ms, 30000.0, "capped")
		seen[ms] = true
	}
	require.Greater(t, len(seen), 1, "jittered")
	require.NoError(t, long.Release(t.Context()))
}

func TestParkedRequestIsAnsweredWith202(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t)
		p := &parking{}

		resp := call(t, guarded(core.NewGuard(b.locker, p), mustNotRun(t), httplock.WithStatusPath("/tickets/")),
			http.MethodPost, ordersPath, "{}")
		content := resp.body
		require.Equal(t, http.StatusAccepted, resp.status)
		require.Equal(t, "application/json", resp.header.Get("Content-Type"))
		require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
		require.Equal(t, "1", resp.header.Get("Retry-After"))
		require.Equal(t, "/tickets/"+ticketID, resp.header.Get("Location"))
		require.Equal(t, "</tickets/"+ticketID+`>; rel="status"`, resp.header.Get("Link"))
		require.JSONEq(t, `{"id":"`+ticketID+`","state":"queued","expires_at":"2027-01-15T08:00:00.123Z"}`, content)
		requireNoSecret(t, resp, content)
		require.Len(t, p.parked(), 1)

		resp = call(t, guarded(core.NewGuard(b.locker, p), mustNotRun(t)), http.MethodPost, ordersPath, "{}")
		require.Equal(t, http.StatusAccepted, resp.status)
		require.NotContains(t, resp.header, "Location", "off until mounted")
		require.NotContains(t, resp.header, "Link")
	})
}

func TestParkedRequestSaysThatThePreferenceWasApplied(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	h := guarded(core.NewGuard(b.locker, &parking{}), mustNotRun(t))
	for prefer, applied := range map[string]string{
		"respond-async": "respond-async", "wait=5, Respond-Async": "respond-async", "wait=5": "", "respond-async-not": "", "": "",
	} {
		r := httptest.NewRequest(http.MethodPost, ordersPath, strings.NewReader("{}"))
		r.Header.Set("Prefer", prefer)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, http.StatusAccepted, w.Code)
		require.Equal(t, applied, w.Header().Get("Preference-Applied"), prefer)
	}
}

func TestPolicyErrorsHaveTheirStatus(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	for name, test := range map[string]struct {
		err    error
		status int
		kind   string
		retry  bool
	}{
		"queue full for the key":   {delayqueue.ErrKeyFull, http.StatusTooManyRequests, "key-queue-full", true},
		"queue full":               {delayqueue.ErrQueueFull, http.StatusServiceUnavailable, "queue-full", true},
		"payload over the queue's": {delayqueue.ErrPayloadTooLarge, http.StatusRequestEntityTooLarge, "body-too-large", false},
		"redis down":               {core.ErrUnavailable, http.StatusServiceUnavailable, "unavailable", true},
		"redis down, by time-out":  {fmt.Errorf("%w: %w", core.ErrUnavailable, context.DeadlineExceeded), http.StatusServiceUnavailable, "unavailable", true},
		"closed":                   {core.ErrClosed, http.StatusServiceUnavailable, "unavailable", true},
		"anything else":            {errors.New("order:" + secret), http.StatusInternalServerError, "internal", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := guarded(core.NewGuard(b.locker, failing{fmt.Errorf("wrapped: %w", test.err)}), mustNotRun(t))
			requireProblem(t, call(t, h, http.MethodPost, ordersPath, ""), test.status, test.kind, test.retry)
		})
	}
}

func TestRequestsThatCannotBeReplayedAreRefusedAsConflicts(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	p := &parking{}
	handler := httplock.PerKey(core.NewGuard(b.locker, p), func(*http.Request) (string, error) { return "order:" + secret, nil },
		httplock.LockSafeMethods())(mustNotRun(t))

	upgrade := request(t, http.MethodGet, "/ws", "")
	upgrade.Header.Set("Connection", "Upgrade")
	upgrade.Header.Set("Upgrade", "websocket")
	trailers := request(t, http.MethodPost, "/", "x")
	trailers.Trailer = http.Header{"X-Checksum": nil}
	connect := request(t, http.MethodConnect, "example.com:443", "")
	asterisk := request(t, http.MethodOptions, "/", "")
	asterisk.RequestURI, asterisk.URL.Path = "*", "*"
	for name, r := range map[string]*http.Request{"upgrade": upgrade, "trailers": trailers, "connect": connect, "asterisk": asterisk} {
		t.Run(name, func(t *testing.T) {
			requireProblem(t, do(handler, r), http.StatusConflict, "conflict", true)
		})
	}
	require.Empty(t, p.parked())

	t.Run("trailers that were not declared", func(t *testing.T) {
		r := request(t, http.MethodPost, "/", "")
		r.Body = readerThat(func() { r.Trailer = http.Header{"X-Late": {"1"}} })
		requireProblem(t, do(handler, r), http.StatusConflict, "conflict", true)
		require.Empty(t, p.parked())
	})
}

func TestRedisUnavailableIs503AndNever409(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"READONLY You can't write against a read only replica.",
		"LOADING Redis is loading the dataset in memory",
		"OOM command not allowed when used memory > 'maxmemory'.",
		"MISCONF Errors writing to the AOF file",
		"NOAUTH Authentication required.",
		"CLUSTERDOWN The cluster is down",
	} {
		t.Run(strings.Fields(answer)[0], func(t *testing.T) {
			t.Parallel()
			b, server := setupFragile(t)
			h := guarded(core.NewGuard(b.locker, nil), mustNotRun(t))
			b.hold(t)
			server.SetError(answer)
			requireProblem(t, call(t, h, http.MethodPost, ordersPath, ""), http.StatusServiceUnavailable, "unavailable", true)
			server.SetError("")
			requireProblem(t, call(t, h, http.MethodPost, ordersPath, ""), http.StatusConflict, "conflict", true)
		})
	}
}

func TestForgottenScriptsAreSentAgain(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	h := guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, b.rdb.ScriptFlush(r.Context()).Err())
		ok(w, r)
	})
	for range 2 {
		require.Equal(t, http.StatusOK, call(t, h, http.MethodPost, ordersPath, "").status)
	}
	b.requireFree(t)
}

func TestRedisThatDiesMidHandlerLeavesTheResponseAlone(t *testing.T) {
	t.Parallel()
	b, server := setupFragile(t)
	h := guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
		server.Close()
		w.WriteHeader(http.StatusCreated)
		ok(w, r)
	})
	resp := call(t, h, http.MethodPost, ordersPath, "")
	require.Equal(t, http.StatusCreated, resp.status, "the work was done within the lease")
	require.Equal(t, "ok", resp.body)
}

func TestClosedLockerIs503(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	require.NoError(t, b.locker.Close())
	h := guarded(core.NewGuard(b.locker, nil), mustNotRun(t))
	requireProblem(t, call(t, h, http.MethodPost, ordersPath, ""), http.StatusServiceUnavailable, "unavailable", true)
}

func TestAStatusAloneIsAResponseThatWasBegun(t *testing.T) {
	b := setup(t, redistest.Embedded(t), core.WithTTL(time.Second))
	resp := call(t, guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		b.loseLeases(t)
		<-r.Context().Done()
	}), http.MethodPost, ordersPath, "")
	require.Equal(t, http.StatusCreated, resp.status)
	require.Empty(t, resp.body)
}
