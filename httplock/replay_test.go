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
	"github.com/perkey-go/perkey/retry"
)

// message makes the message of a request.
func message(t *testing.T, r *http.Request) delayqueue.Message {
	t.Helper()
	payload, err := httplock.Encode(r, 1<<20)
	require.NoError(t, err)
	return delayqueue.Message{ID: testbed.TicketID, Key: testbed.OrderKey, Name: "POST /orders/{id}", Payload: payload, Attempt: 1}
}

func post(t *testing.T, target string) *http.Request {
	t.Helper()
	return testbed.Request(t, http.MethodPost, target, "")
}

// anyGuard returns middleware that has the same free key for every request.
func anyGuard(t *testing.T, opts ...httplock.Option) func(http.Handler) http.Handler {
	t.Helper()
	b := testbed.New(t, redistest.Embedded(t))
	return httplock.PerKey(b.Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { return "k", nil }, opts...)
}

func TestReplay_HasTheWorkersContext(t *testing.T) {
	var seen *http.Request
	handler := anyGuard(t)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r }))
	type mark struct{}
	ctx := context.WithValue(t.Context(), mark{}, "worker's")
	sent := post(t, "/")
	require.NoError(t, httplock.Replay(handler)(ctx, message(t, sent)))
	require.Equal(t, "worker's", seen.Context().Value(mark{}))
	require.Equal(t, http.NoBody, seen.Body)
	_, replayed := httplock.Replayed(sent.Context())
	require.False(t, replayed)
}

// A span that the worker has around the handler is the parent of what tracing middleware makes of the replay.
func TestReplay_HasTheTraceparentOfItsMessage(t *testing.T) {
	const clients, workers = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-11111111111111111111111111111111-2222222222222222-00"
	var seen []string
	handler := anyGuard(t)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header["Traceparent"] }))
	for _, sent := range [][]string{nil, {clients}, {clients, clients}} {
		r := post(t, "/")
		r.Header["Traceparent"] = sent
		m := message(t, r)
		require.NoError(t, httplock.Replay(handler)(t.Context(), m))
		require.Equal(t, sent, seen)
		m.Trace = workers
		require.NoError(t, httplock.Replay(handler)(t.Context(), m))
		require.Equal(t, []string{workers}, seen)
	}
}

func TestReplayOutcomes(t *testing.T) {
	lock := anyGuard(t)
	skips := anyGuard(t, httplock.WithSkip(func(r *http.Request) bool {
		_, replayed := httplock.Replayed(r.Context())
		return replayed
	}))
	for status, again := range map[int]bool{
		0: false, 200: false, 202: false, 204: false, 302: false, 400: false, 401: false, 403: false, 404: false, 409: false, 429: true, 499: false,
		500: false, 502: false, 503: true, 599: false, 999: false,
	} {
		handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			if status != 0 {
				w.WriteHeader(status)
			}
			_, err := io.WriteString(w, "body")
			assert.NoError(t, err)
			w.WriteHeader(http.StatusInternalServerError) // too late
		})
		for _, guarded := range []http.Handler{lock(handler), skips(handler)} {
			err := httplock.Replay(guarded)(t.Context(), message(t, post(t, "/")))
			if !again {
				require.NoError(t, err, status)
				continue
			}
			require.ErrorContains(t, err, fmt.Sprint("answered with status ", status))
			require.True(t, isTriedLater(err), err)
			require.NotErrorIs(t, err, core.ErrConflict)
		}
	}

	err := httplock.Replay(http.HandlerFunc(ok))(t.Context(), delayqueue.Message{ID: testbed.TicketID, Payload: []byte("junk")})
	require.ErrorContains(t, err, "decode a parked request")
	require.Equal(t, fmt.Sprintf("%T", delayqueue.SkipRetry(err)), fmt.Sprintf("%T", err), "it is not tried again")

	require.ErrorIs(t, httplock.Replay(nil)(t.Context(), message(t, post(t, "/"))), core.ErrInvalidOption)
}

