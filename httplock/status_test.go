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

func TestFreeKeyRunsTheHandlerUnderALease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		h := guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
			lease, held := core.LeaseFrom(r.Context())
			if assert.True(t, held) {
				assert.Equal(t, "order:"+secret, lease.Key())
				assert.Positive(t, lease.Fence())
			}
			ok(w, r)
		})
		resp := call(t, h, http.MethodPost, ordersPath, "")
		require.Equal(t, http.StatusOK, resp.status)
		require.Equal(t, "ok", resp.body)
		b.requireFree(t)
	})
}

func TestHeldKeyIsRefusedWith409(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t)
		for name, policy := range map[string]core.ConflictPolicy{
			"reject":                nil,
			"retry used up":         retry.Policy{MaxWait: 10 * time.Millisecond},
			"retry, then reject":    retry.Policy{MaxAttempts: 2, Initial: time.Millisecond, Then: nil},
			"a policy's own answer": failing{fmt.Errorf("policy: %w", core.ErrConflict)},
		} {
			t.Run(name, func(t *testing.T) {
				h := guarded(core.NewGuard(b.locker, policy), mustNotRun(t))
				requireProblem(t, call(t, h, http.MethodPost, ordersPath, "body"), http.StatusConflict, "conflict", true)
			})
		}
	})
}

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

func TestBodyOverTheCapIsNotParked(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	p := &parking{}
	h := guarded(core.NewGuard(b.locker, p), mustNotRun(t), httplock.WithMaxBody(1000))
	url, client := serve(t, h)

	for name, test := range map[string]struct {
		size    int
		chunked bool
		status  int
	}{
		"at the cap":          {1000, false, http.StatusAccepted},
		"over it":             {1001, false, http.StatusRequestEntityTooLarge},
		"at the cap, chunked": {1000, true, http.StatusAccepted},
		"over it, chunked":    {1001, true, http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(p.parked())
			r := toServer(t.Context(), t, url+ordersPath, strings.Repeat("x", test.size))
			if test.chunked {
				r.ContentLength = -1
			}
			resp, err := send(client, r)
			require.NoError(t, err)
			if test.status == http.StatusAccepted {
				require.Equal(t, test.status, resp.status)
				require.Len(t, p.parked(), before+1)
				return
			}
			requireProblem(t, resp, test.status, "body-too-large", false)
			require.Len(t, p.parked(), before, "nothing was stored")
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
	t.Run("down", func(t *testing.T) {
		t.Parallel()
		b, server := setupFragile(t)
		server.Close()
		for _, policy := range []core.ConflictPolicy{nil, patient{}, &parking{}} {
			h := guarded(core.NewGuard(b.locker, policy), mustNotRun(t))
			requireProblem(t, call(t, h, http.MethodPost, ordersPath, ""), http.StatusServiceUnavailable, "unavailable", true)
		}
		resp := call(t, guarded(core.NewGuard(b.locker, nil), ok), http.MethodGet, ordersPath, "")
		require.Equal(t, http.StatusOK, resp.status, "safe methods need no Redis")
	})
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

func TestLostLeaseIs500WhenNothingWasWritten(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, core.WithTTL(time.Second))
		lose := func(r *http.Request) {
			b.loseLeases(t)
			<-r.Context().Done()
			assert.ErrorIs(t, context.Cause(r.Context()), core.ErrLeaseLost)
		}

		h := guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", "12345")
			w.Header().Set("Etag", `"1"`)
			lose(r)
		})
		resp := call(t, h, http.MethodPost, ordersPath, "")
		require.NotContains(t, resp.header, "Etag")
		require.NotContains(t, resp.header, "Content-Length")
		requireProblem(t, resp, http.StatusInternalServerError, "outcome-unknown", false)

		h = guarded(core.NewGuard(b.locker, nil), func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
			lose(r)
		})
		resp = call(t, h, http.MethodPost, ordersPath, "")
		require.Equal(t, http.StatusCreated, resp.status)
		require.Empty(t, resp.body, "a response that was begun is left alone")
	})
}

