package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
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

func refuses(t *fixture) {
	b := t.setUp()
	for name, policy := range map[string]core.ConflictPolicy{
		"reject":                nil,
		"retry used up":         retry.Policy{MaxWait: 10 * time.Millisecond},
		"retry, then reject":    retry.Policy{MaxAttempts: 2, Initial: time.Millisecond},
		"a policy's own answer": testbed.Failing{Err: fmt.Errorf("policy: %w", core.ErrConflict)},
	} {
		release := b.Hold(t)
		reached, handler := false, Handler(t.mustNotRun)
		s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error { return handler(w, r) },
			lock(b, policy), Middleware(func(c Context) error {
				reached = true
				return c.Next()
			})))
		testbed.RequireProblem(t, t.post(s, "body"), http.StatusConflict, "conflict", true)
		require.False(t, reached, "%s: middleware behind the guard ran", name)
		release()
		b.RequireFree(t) // a call that has just left may be handed the key for an instant
		handler = ok
		t.requireOK(t.post(s, "body"))
	}
}

func namesTheRoute(t *fixture) {
	b := t.setUp()
	b.Hold(t)
	s := t.serve(orders(t.mustNotRun, lock(b, nil)))
	t.post(s, "")
	name := await(t, b.Conflicts, "the conflict").Name
	method, pattern, _ := strings.Cut(name, " ")
	require.Equal(t, http.MethodPost, method)
	require.True(t, strings.HasPrefix(pattern, "/orders/"), name)
	require.NotContains(t, name, testbed.Secret, "the name is of the route, not of the request")
}

func unavailable(t *fixture) {
	b, proxy := t.breakable()
	for name, policy := range map[string]core.ConflictPolicy{"reject": nil, "wait": testbed.Patient{}, "park": &testbed.Parking{}} {
		handler := Handler(t.mustNotRun)
		s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error { return handler(w, r) }, lock(b, policy)))
		proxy.Refuse(true)
		testbed.RequireProblem(t, t.post(s, "body"), http.StatusServiceUnavailable, "unavailable", true)
		proxy.Refuse(false)
		handler = ok
		t.eventually(func() bool { return t.post(s, "body").Status == http.StatusOK }, name+": Redis is back")
	}
}

// silentRedis: requests for a free key that wait for Redis's answer behind one another are
// told that there is none, and not that the key is held.
func silentRedis(t *fixture) {
	const atOnce, silence = 20, 300 * time.Millisecond
	proxy := redistest.NewProxy(t, t.env.Addr)
	rdb := redistest.Client(t, &redis.Options{Addr: proxy.Addr, MaxRetries: -1, DialerRetries: 1, ReadTimeout: silence, DialTimeout: silence})
	b := testbed.On(t, rdb, t.env.Prefix)
	wait := 50 * time.Millisecond
	for name, c := range map[string]struct {
		policy core.ConflictPolicy
		away   func()
	}{
		"retry, swallowing":            {retry.Policy{MaxWait: wait}, func() { proxy.Blackhole(redistest.Requests) }},
		"retry, refusing":              {retry.Policy{MaxWait: wait}, func() { proxy.Refuse(true) }},
		"retry, then park, swallowing": {retry.Policy{MaxWait: wait, Then: &testbed.Parking{}}, func() { proxy.Blackhole(redistest.Requests) }},
		"retry, then park, refusing":   {retry.Policy{MaxWait: wait, Then: &testbed.Parking{}}, func() { proxy.Refuse(true) }},
	} {
		handler := Handler(t.mustNotRun)
		s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error { return handler(w, r) }, lock(b, c.policy)))
		c.away()
		answers := t.atOnce(s, atOnce, t.posts(s, "body"))
		for range atOnce {
			testbed.RequireProblem(t, <-answers, http.StatusServiceUnavailable, "unavailable", true)
		}
		handler = ok
		proxy.Blackhole(0)
		proxy.Refuse(false)
		proxy.Cut()
		t.eventually(func() bool { return t.post(s, "body").Status == http.StatusOK }, name+": Redis is back")
	}
}

