package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
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

func isHandedBack(err error) bool {
	return fmt.Sprintf("%T", err) == fmt.Sprintf("%T", delayqueue.HandBack(errors.New("")))
}

func isTriedLater(err error) bool {
	return fmt.Sprintf("%T", err) == fmt.Sprintf("%T", delayqueue.RetryLater(errors.New(""), 0))
}

// opaque hides what a handler is.
func opaque(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) })
}

// fill parks requests of an order each, as a service did whose routes were guarded.
func (d *parkingSite) fill(t *testing.T, n int, opts ...httplock.Option) (locations []string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", d.perKey(opts...)(mustNotRun(t)))
	for i := range n {
		release := d.HoldKey(t, fmt.Sprint("order:", i))
		locations = append(locations, requireParked(t, testbed.Call(t, mux, http.MethodPost, fmt.Sprint("/orders/", i), "")))
		release()
	}
	return locations
}

// replica starts a worker over another handler than the parkingSite's, until stop or the end of the test.
func (d *parkingSite) replica(t *testing.T, h http.Handler, opts ...httplock.ReplayOption) (stop func()) {
	t.Helper()
	locker := testbed.NewLocker(t, d.Redis, core.WithPrefix(d.Prefix))
	w := testbed.Work(t, d.queue, locker, httplock.Replay(h, opts...),
		delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
	return func() { assert.NoError(t, w.Stop(context.Background())) }
}

func TestReplay_HandlerThatLostItsGuardAndFailsRunsOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		const requests = 10
		locations := d.fill(t, requests)
		var ran atomic.Int64
		d.replica(t, opaque(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			ran.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
		})))
		for _, at := range locations { // the operator has to see it: perhaps it did not run
			s := d.await(t, at, delayqueue.StateDead)
			require.Equal(t, 1, s.Attempts)
			require.Contains(t, s.Cause, "answered with status 500, and no guard saw it")
			require.Equal(t, http.StatusInternalServerError, testbed.Call(t, d.mux, http.MethodGet, at+"/result", "").Status)
		}
		require.EqualValues(t, requests, ran.Load())
	})
}

func TestReplay_PrincipalThatNobodyAsksAboutIsHandedBack(t *testing.T) {
	m := message(t, post(t, testbed.OrderPath))
	m.Principal = "bob"
	err := httplock.Replay(opaque(mustNotRun(t)))(t.Context(), m)
	require.ErrorContains(t, err, "give Replay WithReplayReauthorize")
	require.True(t, isHandedBack(err))

	err = httplock.Replay(opaque(mustNotRun(t)), httplock.WithReplayReauthorize(func(*http.Request, string) error { return context.DeadlineExceeded }))(t.Context(), m)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, isTriedLater(err), "the answer may come later")
	require.ErrorIs(t, httplock.Replay(opaque(mustNotRun(t)), httplock.WithReplayReauthorize(nil))(t.Context(), m), core.ErrInvalidOption)
}

