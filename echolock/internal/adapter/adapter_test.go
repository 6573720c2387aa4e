package adapter_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const orderPath = base + "/orders/" + testbed.Secret

var orderKey = httplock.Param("order:", "id")

func ok(x exchange) error { return x.String(http.StatusOK, "ok") }

func mustNotRun(t *testing.T) func(exchange) error {
	t.Helper()
	return func(exchange) error {
		t.Error("the handler ran")
		return nil
	}
}

// each runs a test under both versions.
func each(t *testing.T, test func(t *testing.T, v version)) {
	t.Helper()
	for _, v := range versions {
		t.Run(v.name, func(t *testing.T) { test(t, v) })
	}
}

// onBoth runs a test under both versions, on the embedded Redis and on a real one.
func onBoth(t *testing.T, test func(t *testing.T, v version, env *redistest.Env)) {
	t.Helper()
	t.Parallel()
	each(t, func(t *testing.T, v version) {
		redistest.Each(t, func(t *testing.T, env *redistest.Env) { test(t, v, env) })
	})
}

func TestReturnErrors(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := testbed.New(t, env, core.WithTTL(time.Second))
		guard := b.Locker.Guard(core.RejectConflicts)
		var last error
		start := func(key httplock.KeyFunc, handler func(exchange) error, options ...httplock.Option) http.Handler {
			return v.start(service{
				guard: guard, key: key, errors: true, options: options, handler: handler,
				onError: func(err error) { last = err },
			})
		}
		release := b.Hold(t)
		resp := testbed.Call(t, start(orderKey, mustNotRun(t)), http.MethodPost, orderPath, "")
		require.Equal(t, http.StatusConflict, resp.Status)
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		require.NotContains(t, resp.Body, testbed.Secret)
		require.NotContains(t, last.Error(), testbed.Secret)
		var doc struct{ Type string }
		require.NoError(t, json.Unmarshal([]byte(resp.Body), &doc), resp.Body)
		require.True(t, strings.HasSuffix(doc.Type, "problems.md#conflict"), resp.Body)
		require.ErrorIs(t, last, core.ErrConflict)
		require.Equal(t, http.StatusConflict, v.status(last))
		var problem *httplock.Problem
		require.ErrorAs(t, last, &problem)
		require.Positive(t, problem.RetryAfter)

		last = nil
		teapot := httplock.WithConflictHandler(func(w http.ResponseWriter, _ *http.Request, p *httplock.Problem) {
			_, is := p.Framework.(seen)
			assert.True(t, is, "echo's context")
			w.WriteHeader(http.StatusTeapot)
		})
		require.Equal(t, http.StatusTeapot, testbed.Call(t, start(orderKey, mustNotRun(t), teapot), http.MethodPost, orderPath, "").Status)
		require.NoError(t, last, "an option has handled it")
		release()

		resp = testbed.Call(t, start(httplock.Query("", "q"), mustNotRun(t)), http.MethodPost, orderPath, "")
		require.Equal(t, http.StatusBadRequest, resp.Status)
		require.Equal(t, http.StatusBadRequest, v.status(last))

		mine := errors.New("mine")
		lose := func(x exchange) error {
			b.LoseLeases(t)
			<-x.Request().Context().Done()
			return mine
		}
		resp = testbed.Call(t, start(orderKey, lose), http.MethodPost, orderPath, "")
		require.Equal(t, http.StatusInternalServerError, resp.Status)
		require.Contains(t, resp.Body, "outcome-unknown")
		require.ErrorIs(t, last, core.ErrLeaseLost)
		require.ErrorIs(t, last, mine)

		last = nil
		require.Equal(t, "ok", testbed.Call(t, start(orderKey, ok), http.MethodPost, orderPath, "").Body)
		require.NoError(t, last)
	})
}