func keyErrors(t *fixture) {
	b, proxy := t.breakable()
	proxy.Refuse(true) // Redis has no part in this
	for name, test := range map[string]struct {
		key    string
		err    error
		status int
		kind   string
	}{
		"client's fault":           {"", httplock.BadKey(errors.New(testbed.Secret)), http.StatusBadRequest, "bad-key"},
		"client's fault, wrapped":  {"", fmt.Errorf("key: %w", httplock.BadKey(nil)), http.StatusBadRequest, "bad-key"},
		"invalid, by the function": {"", fmt.Errorf("key: %w", core.ErrInvalidKey), http.StatusBadRequest, "bad-key"},
		"empty":                    {"", nil, http.StatusBadRequest, "bad-key"},
		"too long":                 {strings.Repeat(testbed.Secret, 100), nil, http.StatusBadRequest, "bad-key"},
		"control bytes":            {testbed.Secret + "\n", nil, http.StatusBadRequest, "bad-key"},
		"ours":                     {"", errors.New(testbed.Secret), http.StatusInternalServerError, "internal"},
	} {
		said := &testbed.Log{}
		key := func(*http.Request) (string, error) { return test.key, test.err }
		s := t.serve(orders(t.mustNotRun, Lock{b.Locker.Guard(core.RejectConflicts), key, []httplock.Option{httplock.WithLogger(said.Logger())}}))
		testbed.RequireProblem(t, t.post(s, ""), test.status, test.kind, false)
		if test.kind == "internal" {
			require.Contains(t, said.String(), test.err.Error(), "%s: our faults are logged", name)
		} else {
			require.Empty(t, said.String(), "%s: the client's are not", name)
		}
	}
}

// keyHelpers: package httplock's key functions find what the framework's router
// found, and leave the body to the handler.
func keyHelpers(t *fixture) {
	b := t.setUp()
	const body = `{"order": {"id": "` + testbed.Secret + `"}}`
	for name, key := range map[string]httplock.KeyFunc{
		"param":  httplock.Param("order:", "id"),
		"query":  httplock.Query("order:", "q"),
		"header": httplock.Header("order:", "X-Order"),
		"JSON":   httplock.JSONField("order:", "order.id"),
		"the pattern": func(r *http.Request) (string, error) {
			if !strings.Contains(r.Pattern, "/orders/") || strings.Contains(r.Pattern, testbed.Secret) {
				return "", fmt.Errorf("pattern %q", r.Pattern)
			}
			return testbed.OrderKey, nil
		},
	} {
		s := t.serve(orders(func(w http.ResponseWriter, r *http.Request) error {
			lease, held := core.LeaseFrom(r.Context())
			if assert.True(t, held) {
				assert.Equal(t, testbed.OrderKey, lease.Key(), name)
			}
			assert.JSONEq(t, body, readTwice(t, r), name)
			return ok(w, r)
		}, Lock{b.Locker.Guard(core.RejectConflicts), key, nil}))
		r := t.request(s, http.MethodPost, testbed.OrderPath+"?q="+testbed.Secret, body)
		r.Header.Set("X-Order", testbed.Secret)
		t.requireOK(t.do(s, r))
	}
}

func mistakesPanic(t *fixture) {
	b := t.setUp()
	guard := b.Locker.Guard(core.RejectConflicts)
	queue, err := delayqueue.New(b.Redis, "later", delayqueue.WithPrefix(b.Prefix))
	require.NoError(t, err)
	parking := b.Locker.Guard(delayqueue.Policy(queue))
	mistakes := map[string]Lock{
		"no guard":         {nil, orderKey, nil},
		"bad guard":        {b.Locker.Guard(core.RejectConflicts, core.LeaseTTL(-1)), orderKey, nil},
		"no key":           {guard, nil, nil},
		"bad option":       {guard, orderKey, []httplock.Option{httplock.WithMaxBody(-1)}},
		"nil option":       {guard, orderKey, []httplock.Option{nil}},
		"parks for nobody": {parking, orderKey, nil},
	}
	for _, name := range slices.Sorted(maps.Keys(mistakes)) { // the first that is let through is always the same one
		l := mistakes[name]
		err, is := panicOf(func() { t.adapter.New(App{Routes: []Route{order(http.MethodPost, t.mustNotRun, l)}}) }).(error)
		require.True(t, is, "%s: registration panics with an error", name)
		require.ErrorIs(t, err, core.ErrInvalidOption, name)
		if _, made := httplock.New(l.Guard, l.Options...); made != nil {
			require.Equal(t, made.Error(), err.Error(), name)
		} else {
			require.ErrorContains(t, err, "the key function is nil", name)
		}
	}
}

