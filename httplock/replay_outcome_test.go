package httplock_test

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestReplay_RetryStatusesAddToThoseThatAreTriedAgain(t *testing.T) {
	for status, again := range map[int]bool{429: true, 500: true, 502: true, 503: true, 504: false, 404: false} {
		outer := anyGuard(t, httplock.WithRetryStatuses(500), httplock.WithRetryStatuses(500))
		inner := anyGuard(t, httplock.WithRetryStatuses(502))
		h := outer(inner(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })))
		err := httplock.Replay(h)(t.Context(), message(t, post(t, "/")))
		require.Equal(t, again, isTriedLater(err), status)
		require.Equal(t, again, err != nil, status)
	}
}

func TestReplay_RetryAfterIsHonored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env, delayqueue.WithMaxAttempts(1))
		var mu sync.Mutex
		var ran []time.Time
		d.handle(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			if ran = append(ran, time.Now()); len(ran) < 3 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})
		release := d.Hold(t)
		at := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
		d.work(t)
		release()
		require.Equal(t, 1, d.await(t, at, delayqueue.StateDone).Attempts)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, ran, 3)
		for i := range 2 {
			require.GreaterOrEqual(t, ran[i+1].Sub(ran[i]), 990*time.Millisecond)
		}
	})
}

func TestReplay_DeadTicketShowsTheLastStatusAndBody(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		var ran atomic.Int64
		d.handle(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/x")
			w.Header().Set("Link", "<a>")
			w.Header().Set("Retry-After", "0")
			status := http.StatusBadGateway
			if ran.Add(1) > 1 {
				w.Header().Set("Retry-After", "86400") // beyond the request's age
				status = http.StatusServiceUnavailable
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "the shipper is away"+strings.Repeat("!", 2000))
		}, httplock.WithRetryStatuses(http.StatusBadGateway))
		release := d.Hold(t)
		at := requireParked(t, testbed.Call(t, d.mux, http.MethodPost, testbed.OrderPath, ""))
		d.work(t)
		release()
		d.await(t, at, delayqueue.StateDead)
		require.EqualValues(t, 2, ran.Load())

		resp := testbed.Call(t, d.mux, http.MethodGet, at, "")
		require.Equal(t, http.StatusOK, resp.Status)
		var ticket struct {
			State      string
			LastStatus int `json:"last_status"`
		}
		require.NoError(t, json.Unmarshal([]byte(resp.Body), &ticket))
		require.Equal(t, [2]any{"dead", 503}, [2]any{ticket.State, ticket.LastStatus})
		resp = testbed.Call(t, d.mux, http.MethodGet, at+"/result", "")
		require.Equal(t, [2]any{503, "text/x"}, [2]any{resp.Status, resp.Header.Get("Content-Type")})
		require.True(t, strings.HasPrefix(resp.Body, "the shipper is away!"))
		require.Len(t, resp.Body, 1<<10)
		require.Equal(t, "true", resp.Header.Get("Perkey-Truncated"))
		require.NotContains(t, resp.Header, "Retry-After")
		require.NotContains(t, resp.Header, "Link")
	})
}

func TestTicket_ResultOfALaterReleaseIsNotGone(t *testing.T) {
	for _, state := range []delayqueue.State{delayqueue.StateDone, delayqueue.StateDead} {
		h := httplock.TicketsOver(&fakeQueue{state: state, result: []byte(`{"v":2,"status":200}` + "\n")}, anyone)
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodGet, ticketPath+"/result", ""), http.StatusServiceUnavailable, "unavailable", true)
	}
}

func TestReplay_WhatIsUnavailableInFrontOfTheHandlerIsTriedAgain(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	down := errors.New("the user database is down")
	closed := testbed.NewLocker(t, b.Redis, core.WithPrefix(b.Prefix))
	require.NoError(t, closed.Close())
	for name, h := range map[string]http.Handler{
		"locker": guarded(closed.Guard(core.RejectConflicts), mustNotRun(t)),
		"principal": guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t), sentBy(
			func(*http.Request) (string, error) { return "", nil }, func(*http.Request, string) error { return down })),
		"inner locker": anyGuard(t)(guarded(closed.Guard(core.RejectConflicts), mustNotRun(t))),
	} {
		err := httplock.Replay(h)(t.Context(), message(t, post(t, testbed.OrderPath)))
		require.True(t, isTriedLater(err), "%s: %v", name, err)
	}
}

