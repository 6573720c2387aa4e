package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

func TestIdempotencyKey_IsAStringWithQuotesOrWithout(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 255)
	for _, test := range []struct {
		lines []string
		key   string // "": malformed
	}{
		{[]string{`"8e03978e-40d5-43dd"`}, "8e03978e-40d5-43dd"},
		{[]string{`8e03978e-40d5-43dd`}, "8e03978e-40d5-43dd"},
		{[]string{" \t\"a\" "}, "a"},
		{[]string{" a\t"}, "a"},
		{[]string{`"a b;,c=d"`}, "a b;,c=d"},
		{[]string{`"a\"b\\c"`}, `a"b\c`},
		{[]string{"a+/=:_~!#b"}, "a+/=:_~!#b"},
		{[]string{long}, long},
		{[]string{`"` + strings.Repeat(`\"`, 255) + `"`}, strings.Repeat(`"`, 255)},
		{[]string{long + "k"}, ""},
		{[]string{`"` + long + `k"`}, ""},
		{[]string{""}, ""},
		{[]string{" "}, ""},
		{[]string{`""`}, ""},
		{[]string{`"`}, ""},
		{[]string{`"a`}, ""},
		{[]string{`a"`}, ""},
		{[]string{`"a"b`}, ""},
		{[]string{`"a";p=1`}, ""},
		{[]string{`"a", "b"`}, ""},
		{[]string{`"a\b"`}, ""},
		{[]string{`"a\"`}, ""},
		{[]string{"a b"}, ""},
		{[]string{"a,b"}, ""},
		{[]string{"a;b"}, ""},
		{[]string{`a\b`}, ""},
		{[]string{"ä"}, ""},
		{[]string{"\"ä\""}, ""},
		{[]string{"\"a\tb\""}, ""},
		{[]string{"a\x7fb"}, ""},
		{[]string{"a", "a"}, ""},
		{[]string{"a", ""}, ""},
	} {
		key, there, err := httplock.ParseIdempotencyKey(test.lines)
		assert.True(t, there, "%q", test.lines)
		assert.Equal(t, test.key, key, "%q", test.lines)
		assert.Equal(t, test.key == "", err != nil, "%q", test.lines)
	}
	_, there, err := httplock.ParseIdempotencyKey(nil)
	require.NoError(t, err)
	require.False(t, there)
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, s := range []string{"a", `"a"`, `"a\"\\"`, `"`, `a"`, "\x00", "ä"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, there, err := httplock.ParseIdempotencyKey([]string{s})
		require.True(t, there)
		if err != nil {
			require.Empty(t, key)
			return
		}
		require.NotEmpty(t, key)
		require.LessOrEqual(t, len(key), 255)
		for i := range len(key) {
			require.True(t, key[i] >= ' ' && key[i] <= '~')
		}
		// As a quoted string it is the same key.
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		again, _, err := httplock.ParseIdempotencyKey([]string{quoted})
		require.NoError(t, err)
		require.Equal(t, key, again)
	})
}

// newIdempotency is a store on the bench's Redis.
func newIdempotency(t *testing.T, b *testbed.Fixture, opts ...idempotency.Option) *idempotency.Store {
	t.Helper()
	store, err := idempotency.New(b.Redis, append([]idempotency.Option{idempotency.WithPrefix(b.Prefix)}, opts...)...)
	require.NoError(t, err)
	return store
}

// idempotent serves handler at /orders/{id}, and looks at Idempotency-Key.
func idempotent(t *testing.T, b *testbed.Fixture, policy core.ConflictPolicy, handler http.HandlerFunc, opts ...httplock.IdempotencyOption) *http.ServeMux {
	t.Helper()
	return guarded(b.Locker.Guard(policy), handler, httplock.WithIdempotency(newIdempotency(t, b), opts...))
}

// withKey is a POST with an Idempotency-Key.
func withKey(t *testing.T, target, key, body string) *http.Request {
	t.Helper()
	r := testbed.Request(t, http.MethodPost, target, body)
	r.Header.Set("Idempotency-Key", key)
	return r
}

func requireReplayed(t *testing.T, first, second testbed.Answer) {
	t.Helper()
	require.Equal(t, "true", second.Header.Get("Idempotent-Replayed"), "%d %s", second.Status, second.Body)
	require.NotContains(t, first.Header, "Idempotent-Replayed")
	require.Equal(t, first.Status, second.Status)
	require.Equal(t, first.Body, second.Body)
}

// count is a handler that says how often it was run.
func count(runs *atomic.Int64, status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		n := runs.Add(1)
		w.WriteHeader(status)
		if status != http.StatusNoContent && status != http.StatusNotModified {
			_, _ = fmt.Fprintf(w, "run %d", n)
		}
	}
}