func TestReplayOutcomes_OfPanics(t *testing.T) {
	lock := anyGuard(t)
	for _, value := range []any{"boom", http.ErrAbortHandler} {
		handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(value) })
		require.PanicsWithValue(t, value, func() { _ = httplock.Replay(lock(handler))(t.Context(), message(t, post(t, "/"))) })
	}

	// The guard that a panic leaves tells, and the outermost has the last word.
	recovers := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if recover() != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}()
			next.ServeHTTP(w, r)
		})
	}
	panics := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(core.ErrConflict) })
	skips := anyGuard(t, httplock.WithSkip(func(*http.Request) bool { return true }))
	badKey := httplock.PerKey(testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts), func(*http.Request) (string, error) { panic("boom") })
	for name, test := range map[string]struct {
		handler http.Handler
		fails   bool
	}{
		"recovered in front":         {recovers(lock(panics)), true},
		"recovered behind":           {lock(recovers(panics)), false},
		"recovered between":          {lock(recovers(lock(panics))), false},
		"recovered in front of both": {recovers(lock(lock(panics))), true},
		"of a guard that skips it":   {recovers(skips(panics)), true},
		"of the key function":        {recovers(badKey(http.HandlerFunc(ok))), true},
	} {
		err := httplock.Replay(test.handler)(t.Context(), message(t, post(t, "/")))
		require.Equal(t, test.fails, err != nil, name)
		if err != nil {
			require.ErrorContains(t, err, "panic: ", name)
			require.ErrorContains(t, err, "replay_test.go", name)
			require.NotErrorIs(t, err, core.ErrConflict, name)
		}
	}
}

func TestReplay_ThatWasInterruptedIsNoResult(t *testing.T) {
	lock := anyGuard(t)
	stopped := errors.New("worker stopped")
	// replay runs a request whose worker stops while its handler runs, which then answers.
	replay := func(answer http.HandlerFunc, around ...func(http.Handler) http.Handler) error {
		ctx, stop := context.WithCancelCause(t.Context())
		h := lock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stop(stopped)
			<-r.Context().Done()
			answer(w, r)
		}))
		for _, wrap := range around {
			h = wrap(h)
		}
		return httplock.Replay(h)(ctx, message(t, post(t, "/")))
	}
	begin := func(h http.Handler) http.Handler { // as gin does
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			w.WriteHeader(http.StatusOK)
		})
	}
	say := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	silent := func(http.ResponseWriter, *http.Request) {}
	require.ErrorIs(t, replay(say(http.StatusRequestTimeout)), stopped)
	require.ErrorIs(t, replay(silent), stopped)
	require.ErrorIs(t, replay(silent, begin), stopped)
	require.ErrorIs(t, replay(silent, lock, begin), stopped)
	const done = "it was done all the same"
	require.NoError(t, replay(say(http.StatusOK)), done)
	require.NoError(t, replay(say(http.StatusNoContent)), done)
	require.NoError(t, replay(silent, begin, lock), "the handler of the outer guard has answered")
}

// underKey runs f as a worker runs its handler: under the message's key.
func underKey(t *testing.T, b *testbed.Fixture, f func(ctx context.Context)) {
	t.Helper()
	require.NoError(t, b.Locker.Do(t.Context(), testbed.OrderKey, func(ctx context.Context) error {
		f(ctx)
		return nil
	}))
}

func TestReplay_ThatMeetsAConflictIsNeitherParkedNorMadeToWait(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.HoldKey(t, "inner")
	p := &testbed.Parking{}
	for name, policy := range map[string]core.ConflictPolicy{
		"reject": nil, "park": p, "wait": testbed.Patient{}, "wait, then park": retry.Policy{MaxWait: time.Hour, Then: p},
	} {
		inner := httplock.PerKey(b.Locker.Guard(policy), func(*http.Request) (string, error) { return "inner", nil })(mustNotRun(t))
		mux := guarded(b.Locker.Guard(p), inner.ServeHTTP)
		underKey(t, b, func(ctx context.Context) {
			r := post(t, testbed.OrderPath)
			r.Header.Set("Accept", "Replayed") // no header helps
			err := httplock.Replay(mux)(ctx, message(t, r))
			require.ErrorIs(t, err, core.ErrConflict, name)
			require.NotContains(t, err.Error(), "must share", name)
		})
		require.Empty(t, p.Parked(), name)
	}
}

func TestReplay_UnderAnotherLockerSaysWhatIsWrong(t *testing.T) {
	env := redistest.Embedded(t)
	b := testbed.New(t, env)
	mux := guarded(testbed.NewLocker(t, env.Client(t), core.WithPrefix(env.Prefix)).Guard(core.RejectConflicts), mustNotRun(t))
	log := testbed.CaptureLog(t)
	replay := httplock.Replay(mux)
	underKey(t, b, func(ctx context.Context) {
		for range 2 {
			err := replay(ctx, message(t, post(t, testbed.OrderPath)))
			require.ErrorIs(t, err, core.ErrConflict)
			require.ErrorContains(t, err, "must share client and prefix")
		}
	})
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
}