// What a guard of this release refuses, one of another may let run.
func TestReplay_WhatTheGuardRefusesIsHandedBack(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	noKey := func(*http.Request) (string, error) { return "", httplock.BadKey(errors.New("no X-Order")) }
	log := httplock.WithLogger(slog.New(slog.DiscardHandler))
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", mustNotRun(t))
	for name, h := range map[string]http.Handler{
		"key function":    httplock.PerKey(guard, noKey, log)(mustNotRun(t)),
		"our own fault":   httplock.PerKey(guard, func(*http.Request) (string, error) { return "", errors.New("ours") }, log)(mustNotRun(t)),
		"invalid key":     httplock.PerKey(guard, func(*http.Request) (string, error) { return "a\nb", nil }, log)(mustNotRun(t)),
		"misconfigured":   httplock.FromConfig(routesFunc(func(string, string) (httplock.Route, bool) { return httplock.Route{}, true }))(mux),
		"idempotency key": httplock.PerKey(guard, httplock.IdempotencyKey, log)(mustNotRun(t)),
		"nil replay":      nil,
	} {
		err := httplock.Replay(h)(t.Context(), message(t, post(t, testbed.OrderPath)))
		require.True(t, isHandedBack(err), "%s: %v", name, err)
	}
	err := httplock.Replay(anyGuard(t)(httplock.PerKey(guard, noKey, log)(mustNotRun(t))))(t.Context(), message(t, post(t, testbed.OrderPath)))
	require.ErrorContains(t, err, "the key function failed")
	require.ErrorContains(t, err, "no X-Order")
	require.False(t, isHandedBack(err), "a handler ran: that was an attempt")
}

// A guard that does not ask for the principal authorizes nobody, whatever its key is.
func TestReplay_GuardThatDoesNotAskIsNotEnough(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	asks := sentBy(func(*http.Request) (string, error) { return "", nil }, func(*http.Request, string) error { return nil })
	renamed := func(r *http.Request) (string, error) { return "o:" + r.PathValue("id"), nil }
	perKey := func(opts ...httplock.Option) *httplock.Middleware {
		m, err := httplock.New(guard, opts...)
		require.NoError(t, err)
		return m
	}
	under := func(h http.Handler) *http.ServeMux {
		mux := http.NewServeMux()
		mux.Handle("/orders/{id}", h)
		return mux
	}
	routes := func(m *httplock.Middleware) httplock.Routes {
		return fixedRoutes{"/orders/{id}": {Middleware: m, Key: renamed}}
	}
	listed := func(m *httplock.Middleware) httplock.ReplayOption {
		return httplock.WithRoutes(func() []string { return []string{"POST /orders/:id"} }, routes(m))
	}
	fine := http.HandlerFunc(ok)
	for name, test := range map[string]struct {
		h    http.Handler
		opts []httplock.ReplayOption
		runs bool
	}{
		"asks":          {h: under(perKey(asks).Handler(renamed, fine)), runs: true},
		"does not":      {h: under(perKey().Handler(renamed, mustNotRun(t)))},
		"inner one":     {h: under(perKey().Handler(renamed, perKey(asks).Handler(orderKey, fine))), runs: true},
		"config":        {h: httplock.FromConfig(routes(perKey(asks)))(under(fine)), runs: true},
		"config, not":   {h: httplock.FromConfig(routes(perKey()))(under(mustNotRun(t)))},
		"config, inner": {h: httplock.FromConfig(routes(perKey()))(under(perKey(asks).Handler(orderKey, fine))), runs: true},
		"listed": {
			h: opaque(under(perKey(asks).Handler(renamed, fine))), opts: []httplock.ReplayOption{listed(perKey(asks))}, runs: true,
		},
		"listed, not": {h: opaque(under(perKey().Handler(renamed, mustNotRun(t)))), opts: []httplock.ReplayOption{listed(perKey())}},
		"listed, nil": {h: opaque(under(mustNotRun(t))), opts: []httplock.ReplayOption{listed(nil)}},
	} {
		m := message(t, post(t, testbed.OrderPath))
		m.Principal = "bob"
		err := httplock.Replay(test.h, test.opts...)(t.Context(), m)
		if test.runs {
			require.NoError(t, err, name)
		} else {
			require.True(t, isHandedBack(err), "%s: %v", name, err)
		}
	}
}