func TestKeyFunctionsThatFail(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	for name, test := range map[string]struct {
		key    string
		err    error
		status int
		kind   string
	}{
		"client's fault":           {"", httplock.BadKey(errors.New(secret)), http.StatusBadRequest, "bad-key"},
		"client's fault, wrapped":  {"", fmt.Errorf("key: %w", httplock.BadKey(nil)), http.StatusBadRequest, "bad-key"},
		"invalid, by the function": {"", fmt.Errorf("key: %w", core.ErrInvalidKey), http.StatusBadRequest, "bad-key"},
		"empty":                    {"", nil, http.StatusBadRequest, "bad-key"},
		"too long":                 {strings.Repeat(secret, 100), nil, http.StatusBadRequest, "bad-key"},
		"control bytes":            {secret + "\n", nil, http.StatusBadRequest, "bad-key"},
		"ours":                     {"", errors.New(secret), http.StatusInternalServerError, "internal"},
	} {
		t.Run(name, func(t *testing.T) {
			h := httplock.PerKey(core.NewGuard(b.locker, nil), func(*http.Request) (string, error) { return test.key, test.err })(mustNotRun(t))
			requireProblem(t, call(t, h, http.MethodPost, "/", ""), test.status, test.kind, false)
		})
	}
	t.Run("ours is logged", func(t *testing.T) {
		var log bytes.Buffer
		h := httplock.PerKey(core.NewGuard(b.locker, nil), func(*http.Request) (string, error) { return "", errors.New("no database") },
			httplock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))(mustNotRun(t))
		requireProblem(t, call(t, h, http.MethodPost, "/", ""), http.StatusInternalServerError, "internal", false)
		require.Contains(t, log.String(), "no database")
	})
	t.Run("panic", func(t *testing.T) {
		h := httplock.PerKey(core.NewGuard(b.locker, nil), func(*http.Request) (string, error) { panic("mine") })(mustNotRun(t))
		require.PanicsWithValue(t, "mine", func() { call(t, h, http.MethodPost, "/", "") })
	})
	require.Empty(t, redistest.Keys(t, b.rdb, b.prefix))
}

func TestSafeMethodsPassUnlessToldOtherwise(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t)
	guard := core.NewGuard(b.locker, nil)
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		resp := call(t, guarded(guard, ok), method, ordersPath, "")
		require.Equal(t, http.StatusOK, resp.status, method)

		resp = call(t, guarded(guard, mustNotRun(t), httplock.LockSafeMethods()), method, ordersPath, "")
		require.Equal(t, http.StatusConflict, resp.status, method)
		require.Equal(t, "application/problem+json", resp.header.Get("Content-Type"))
		require.NotEmpty(t, resp.header.Get("Retry-After"))
		require.Equal(t, method == http.MethodHead, resp.body == "", "HEAD gets no body")
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "TRACE", "FROB"} {
		resp := call(t, guarded(guard, mustNotRun(t)), method, ordersPath, "")
		require.Equal(t, http.StatusConflict, resp.status, method)
	}

	skip := httplock.Skip(func(r *http.Request) bool { return r.Header.Get("X-Dry-Run") != "" })
	r := request(t, http.MethodPost, ordersPath, "")
	w := do(guarded(guard, mustNotRun(t), skip), r)
	require.Equal(t, http.StatusConflict, w.status)
	r.Header.Set("X-Dry-Run", "1")
	w = do(guarded(guard, ok, skip), r)
	require.Equal(t, http.StatusOK, w.status)
}

func TestInnerConflictIsNotTakenForTheOuterOne(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.holdKey(t, "inner")
	inner := core.NewGuard(b.locker, nil)
	outer := core.NewGuard(b.locker, &parking{})

	h := guarded(outer, func(w http.ResponseWriter, r *http.Request) {
		err := inner.Do(r.Context(), core.Call{Key: "inner"}, func(context.Context) error { return nil })
		assert.ErrorIs(t, err, core.ErrConflict)
		w.WriteHeader(http.StatusTeapot)
	})
	require.Equal(t, http.StatusTeapot, call(t, h, http.MethodPost, ordersPath, "").status, "the handler's own answer")

	nested := httplock.PerKey(inner, func(*http.Request) (string, error) { return "inner", nil })(mustNotRun(t))
	h = guarded(outer, nested.ServeHTTP)
	requireProblem(t, call(t, h, http.MethodPost, ordersPath, ""), http.StatusConflict, "conflict", true)
	b.requireFree(t)
}

func TestNestedGuardOfTheSameKeyPasses(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	guard := core.NewGuard(b.locker, nil)
	mux := guarded(guard, httplock.PerKey(guard, orderKey)(http.HandlerFunc(ok)).ServeHTTP)
	require.Equal(t, http.StatusOK, call(t, mux, http.MethodPost, ordersPath, "").status)
	b.requireFree(t)
}

func TestPanicGivesTheKeyBackAndGoesOn(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	for _, value := range []any{"boom", http.ErrAbortHandler} {
		h := guarded(core.NewGuard(b.locker, nil), func(http.ResponseWriter, *http.Request) { panic(value) })
		require.PanicsWithValue(t, value, func() { call(t, h, http.MethodPost, ordersPath, "") })
		b.requireFree(t)
	}
}