// An upstream that is guarded itself refuses with Retry-After, and its client is to try again under the same key.
func TestIdempotency_WhichResponsesAreKept(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	for retryAfter, statuses := range map[string]map[int]bool{
		"": {
			200: true, 201: true, 204: true, 302: true, 304: true, 400: true, 403: true, 404: true, 409: true, 422: true,
			500: false, 502: false, 503: false, // they are to be tried again
			401: false, 407: false, 408: false, 425: false, 429: false, // they ask for the same request again
		},
		"1": {202: true, 303: true, 409: false, 413: false, 423: false},
	} {
		for status, kept := range statuses {
			var runs atomic.Int64
			h := idempotent(t, b, nil, func(w http.ResponseWriter, r *http.Request) {
				if retryAfter != "" {
					w.Header().Set("Retry-After", retryAfter)
				}
				count(&runs, status)(w, r)
			})
			key := fmt.Sprint("k", status, retryAfter)
			first := testbed.Do(h, withKey(t, testbed.OrderPath, key, "{}"))
			second := testbed.Do(h, withKey(t, testbed.OrderPath, key, "{}"))
			require.Equal(t, status, first.Status)
			require.Equal(t, status, second.Status)
			require.Equal(t, retryAfter, second.Header.Get("Retry-After"))
			if kept {
				requireReplayed(t, first, second)
				require.EqualValues(t, 1, runs.Load(), status)
			} else {
				require.NotContains(t, second.Header, "Idempotent-Replayed")
				require.EqualValues(t, 2, runs.Load(), status)
				testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, key, "{other}")), 422, "idempotency-key-reused", false)
			}
		}
	}

	// A handler that panics does not answer.
	panics := true
	h := idempotent(t, b, nil, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half a response"))
		if panics {
			panic(http.ErrAbortHandler)
		}
	})
	require.Panics(t, func() { testbed.Do(h, withKey(t, testbed.OrderPath, "panics", "")) })
	panics = false
	require.NotContains(t, testbed.Do(h, withKey(t, testbed.OrderPath, "panics", "")).Header, "Idempotent-Replayed", "it runs again")
}

func TestIdempotency_RequestsMadeAtOnceRunOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		for name, test := range map[string]struct {
			key    httplock.KeyFunc
			policy core.ConflictPolicy
		}{
			"order, reject":  {orderKey, nil},
			"order, wait":    {orderKey, retry.Policy{MaxWait: time.Minute}},
			"its own, wait":  {httplock.IdempotencyKey, retry.Policy{MaxWait: time.Minute}},
			"its own, never": {httplock.IdempotencyKey, nil},
		} {
			const n = 30
			var runs, running atomic.Int64
			started, finish := make(chan struct{}, n), make(chan struct{})
			mux := http.NewServeMux()
			mux.Handle("/orders/{id}", httplock.PerKey(b.Locker.Guard(test.policy), test.key, remembering(newIdempotency(t, b)))(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					assert.EqualValues(t, 1, running.Add(1))
					defer running.Add(-1)
					started <- struct{}{}
					<-finish
					w.WriteHeader(http.StatusCreated)
					_, _ = fmt.Fprintf(w, "%s, run %d", name, runs.Add(1))
				})))
			answers := make([]testbed.Answer, n)
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() { answers[i] = testbed.Do(mux, withKey(t, testbed.OrderPath, `"`+name+`"`, "{}")) })
			}
			<-started
			if test.policy == nil { // while it is in progress
				redistest.Eventually(t, func() bool { return len(b.Conflicts) >= n-1 }, "all others are refused")
			}
			close(finish)
			all.Wait()
			drain(b.Conflicts)
			require.EqualValues(t, 1, runs.Load(), name)
			created := 0
			for _, a := range answers {
				switch a.Status {
				case http.StatusCreated:
					created++
					require.Equal(t, name+", run 1", a.Body)
				default:
					require.Nil(t, test.policy, "%s: %d %s", name, a.Status, a.Body)
					testbed.RequireProblem(t, a, http.StatusConflict, "conflict", true)
				}
			}
			if test.policy != nil {
				require.Equal(t, n, created, name)
			}
			require.Equal(t, "true", testbed.Do(mux, withKey(t, testbed.OrderPath, `"`+name+`"`, "{}")).Header.Get("Idempotent-Replayed"))
		}
	})
}

type outcomeKinds struct {
	core.NopObserver
	seen chan core.OutcomeKind
}

func (o outcomeKinds) OnOutcome(_ context.Context, e core.Outcome) { o.seen <- e.Kind }