// panicOf is what f panics with. Nil: it does not.
func panicOf(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

// refusal is a request that does not get its handler's response. The key is held unless the handler loses it.
type refusal struct {
	name    string
	policy  core.ConflictPolicy
	opts    []httplock.Option
	key     httplock.KeyFunc // nil: the order's
	method  string           // empty: POST
	header  http.Header
	body    string
	chunked bool
	timeout time.Duration // the server's; zero: none
	lost    bool          // the handler runs, and loses its lease
	status  int
	kind    httplock.OutcomeKind // what an observer is told; empty: there is none
}

func refusals(store *idempotency.Store) []refusal {
	failing := func(err error) core.ConflictPolicy { return testbed.Failing{Err: err} }
	key := func(key string, err error) httplock.KeyFunc {
		return func(*http.Request) (string, error) { return key, err }
	}
	opts := func(o ...httplock.Option) []httplock.Option { return o }
	tickets := httplock.WithStatusPath("/tickets/")
	park := &testbed.Parking{}
	nobody := httplock.WithPrincipal(func(*http.Request) (string, error) { return "", httplock.ErrForbidden })
	visitor := sentBy("")
	return []refusal{
		{name: "conflict", status: 409, kind: httplock.OutcomeConflict},
		{name: "not waited, as asked", policy: waitsLong(nil), opts: opts(httplock.WithPrefer()), header: http.Header{"Prefer": {"wait=0"}}, status: 409, kind: httplock.OutcomeConflict},
		{name: "waited in vain", policy: retry.Policy{MaxWait: 10 * time.Millisecond}, body: "x", status: 409, kind: httplock.OutcomeConflict},
		{name: "parked", policy: park, opts: opts(tickets), body: "x", status: 202, kind: httplock.OutcomeParked},
		{name: "parked, as asked", policy: park, opts: opts(tickets), header: http.Header{"Prefer": {"respond-async"}}, status: 202, kind: httplock.OutcomeParked},
		{name: "parked, without a status path", policy: park, status: 202, kind: httplock.OutcomeParked},
		{name: "queue full for the key", policy: failing(delayqueue.ErrKeyFull), status: 429, kind: httplock.OutcomeShed},
		{name: "queue full", policy: failing(delayqueue.ErrQueueFull), status: 503, kind: httplock.OutcomeShed},
		{name: "body over the cap", policy: park, opts: opts(httplock.WithMaxBody(10)), body: text(11), status: 413, kind: httplock.OutcomeRefused},
		{name: "body over the cap, chunked", policy: park, opts: opts(httplock.WithMaxBody(10)), body: text(11), chunked: true, status: 413, kind: httplock.OutcomeRefused},
		{name: "body over the queue's cap", policy: failing(delayqueue.ErrPayloadTooLarge), status: 413, kind: httplock.OutcomeRefused},
		{name: "credentials without a principal", policy: park, header: http.Header{"Authorization": {"Bearer x"}}, status: 409, kind: httplock.OutcomeConflict},
		{name: "an API key without a principal", policy: park, header: http.Header{"X-Api-Key": {"x"}}, status: 409, kind: httplock.OutcomeConflict},
		{
			name: "a header of the service's own without a principal", policy: park, opts: opts(httplock.WithCredentialHeaders("X-Pass")),
			header: http.Header{"X-Pass": {"x"}}, status: 409, kind: httplock.OutcomeConflict,
		},
		{name: "an API key, and the principal function knows nobody", policy: park, opts: opts(visitor), header: http.Header{"X-Api-Key": {"x"}}, status: 409, kind: httplock.OutcomeConflict},
		{name: "not to be parked", policy: park, opts: opts(nobody), status: 403, kind: httplock.OutcomeRefused},
		{name: "upgrade", policy: park, header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}, status: 409, kind: httplock.OutcomeConflict},
		{name: "redis away", policy: failing(core.ErrUnavailable), status: 503, kind: httplock.OutcomeUnavailable},
		{name: "locker closed", policy: failing(core.ErrClosed), status: 503, kind: httplock.OutcomeUnavailable},
		{name: "policy failed", policy: failing(errors.New(testbed.Secret)), status: 500, kind: httplock.OutcomeError},
		{name: "server's deadline", policy: testbed.Patient{}, timeout: 10 * time.Millisecond, status: 503, kind: httplock.OutcomeDeadline},
		{name: "bad key", key: key("", httplock.BadKey(nil)), status: 400, kind: httplock.OutcomeRefused},
		{name: "long key", key: key(strings.Repeat(testbed.Secret, 100), nil), status: 400, kind: httplock.OutcomeRefused},
		{name: "key function failed", key: key("", errors.New(testbed.Secret)), status: 500, kind: httplock.OutcomeError},
		{name: "key in a body that is no JSON", key: httplock.JSONField("k:", "f"), body: "{", status: 400, kind: httplock.OutcomeRefused},
		{name: "key in a body that is too large", key: httplock.JSONField("k:", "f"), body: text(httplock.MaxJSONBody + 1), status: 413, kind: httplock.OutcomeRefused},
		{name: "key of a parameter that the route lacks", key: httplock.Param("k:", "uid"), status: 500, kind: httplock.OutcomeError},
		{name: "Idempotency-Key missing", opts: opts(httplock.WithIdempotency(store, httplock.RequireIdempotencyKey()), httplock.WithAnonymous()), status: 400, kind: httplock.OutcomeRefused},
		{name: "Idempotency-Key malformed", opts: opts(httplock.WithIdempotency(store), httplock.WithAnonymous()), header: http.Header{"Idempotency-Key": {"a b"}}, status: 400, kind: httplock.OutcomeRefused},
		{
			name: "Idempotency-Key, and credentials without a principal", opts: opts(httplock.WithIdempotency(store), visitor),
			header: http.Header{"Idempotency-Key": {"a"}, "Authorization": {"Bearer x"}}, status: 500, kind: httplock.OutcomeError,
		},
		{
			name: "Idempotency-Key, and an API key without a principal", opts: opts(httplock.WithIdempotency(store), visitor),
			header: http.Header{"Idempotency-Key": {"a"}, "X-Api-Key": {"x"}}, status: 500, kind: httplock.OutcomeError,
		},
		{name: "safe method", method: http.MethodGet, opts: opts(httplock.WithLockedSafeMethods()), status: 409, kind: httplock.OutcomeConflict},
		{name: "HEAD", method: http.MethodHead, opts: opts(httplock.WithLockedSafeMethods()), status: 409, kind: httplock.OutcomeConflict},
		{name: "outcome unknown, by Exchange.Written", lost: true, status: 500, kind: httplock.OutcomeLost},
	}
}