func TestReplay_RenamedRouteIsFoundByRewriteTarget(t *testing.T) {
	renamed, ran := http.NewServeMux(), ""
	renamed.Handle("/purchases/{id}", anyGuard(t)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ran = r.URL.String() })))
	replay := httplock.Replay(renamed, httplock.WithTargetRewrite(func(method, target string) string {
		return "/purchases/" + strings.TrimPrefix(target, "/orders/") + "?method=" + method
	}))
	require.NoError(t, replay(t.Context(), message(t, post(t, testbed.OrderPath))))
	require.Equal(t, "/purchases/"+testbed.Secret+"?method=POST", ran)
	require.ErrorIs(t, httplock.Replay(mustNotRun(t), httplock.WithTargetRewrite(nil))(t.Context(), message(t, post(t, "/"))), core.ErrInvalidOption)
	for _, target := range []string{"", "no slash", "https://shop.example/", "/\n"} {
		err := httplock.Replay(mustNotRun(t), httplock.WithTargetRewrite(func(string, string) string { return target }))(t.Context(), message(t, post(t, "/")))
		require.True(t, isHandedBack(err), "%q: %v", target, err)
	}
}

// A pattern may ask for a host, which a replay has then: that one, and not the client's.
func TestReplay_HasTheHostOfItsRoutesPattern(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, service := range map[string]func(d *parkingSite, h http.Handler) http.Handler{
			"pattern": func(d *parkingSite, h http.Handler) http.Handler {
				mux := http.NewServeMux()
				mux.Handle("POST shop.example/orders/{id}", d.perKey()(h))
				return mux
			},
			"config": func(d *parkingSite, h http.Handler) http.Handler {
				m, err := httplock.New(d.guard, httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous())
				require.NoError(t, err)
				mux := http.NewServeMux()
				mux.Handle("shop.example/orders/{id}", h)
				return httplock.FromConfig(fixedRoutes{"shop.example/orders/{id}": {Middleware: m, Key: orderKey}})(mux)
			},
			"option": func(d *parkingSite, h http.Handler) http.Handler {
				inner, outer := http.NewServeMux(), http.NewServeMux()
				inner.Handle("/orders/{id}", d.perKey(httplock.WithReplayHost("shop.example"))(h))
				outer.Handle("shop.example/", inner)
				return opaque(outer)
			},
		} {
			t.Run(name, func(t *testing.T) {
				env := *env
				env.Prefix += name
				d, hosts := openParking(t, &env), make(chan string, 1)
				h := service(d, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host }))
				release := d.Hold(t)
				r := post(t, testbed.OrderPath)
				r.Host = "SHOP.example:8080"
				if name != "pattern" {
					r.Host = "shop.example"
				}
				r.Host = strings.ToLower(r.Host)
				at := requireParked(t, testbed.Do(h, r))
				release()
				d.replica(t, h)
				d.await(t, at, delayqueue.StateDone)
				require.Equal(t, "shop.example", <-hosts)
			})
		}
	})
	for _, host := range []string{"", "a b", "a/b", "ü", "user@host"} {
		payload, err := json.Marshal(map[string]any{"v": 1, "method": "POST", "target": "/", "host": host})
		require.NoError(t, err)
		_, _, err = httplock.Decode(t.Context(), append(payload, '\n'))
		require.Equal(t, host != "", err != nil, host)
	}
}