func TestPerKey_UnmatchedRoutesPass(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := testbed.New(t, redistest.Embedded(t))
		b.HoldKey(t, "k")
		all := func(*http.Request) (string, error) { return "k", nil }
		for _, at := range []string{"route", "group", "use"} {
			for _, locked := range []bool{false, true} {
				s := service{
					at: at, guard: b.Locker.Guard(core.RejectConflicts), key: all, handler: mustNotRun(t),
					onError: func(err error) { assert.NotErrorIs(t, err, core.ErrConflict, "a refusal is a response, and no error") },
				}
				if locked {
					s.options = []httplock.Option{httplock.WithLockedSafeMethods()}
				} else {
					s.handler = ok
				}
				h := v.start(s)
				for range 2 { // what was learnt of a route is right the second time
					for _, path := range []string{"/nowhere", base, base + "/nowhere/at/all", base + "/orders/1/refund"} {
						require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodPost, path, "").Status, path)
						require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodGet, path, "").Status, path)
					}
					if at == "group" { // whose middleware has echo answer so
						require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodDelete, orderPath, "").Status)
						require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodOptions, orderPath, "").Status)
					} else {
						require.Equal(t, http.StatusMethodNotAllowed, testbed.Call(t, h, http.MethodDelete, orderPath, "").Status)
						require.Equal(t, http.StatusNoContent, testbed.Call(t, h, http.MethodOptions, orderPath, "").Status)
					}
					testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, orderPath, ""), http.StatusConflict, "conflict", true)
					testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, base+"/files/a/b", ""), http.StatusConflict, "conflict", true)
					if locked {
						testbed.RequireProblem(t, testbed.Call(t, h, http.MethodGet, orderPath, ""), http.StatusConflict, "conflict", true)
						resp := testbed.Call(t, h, http.MethodHead, orderPath, "")
						require.Equal(t, http.StatusConflict, resp.Status)
						require.Empty(t, resp.Body)
					} else {
						require.Equal(t, "ok", testbed.Call(t, h, http.MethodGet, orderPath, "").Body)
						require.Equal(t, http.StatusOK, testbed.Call(t, h, http.MethodHead, orderPath, "").Status)
					}
				}
			}
		}
	})
}

// A group with middleware has echo answer what it does not match at the same path.
func TestPerKey_CatchAllRouteOfAGroupIsGuarded(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		h := v.start(service{
			at: "group", more: []string{"/*"}, guard: testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts),
			key: func(*http.Request) (string, error) { return "", errors.New("no key") }, handler: mustNotRun(t),
		})
		for range 2 {
			require.Equal(t, http.StatusInternalServerError, testbed.Call(t, h, http.MethodPost, base+"/x", "").Status)
			require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodPost, base, "").Status)
		}
		require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodDelete, base+"/x", "").Status)
	})
}

func TestGuard_InFrontOfTheRouterFailsClosed(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := testbed.New(t, redistest.Embedded(t))
		var log bytes.Buffer
		logger := httplock.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
		h := v.start(service{
			at: "pre", guard: b.Locker.Guard(core.RejectConflicts), key: orderKey,
			options: []httplock.Option{logger}, handler: mustNotRun(t),
		})
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, orderPath, ""), http.StatusInternalServerError, "internal", false)
		require.Contains(t, log.String(), "the middleware is in e.Pre")
		require.NotContains(t, log.String(), testbed.Secret)
		if v.name == "v4" {
			require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodPost, "/nowhere", "").Status)
		}

		h = v.start(service{at: "pre", routes: routeTable{}, handler: mustNotRun(t)})
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, orderPath, ""), http.StatusInternalServerError, "misconfigured", false)
	})
}

func TestFromConfig_RefusesRoutesWithoutAGuard(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		h := v.start(service{at: "use", handler: mustNotRun(t), routes: routeTable{"POST /api/orders/{id}": {}, "GET /api/orders/{id}": {}}})
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			testbed.RequireProblem(t, testbed.Call(t, h, method, orderPath, ""), http.StatusInternalServerError, "misconfigured", false)
		}
		require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodPost, "/nowhere", "").Status)
	})
}

// routeTable is httplock.Routes by method and normal pattern.
type routeTable map[string]httplock.Route

func (t routeTable) Route(method, pattern string) (httplock.Route, bool) {
	route, has := t[method+" "+httplock.NormalizePattern(pattern)]
	return route, has
}

func TestFromConfig_GuardsWhatHasARoute(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := testbed.New(t, env)
		b.Hold(t)
		m, err := httplock.New(b.Locker.Guard(core.RejectConflicts))
		require.NoError(t, err)
		for _, at := range []string{"use", "group", "route"} {
			h := v.start(service{at: at, routes: routeTable{
				"POST /api/orders/{id}":     {Middleware: m, Key: httplock.Param("order:", "id")},
				"POST /api/orders/{id}/pay": {Middleware: m},
				"POST /api/files/*":         {Middleware: m, Key: httplock.Param("", "*")},
			}, handler: func(x exchange) error {
				lease, held := x.lease()
				if !held {
					return x.String(http.StatusOK, "none")
				}
				return x.String(http.StatusOK, lease.Key())
			}})
			testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, orderPath, ""), http.StatusConflict, "conflict", true)
			require.Equal(t, "order:42", testbed.Call(t, h, http.MethodPost, base+"/orders/42", "").Body)
			require.Equal(t, "a/b", testbed.Call(t, h, http.MethodPost, base+"/files/a/b", "").Body)
			require.Equal(t, "none", testbed.Call(t, h, http.MethodPut, orderPath, "").Body)
			require.Equal(t, http.StatusNotFound, testbed.Call(t, h, http.MethodPost, "/nowhere", "").Status)
			testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, base+"/orders/1/pay", ""), http.StatusInternalServerError, "internal", false)
		}
	})
}