func TestReplay_ThatAGuardCannotServeIsTriedAgain(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	// A worker that stops: what looks like 499 to a log is no result.
	ctx, stop := context.WithCancel(t.Context())
	stop()
	mux := guarded(b.Locker.Guard(core.RejectConflicts), mustNotRun(t))
	require.ErrorIs(t, httplock.Replay(mux)(ctx, message(t, post(t, testbed.OrderPath))), context.Canceled)

	// A key that cannot be used made no result: it could be used when it was parked.
	require.ErrorIs(t, httplock.Replay(mux)(t.Context(), message(t, post(t, "/orders/%0a"))), core.ErrInvalidKey)
}

// A replay has no credentials, no TLS and no host: what is in front may turn it away.
func TestReplay_AnsweredBeforeItsGuardIsNoResult(t *testing.T) {
	lock := anyGuard(t)
	const refused, noRoute = "must let replays pass", "no such route"
	for status, why := range map[int]string{301: refused, 307: refused, 308: refused, 401: refused, 403: refused, 404: noRoute, 405: noRoute, 429: refused, 503: ""} {
		front := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/pass" {
				lock(http.HandlerFunc(ok)).ServeHTTP(w, r)
				return
			}
			w.Header().Set("Location", "https://shop.example"+r.URL.Path)
			w.WriteHeader(status)
		})
		err := httplock.Replay(front)(t.Context(), message(t, post(t, "/")))
		require.ErrorContains(t, err, fmt.Sprintf("answered with status %d", status))
		require.ErrorContains(t, err, why, status)
		require.NotErrorIs(t, err, core.ErrConflict)
		require.Equal(t, why != "", isHandedBack(err), status)
		require.Equal(t, why == "", isTriedLater(err), status)
		mux := http.NewServeMux()
		mux.Handle("/{$}", front)
		mux.Handle("/pass", front)
		if why == refused {
			require.True(t, isHandedBack(httplock.Replay(mux)(t.Context(), message(t, post(t, "/")))), status)
		}
		for _, h := range []http.Handler{front, mux} {
			require.NoError(t, httplock.Replay(h)(t.Context(), message(t, post(t, "/pass"))))
		}
	}
}

// What a policy has stored elsewhere is not lost.
func TestReplay_ThatIsDeferredIsAResult(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	mux := guarded(b.Locker.Guard(elsewhere{}), mustNotRun(t))
	require.NoError(t, httplock.Replay(mux)(t.Context(), message(t, post(t, testbed.OrderPath))))
}

// elsewhere is a policy that defers without the payload.
type elsewhere struct{}

func (elsewhere) OnConflict(context.Context, core.Conflict) (core.Decision, error) {
	return core.Deferred(core.Ticket{ID: testbed.TicketID, Queue: "elsewhere"}), nil
}

func TestRecorder_ServesHandlersThatExpectAServer(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", "1")
		assert.Equal(t, "1", w.Header().Get("X"))
		assert.NoError(t, http.NewResponseController(w).Flush())
		_, _, err := http.NewResponseController(w).Hijack()
		assert.ErrorIs(t, err, http.ErrNotSupported)
		notifier, can := w.(interface{ CloseNotify() <-chan bool })
		assert.True(t, can)
		assert.Empty(t, notifier.CloseNotify())
	})
	require.NoError(t, httplock.Replay(anyGuard(t)(handler))(t.Context(), message(t, post(t, "/"))))
}

// A worker whose Locker is on another client than the guards': its replays wait for themselves, and it is told.
func TestReplay_AWorkerOnAnotherClientIsTold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b, said := testbed.New(t, env), &testbed.Log{}
		guards := testbed.NewLocker(t, b.Redis, core.WithPrefix(b.Prefix), core.WithLogger(said.Logger()))
		replay := httplock.Replay(guarded(guards.Guard(core.RejectConflicts), http.HandlerFunc(ok)))
		for i, worker := range []*core.Locker{
			testbed.NewLocker(t, b.Redis, core.WithPrefix(b.Prefix)), // as it should be
			testbed.NewLocker(t, env.Client(t), core.WithPrefix(b.Prefix)),
			testbed.NewLocker(t, b.Redis, core.WithPrefix(b.Prefix+"-others")),
		} {
			for range 3 {
				_ = worker.Do(t.Context(), testbed.OrderKey, func(ctx context.Context) error {
					return replay(ctx, message(t, post(t, testbed.OrderPath)))
				})
			}
			require.Equal(t, i > 0, said.String() != "", said.String())
		}
		require.Equal(t, 1, strings.Count(said.String(), "kind=other_locker"), said.String())
		require.NotContains(t, said.String(), testbed.Secret)
	})
}

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