// A request that is made again while another one has the key is not a failure of the lock.
func TestIdempotency_StoredResponseIsAConflictToTheLocksObserver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		for name, policy := range map[string]core.ConflictPolicy{"reject": core.RejectConflicts, "wait": retry.Policy{MaxWait: time.Minute}, "park": nil} {
			b := testbed.On(t, rdb, env.Prefix+name) // keys of its own
			if name == "park" {
				policy = delayqueue.Policy(testbed.NewQueue(t, rdb, "q", delayqueue.WithPrefix(b.Prefix)))
			}
			observer := outcomeKinds{seen: make(chan core.OutcomeKind, 10)}
			locker := testbed.NewLocker(t, rdb, core.WithPrefix(b.Prefix), core.WithObserver(observer))
			var runs atomic.Int64
			mux := guarded(locker.Guard(policy), count(&runs, http.StatusOK), httplock.WithIdempotency(newIdempotency(t, b)))
			first := testbed.Do(mux, withKey(t, testbed.OrderPath, name, "{}"))
			require.Equal(t, core.OutcomeAcquired, <-observer.seen)
			release := b.Hold(t)
			requireReplayed(t, first, testbed.Do(mux, withKey(t, testbed.OrderPath, name, "{}")))
			require.Equal(t, core.OutcomeConflict, <-observer.seen, name)
			release()
			require.EqualValues(t, 1, runs.Load())
		}
	})
}

func TestIdempotency_OtherPayloadsAreRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		var runs atomic.Int64
		started, finish := make(chan struct{}, 1), make(chan struct{})
		h := idempotent(t, b, nil, func(w http.ResponseWriter, r *http.Request) {
			started <- struct{}{}
			<-finish
			count(&runs, http.StatusOK)(w, r)
		})
		others := map[string]func() *http.Request{
			"body":     func() *http.Request { return withKey(t, testbed.OrderPath, "k", "{2}") },
			"no body":  func() *http.Request { return withKey(t, testbed.OrderPath, "k", "") },
			"query":    func() *http.Request { return withKey(t, testbed.OrderPath+"?a=1", "k", "{}") },
			"resource": func() *http.Request { return withKey(t, "/orders/"+testbed.Secret+"-7", "k", "{}") },
			"type": func() *http.Request {
				r := withKey(t, testbed.OrderPath, "k", "{}")
				r.Header.Set("Content-Type", "text/plain")
				return r
			},
			"encoding": func() *http.Request {
				r := withKey(t, testbed.OrderPath, "k", "{}")
				r.Header.Set("Content-Encoding", "br")
				return r
			},
		}
		done := make(chan testbed.Answer)
		go func() { done <- testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")) }()
		<-started
		for name, other := range others {
			testbed.RequireProblem(t, testbed.Do(h, other()), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
			require.Zero(t, runs.Load(), "%s: while the first is in progress", name)
		}
		testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")), http.StatusConflict, "conflict", true)
		close(finish)
		first := <-done
		for _, other := range others {
			testbed.RequireProblem(t, testbed.Do(h, other()), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
		}
		requireReplayed(t, first, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")))

		// What is known is told although somebody else has the order.
		b.Hold(t)
		requireReplayed(t, first, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{}")))
		testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "{2}")), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
		waits := idempotent(t, b, retry.Policy{MaxWait: time.Hour}, mustNotRun(t))
		requireReplayed(t, first, testbed.Do(waits, withKey(t, testbed.OrderPath, "k", "{}")))
		parks := idempotent(t, b, &testbed.Parking{}, mustNotRun(t))
		requireReplayed(t, first, testbed.Do(parks, withKey(t, testbed.OrderPath, "k", "{}")))
	})
}

func TestIdempotencyKey_MissingOrMalformed(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := idempotent(t, b, nil, mustNotRun(t), httplock.RequireIdempotencyKey())
	testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "{}"), http.StatusBadRequest, "idempotency-key-missing", false)
	testbed.RequireProblem(t, testbed.Do(h, withKey(t, testbed.OrderPath, "", "{}")), http.StatusBadRequest, "idempotency-key-malformed", false)
	require.Empty(t, redistest.Keys(t, b.Redis, b.Prefix), "Redis was not asked")

	// Where it is the lock's key too, it must be there.
	own := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), httplock.IdempotencyKey, remembering(newIdempotency(t, b)))(http.HandlerFunc(ok))
	testbed.RequireProblem(t, testbed.Call(t, own, http.MethodPost, "/", ""), http.StatusBadRequest, "idempotency-key-missing", false)
	requireReplayed(t, testbed.Do(own, withKey(t, "/", "k", "")), testbed.Do(own, withKey(t, "/", "k", "")))
	alone := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), httplock.IdempotencyKey)(mustNotRun(t))
	testbed.RequireProblem(t, testbed.Do(alone, withKey(t, "/", "k", "")), http.StatusInternalServerError, "internal", false)
}