// Nothing is called to find out that a route is not guarded, or not there. It is long since most of it is a table.
func TestReplay_ReadsRoutesBeforeItCallsThem(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	perKey, err := httplock.New(guard)
	require.NoError(t, err)
	routes := fixedRoutes{"/orders/{id}": {Middleware: perKey, Key: orderKey}}
	mux := func(pattern string, h http.Handler) *http.ServeMux {
		mux := http.NewServeMux()
		mux.Handle(pattern, h)
		return mux
	}
	ran, none := http.Handler(http.HandlerFunc(ok)), mustNotRun(t)
	notFound := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	listed := func(routes httplock.Routes, list ...string) httplock.ReplayOption {
		return httplock.WithRoutes(func() []string { return list }, routes)
	}
	for name, test := range map[string]struct {
		handler http.Handler
		opts    []httplock.ReplayOption
		why     string // it is handed back
	}{
		"mux, guarded":                {handler: mux("/orders/{id}", httplock.PerKey(guard, orderKey)(ran))},
		"mux, handler's 404":          {handler: mux("/orders/{id}", httplock.PerKey(guard, orderKey)(notFound))},
		"mux, unguarded 404":          {handler: mux("/orders/{id}", notFound)},
		"mux, no route":               {handler: mux("/payments/{id}", none), why: "no such route"},
		"mux, other method":           {handler: mux("PUT /orders/{id}", none), why: "no such route"},
		"mux, redirect":               {handler: mux(testbed.OrderPath+"/", none), why: "no such route"},
		"mux, router within":          {handler: mux("/", opaque(mux("/payments/{id}", none))), why: "no such route"},
		"opaque, no route":            {handler: opaque(mux("/payments/{id}", none)), why: "no such route"},
		"config, guarded":             {handler: httplock.FromConfig(routes)(mux("/orders/{id}", ran))},
		"config, no entry":            {handler: httplock.FromConfig(fixedRoutes{})(mux("/orders/{id}", none)), why: "no guard"},
		"config, no route":            {handler: httplock.FromConfig(routes)(mux("/payments/{id}", none)), why: "no such route"},
		"config, guard of its own":    {handler: httplock.FromConfig(fixedRoutes{})(mux("/orders/{id}", httplock.PerKey(guard, orderKey)(ran)))},
		"config inside, guarded":      {handler: mux("/orders/{id}", httplock.FromConfig(routes)(ran))},
		"config inside, no entry":     {handler: mux("/orders/{id}", httplock.FromConfig(fixedRoutes{})(none)), why: "no guard"},
		"config, router within":       {handler: httplock.FromConfig(fixedRoutes{})(mux("/orders/", httplock.FromConfig(routes)(mux("/orders/{id}", ran))))},
		"listed":                      {handler: opaque(ran), opts: []httplock.ReplayOption{listed(nil, "GET /", "POST /orders/:id")}},
		"listed, handler's 404":       {handler: opaque(notFound), opts: []httplock.ReplayOption{listed(nil, "/orders/:id")}},
		"listed, no route":            {handler: opaque(none), opts: []httplock.ReplayOption{listed(nil, "GET /orders/:id", "POST /orders")}, why: "no such route"},
		"listed, guarded by config":   {handler: opaque(httplock.FromConfig(routes)(mux("/orders/{id}", ran))), opts: []httplock.ReplayOption{listed(routes, "POST /orders/:id")}},
		"listed, no entry in config":  {handler: opaque(none), opts: []httplock.ReplayOption{listed(fixedRoutes{}, "POST /orders/:id")}, why: "no guard"},
		"listed, another one matches": {handler: opaque(none), opts: []httplock.ReplayOption{listed(routes, "POST "+testbed.OrderPath, "POST /orders/:id")}, why: "no guard"},
	} {
		t.Run(name, func(t *testing.T) {
			m := message(t, post(t, testbed.OrderPath))
			err := httplock.Replay(test.handler, test.opts...)(t.Context(), m)
			if test.why == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.why)
			require.True(t, isHandedBack(err), err)
		})
	}
	require.ErrorIs(t, httplock.Replay(ran, httplock.WithRoutes(nil, nil))(t.Context(), message(t, post(t, "/"))), core.ErrInvalidOption)
}

// What was answered in front of a guard is no run of its handler: the request waits as a dead letter, whose ticket has the answer, until
// it is redriven.
func TestReplay_AnsweredInFrontOfItsGuardIsADeadLetter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		for _, status := range []int{200, 204, 302, 400, 404, 405, 413, 415, 500, 502} {
			at := d.fill(t, 1)[0]
			perKey, err := httplock.New(d.guard, httplock.WithAnonymous())
			require.NoError(t, err)
			routes := fixedRoutes{"/orders/{id}": {Middleware: perKey, Key: orderKey}}
			var passes atomic.Bool
			var ran atomic.Int64
			mux := http.NewServeMux()
			mux.HandleFunc("/orders/{id}", func(w http.ResponseWriter, _ *http.Request) {
				ran.Add(1)
				w.WriteHeader(http.StatusCreated)
			})
			guarded := httplock.FromConfig(routes)(mux)
			stop := d.replica(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !passes.Load() {
					w.WriteHeader(status)
					_, _ = io.WriteString(w, "no such coding")
					return
				}
				guarded.ServeHTTP(w, r)
			}), httplock.WithRoutes(func() []string { return []string{"POST /orders/{id}"} }, routes))
			require.Contains(t, d.await(t, at, delayqueue.StateDead).Cause, fmt.Sprintf("answered with status %d in front of its guard: it did not run", status))
			require.Zero(t, ran.Load(), status)
			answer := testbed.Call(t, d.mux, http.MethodGet, at+"/result", "")
			require.Equal(t, status, answer.Status)
			require.Equal(t, status != http.StatusNoContent, answer.Body == "no such coding", status)
			passes.Store(true)
			require.NoError(t, d.queue.Redrive(t.Context(), strings.TrimPrefix(at, "/tickets/"), 0))
			d.await(t, at, delayqueue.StateDone)
			require.Equal(t, http.StatusCreated, d.result(t, at).Status, status)
			require.EqualValues(t, 1, ran.Load(), status)
			stop()
		}
	})
}