func TestKeys(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := testbed.New(t, redistest.Embedded(t))
		guard := b.Locker.Guard(core.RejectConflicts)
		plain := func(r *http.Request) (string, error) {
			return r.Pattern + "~" + r.PathValue("id") + r.PathValue("*"), nil
		}
		for name, test := range map[string]struct {
			key        httplock.KeyFunc
			path, want string // want: the key, or a problem
		}{
			"param, slash":     {httplock.Param("k:", "id"), "/orders/a%2Fb", "k:a/b"},
			"param, misnamed":  {httplock.Param("k:", "uid"), "/orders/42", "internal"},
			"wildcard":         {httplock.Param("k:", "*"), "/files/a/b", "k:a/b"},
			"wildcard, empty":  {httplock.Param("k:", "*"), "/files/", "bad-key"},
			"wildcard, named":  {httplock.Param("k:", "rest"), "/named/a/b", "k:a/b"},
			"net/http's":       {plain, "/orders/a%2Fb", "/api/orders/:id~a/b"},
			"net/http's, tree": {plain, "/files/x/y", "/api/files/*~x/y"},
			"func": {v.of(func(c seen) (string, error) {
				body, err := io.ReadAll(c.Request().Body)
				c.Request().Body = io.NopCloser(bytes.NewReader(body))
				return c.Path() + c.Param("id") + string(body[:4]), err
			}), "/orders/1", `/api/orders/:id1{"o"`},
			"func, ours":     {v.of(func(seen) (string, error) { return "", errors.New(testbed.Secret) }), "/orders/1", "internal"},
			"func, client's": {v.of(func(seen) (string, error) { return "", httplock.BadKey(nil) }), "/orders/1", "bad-key"},
		} {
			t.Run(name, func(t *testing.T) {
				const body = `{"o":{"id":7}}`
				around := func(c seen, next func() error) error {
					before := c.Request()
					err := next()
					assert.Same(t, before, c.Request())
					return err
				}
				h := v.start(service{guard: guard, key: test.key, around: around, handler: func(x exchange) error {
					got, err := io.ReadAll(x.Request().Body)
					assert.NoError(t, err)
					assert.JSONEq(t, body, string(got), "the handler sees the body")
					lease, _ := x.lease()
					return x.String(http.StatusOK, lease.Key())
				}})
				resp := testbed.Do(h, testbed.Request(t, http.MethodPost, base+test.path, body))
				if status, is := map[string]int{"internal": 500, "bad-key": 400}[test.want]; is {
					testbed.RequireProblem(t, resp, status, test.want, false)
					return
				}
				require.Equal(t, test.want, resp.Body)
			})
		}
		_, err := v.of(func(seen) (string, error) { return "k", nil })(testbed.Request(t, http.MethodPost, "/", ""))
		require.ErrorContains(t, err, "this package's middleware only")
	})
}

func TestKeys_EachConstructorIsItsNames(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		guard := testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts)
		for name, want := range map[string][2]string{ // the id, and the key
			"param": {"1", "k:1"}, "query": {"1", "k:2"}, "header": {"1", "k:3"}, "json": {"1", "k:4"}, "int": {"+042", "k:42"}, "none": {"1", ""},
			"form": {"1", "k:5"}, "uuid": {"F81D4FAE7DEC11D0A76500A0C91E6BF6", "k:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"},
		} {
			h := v.start(service{guard: guard, key: v.keys[name], handler: func(x exchange) error {
				lease, _ := x.lease()
				return x.String(http.StatusOK, lease.Key())
			}})
			r := testbed.Request(t, http.MethodPost, base+"/orders/"+want[0]+"?id=2", `{"id":4}`)
			if name == "form" {
				r = testbed.Request(t, http.MethodPost, orderPath, "f=5")
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			r.Header.Set("X-Id", "3")
			require.Equal(t, want[1], testbed.Do(h, r).Body, name)
		}
	})
}