func TestIdempotencyKey_IsIgnoredOnSafeMethods(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	var runs atomic.Int64
	h := guarded(b.Locker.Guard(core.RejectConflicts), count(&runs, http.StatusOK), httplock.WithLockedSafeMethods(),
		httplock.WithIdempotency(newIdempotency(t, b), httplock.RequireIdempotencyKey()))
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		for range 2 {
			r := testbed.Request(t, method, testbed.OrderPath, "")
			r.Header.Set("Idempotency-Key", "k")
			require.NotContains(t, testbed.Do(h, r).Header, "Idempotent-Replayed")
		}
	}
	require.EqualValues(t, 6, runs.Load())
}

func TestIdempotencyKey_BelongsToARouteAndAPrincipal(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	var runs atomic.Int64
	who := func(r *http.Request) (string, error) {
		switch name := r.Header.Get("Authorization"); name {
		case "stranger":
			return "", fmt.Errorf("who: %w", httplock.ErrForbidden)
		case "broken":
			return "", errors.New("broken")
		default:
			return name, nil
		}
	}
	mux := http.NewServeMux()
	guard := b.Locker.Guard(core.RejectConflicts)
	store := newIdempotency(t, b)
	for _, pattern := range []string{"POST /orders/{id}", "PUT /orders/{id}", "POST /orders/{id}/refund"} {
		mux.Handle(pattern, httplock.PerKey(guard, orderKey, httplock.WithIdempotency(store), httplock.WithPrincipal(who))(count(&runs, http.StatusOK)))
	}
	ask := func(method, target, from string) testbed.Answer {
		r := testbed.Request(t, method, target, "{}")
		r.Header.Set("Idempotency-Key", "k")
		if from != "" {
			r.Header.Set("Authorization", from)
		}
		return testbed.Do(mux, r)
	}
	for i, test := range []struct{ method, target, from string }{
		{"POST", testbed.OrderPath, "ann"},
		{"POST", testbed.OrderPath, "bob"},
		{"POST", testbed.OrderPath, ""},
		{"PUT", testbed.OrderPath, "ann"},
		{"POST", testbed.OrderPath + "/refund", "ann"},
	} {
		first := ask(test.method, test.target, test.from)
		require.Equal(t, fmt.Sprint("run ", i+1), first.Body)
		requireReplayed(t, first, ask(test.method, test.target, test.from))
	}
	testbed.RequireProblem(t, ask("POST", testbed.OrderPath, "stranger"), http.StatusForbidden, "forbidden", false)
	testbed.RequireProblem(t, ask("POST", testbed.OrderPath, "broken"), http.StatusInternalServerError, "internal", false)
	require.EqualValues(t, 5, runs.Load())

	// With its own key as the lock's, nobody's keys are in the way of another's.
	started, finish := make(chan struct{}, 2), make(chan struct{})
	own := httplock.PerKey(guard, httplock.IdempotencyKey, httplock.WithIdempotency(store), httplock.WithPrincipal(who))(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { started <- struct{}{}; <-finish }))
	var both sync.WaitGroup
	for _, from := range []string{"ann", "bob"} {
		r := withKey(t, "/", "k", "")
		r.Header.Set("Authorization", from)
		both.Go(func() { assert.Equal(t, http.StatusOK, testbed.Do(own, r).Status) })
	}
	<-started
	<-started
	close(finish)
	both.Wait()
}

// Only what excludes one another is compared: a request for another lock is another one,
// even if its target and body are the same.
func TestIdempotency_LocksKeyIsPartOfThePayload(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	var runs atomic.Int64
	byTenant := func(r *http.Request) (string, error) { return "tenant:" + r.Header.Get("X-Tenant"), nil }
	h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), byTenant, remembering(newIdempotency(t, b)))(count(&runs, http.StatusOK))
	r := withKey(t, "/", "k", "{}")
	r.Header.Set("X-Tenant", "a")
	require.Equal(t, http.StatusOK, testbed.Do(h, r).Status)
	r = withKey(t, "/", "k", "{}")
	r.Header.Set("X-Tenant", "b")
	testbed.RequireProblem(t, testbed.Do(h, r), http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	require.EqualValues(t, 1, runs.Load())
}

func TestIdempotency_BodiesTooLargeToCompareAreRefused(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	h := guarded(b.Locker.Guard(core.RejectConflicts), ok, httplock.WithMaxBody(10), remembering(newIdempotency(t, b)))
	require.Equal(t, http.StatusOK, testbed.Do(h, withKey(t, testbed.OrderPath, "k", "0123456789")).Status)
	for _, length := range []int64{11, -1} {
		r := withKey(t, testbed.OrderPath, "k2", "0123456789a")
		r.ContentLength = length
		resp := testbed.Do(h, r)
		testbed.RequireProblem(t, resp, http.StatusRequestEntityTooLarge, "body-too-large", false)
		require.Contains(t, resp.Body, "Idempotency-Key")
	}
	require.Equal(t, http.StatusOK, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, "0123456789a").Status, "without a key it runs as ever")
}