// fixedRoutes are guards by normal patterns.
type fixedRoutes map[string]httplock.Route

func (f fixedRoutes) Route(_, pattern string) (httplock.Route, bool) {
	r, has := f[httplock.NormalizePattern(pattern)]
	return r, has
}

func TestReplay_FindsTheRouteThatARouterWould(t *testing.T) {
	list := []string{
		"GET /a", "POST /a/:id", "POST /a/b", "POST /a/:id/c", "/any/{x}", "POST /files/*path", "POST /echo/*", "echo_route_any /e5/:x",
		"POST /items\\:batch", "POST example.com/host/{id}", "POST /end/{$}", "POST /chi/{id:[0-9]+}", "POST /v/{name}.json",
	}
	for target, want := range map[string]bool{
		"GET /a": true, "HEAD /a": true, "POST /a": false, "POST /a/": false, "POST /a/1": true, "POST /a/b": true, "POST /a/b/c": true, "POST /a/1/d": false,
		"PATCH /any/1": true, "PUT /any": false, "POST /files/": true, "POST /files/a/b": true, "POST /files": false, "POST /echo/x": true,
		"POST /e5/1": true, "POST /items:batch": true, "POST /items%3Abatch": true, "POST /itemsbatch": false, "POST /host/1": true,
		"POST /end/": true, "POST /end/x": false, "POST /chi/1": true, "POST /v/x.json": true, "POST /a/x%2Fy": true, "POST /": false,
	} {
		method, path, _ := strings.Cut(target, " ")
		r := testbed.Request(t, method, path, "")
		err := httplock.Replay(opaque(http.HandlerFunc(ok)), httplock.WithRoutes(func() []string { return list }, nil))(t.Context(), message(t, r))
		require.Equal(t, want, err == nil, "%s: %v", target, err)
	}
}

func TestReplay_FormOfALaterReleaseIsHandedBack(t *testing.T) {
	for name, payload := range map[string]string{
		"field":                   `{"v":1,"method":"POST","target":"/","priority":1}` + "\n",
		"version":                 `{"v":2,"method":"POST","target":"/"}` + "\n",
		"version and other types": `{"v":2,"method":7,"target":["/"]}` + "\n",
	} {
		err := httplock.Replay(mustNotRun(t))(t.Context(), delayqueue.Message{ID: testbed.TicketID, Payload: []byte(payload)})
		require.ErrorContains(t, err, "a form that this release does not know", name)
		require.True(t, isHandedBack(err), name)
	}
}

func TestReplay_LogsWhatItLeavesToOthersOncePerRoute(t *testing.T) {
	log := testbed.CaptureLog(t)
	lacks := httplock.Replay(http.NewServeMux())
	lost := httplock.Replay(opaque(http.HandlerFunc(ok)))
	for range 3 {
		for _, name := range []string{"POST /orders/{id}", "POST /payments/{id}"} {
			m := message(t, post(t, testbed.OrderPath))
			m.Name = name
			require.True(t, isHandedBack(lacks(t.Context(), m)))
			require.NoError(t, lost(t.Context(), m))
		}
	}
	for _, what := range []string{"are handed back", "met no guard"} {
		require.Equal(t, 2, strings.Count(log.String(), what), log.String())
	}
	require.NotContains(t, log.String(), testbed.Secret)
}