// sameBytes compares status, headers and body with those of package httplock. What
// middleware in front has said of a response of its own is taken back in both.
func sameBytes(t *fixture) {
	b := t.setUp(shortLease())
	refused := t.refusing(b)
	for _, x := range refusals(t.store(b)) {
		release := func() {}
		if !x.lost {
			release = b.Hold(t)
		}
		got, want := refused(t.adapter, x), refused(NetHTTP(), x)
		release()
		assert.Equal(t, x.status, got.Status, x.name)
		assert.Equal(t, want, got, x.name)
	}
}

// refusing starts a server for all refusals. It returns a function for the answer to x, without what differs from one time to the next.
func (t *fixture) refusing(b *testbed.Fixture) (refused func(a Adapter, x refusal) testbed.Answer) {
	t.Helper()
	var engine atomic.Pointer[http.Handler]
	said := &testbed.Log{}
	s := t.start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*engine.Load()).ServeHTTP(w, r) }),
		func(said string) { assert.Empty(t, said, "the server's log") })
	outer := Middleware(func(c Context) error {
		c.Writer().Header().Set("X-Outer", "stays")
		c.Writer().Header().Set("Etag", `"goes"`)
		return c.Next()
	})
	return func(a Adapter, x refusal) testbed.Answer {
		l := lock(b, x.policy, append([]httplock.Option{httplock.WithLogger(said.Logger())}, x.opts...)...)
		if x.key != nil {
			l.Key = x.key
		}
		handler := Handler(t.mustNotRun)
		if x.lost {
			handler = func(_ http.ResponseWriter, r *http.Request) error {
				t.loseLease(b, r)
				return nil
			}
		}
		method := cmp.Or(x.method, http.MethodPost)
		routed := a.New(App{Routes: []Route{order(method, handler, outer, l)}})
		h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if x.timeout > 0 {
				ctx, cancel := context.WithTimeout(r.Context(), x.timeout)
				defer cancel()
				r = r.WithContext(ctx)
			}
			routed.ServeHTTP(w, r)
		}))
		engine.Store(&h)
		r := t.request(s, method, testbed.OrderPath, x.body)
		maps.Copy(r.Header, x.header)
		if x.chunked {
			r.ContentLength = -1
		}
		return stable(t, t.do(s, r))
	}
}

var retryAfterMS = regexp.MustCompile(`"retry_after_ms":\d+`)

// stable is an answer without what is random or the time in it.
func stable(t *fixture, resp testbed.Answer) testbed.Answer {
	t.Helper()
	if length := resp.Header.Get("Content-Length"); length != "" && resp.Body != "" {
		require.Equal(t, strconv.Itoa(len(resp.Body)), length)
		resp.Header.Set("Content-Length", "that of the body")
	}
	resp.Header.Del("Date")
	// How long it is to the end of the holder's lease is in a 409 only.
	if slices.Contains([]int{409, 429, 503}, resp.Status) && resp.Header.Get("Retry-After") != "" {
		resp.Header.Set("Retry-After", "seconds")
	}
	resp.Body = retryAfterMS.ReplaceAllString(resp.Body, `"retry_after_ms":0`)
	return resp
}
