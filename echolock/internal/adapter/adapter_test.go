package adapter_test

import (
	"bytes"
	"context"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

func TestHandlerRunsUnderItsLease(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := setup(t, env)
		var before, during, after *http.Request
		h := v.start(service{
			guard: core.NewGuard(b.locker, nil), key: orderKey,
			around: func(c seen, next func() error) error {
				before = c.Request()
				err := next()
				after = c.Request()
				return err
			},
			handler: func(x exchange) error {
				during = x.Request()
				lease, held := x.lease()
				if assert.True(t, held) {
					assert.Equal(t, "order:"+secret, lease.Key())
				}
				return ok(x)
			},
		})
		require.Equal(t, "ok", call(t, h, http.MethodPost, orderPath).body)
		require.Same(t, before, after, "the request is restored")
		require.NotSame(t, before, during)
		require.ErrorIs(t, during.Context().Err(), context.Canceled, "the lease is over")
		require.NoError(t, after.Context().Err())
		b.requireFree(t)
	})
}

func TestRefusalIsAResponseAndNoError(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, "order:"+secret)
		for _, at := range []string{"route", "group", "use"} {
			h := v.start(service{
				at: at, guard: core.NewGuard(b.locker, nil), key: orderKey, handler: mustNotRun(t),
				around: func(_ seen, next func() error) error {
					err := next()
					assert.NoError(t, err)
					return err
				},
			})
			requireProblem(t, call(t, h, http.MethodPost, orderPath), http.StatusConflict, "conflict")
			require.Equal(t, "POST /api/orders/:id", (<-b.conflict).Name)
			resp := call(t, h, http.MethodPost, base+"/orders/"+secret+"/pay")
			requireProblem(t, resp, http.StatusConflict, "conflict")
			<-b.conflict
		}
	})
}

func TestHandlersErrorIsReturnedUnchangedAfterTheRelease(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := setup(t, env)
		failed := v.failure(http.StatusTeapot)
		handled := 0
		h := v.start(service{
			guard: core.NewGuard(b.locker, nil), key: orderKey,
			around: func(_ seen, next func() error) error {
				err := next()
				assert.Same(t, failed, err)
				b.requireFree(t)
				return err
			},
			onError: func(err error) {
				handled++
				assert.Same(t, failed, err)
			},
			handler: func(exchange) error { return failed },
		})
		resp := call(t, h, http.MethodPost, orderPath)
		require.Equal(t, http.StatusTeapot, resp.status)
		require.JSONEq(t, `{"message":"failed"}`, resp.body)
		require.Equal(t, 1, handled)
	})
}

func TestReturnErrors(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := setup(t, env, core.WithTTL(time.Second))
		guard := core.NewGuard(b.locker, nil)
		var last error
		start := func(key httplock.KeyFunc, handler func(exchange) error, options ...httplock.Option) http.Handler {
			return v.start(service{
				guard: guard, key: key, errors: true, options: options, handler: handler,
				onError: func(err error) { last = err },
			})
		}
		release := b.hold(t, "order:"+secret)
		resp := call(t, start(orderKey, mustNotRun(t)), http.MethodPost, orderPath)
		require.Equal(t, http.StatusConflict, resp.status)
		require.NotEmpty(t, resp.header.Get("Retry-After"))
		require.Equal(t, "no-store", resp.header.Get("Cache-Control"))
		require.NotContains(t, resp.body, secret)
		require.NotContains(t, last.Error(), secret)
		var doc struct{ Type string }
		require.NoError(t, json.Unmarshal([]byte(resp.body), &doc), resp.body)
		require.True(t, strings.HasSuffix(doc.Type, "problems.md#conflict"), resp.body)
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
		require.Equal(t, http.StatusTeapot, call(t, start(orderKey, mustNotRun(t), teapot), http.MethodPost, orderPath).status)
		require.NoError(t, last, "an option has handled it")
		release()

		resp = call(t, start(httplock.Query("", "q"), mustNotRun(t)), http.MethodPost, orderPath)
		require.Equal(t, http.StatusBadRequest, resp.status)
		require.Equal(t, http.StatusBadRequest, v.status(last))

		mine := errors.New("mine")
		lose := func(x exchange) error {
			b.lose(t)
			<-x.Request().Context().Done()
			return mine
		}
		resp = call(t, start(orderKey, lose), http.MethodPost, orderPath)
		require.Equal(t, http.StatusInternalServerError, resp.status)
		require.Contains(t, resp.body, "outcome-unknown")
		require.ErrorIs(t, last, core.ErrLeaseLost)
		require.ErrorIs(t, last, mine)

		last = nil
		require.Equal(t, "ok", call(t, start(orderKey, ok), http.MethodPost, orderPath).body)
		require.NoError(t, last)
	})
}

func (b *bench) lose(t *testing.T) {
	t.Helper()
	names := redistest.Keys(t, b.rdb, b.prefix+":lock")
	assert.NotEmpty(t, names)
	assert.NoError(t, b.rdb.Del(context.Background(), names...).Err())
}

func TestLostLeaseIs500WhenNothingWasWritten(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := setup(t, env, core.WithTTL(time.Second))
		lose := func(x exchange) {
			b.lose(t)
			<-x.Request().Context().Done()
			assert.ErrorIs(t, context.Cause(x.Request().Context()), core.ErrLeaseLost)
		}
		for name, test := range map[string]struct {
			handler func(exchange) error
			body    string // empty: a problem
		}{
			"nothing written": {func(x exchange) error {
				lose(x)
				return nil
			}, ""},
			"an error": {func(x exchange) error {
				lose(x)
				return v.failure(http.StatusTeapot)
			}, ""},
			"written": {func(x exchange) error {
				err := ok(x)
				lose(x)
				return err
			}, "ok"},
			"flushed": {func(x exchange) error {
				assert.NoError(t, http.NewResponseController(x.w).Flush())
				lose(x)
				return nil
			}, "nothing"},
			"written after": {func(x exchange) error {
				lose(x)
				return ok(x)
			}, "ok"},
		} {
			resp := call(t, v.start(service{guard: core.NewGuard(b.locker, nil), key: orderKey, handler: test.handler}), http.MethodPost, orderPath)
			if test.body == "" {
				require.Empty(t, resp.header.Get("Retry-After"), name)
				requireProblem(t, resp, http.StatusInternalServerError, "outcome-unknown")
				continue
			}
			require.Equal(t, http.StatusOK, resp.status, name)
			require.Equal(t, strings.TrimPrefix(test.body, "nothing"), resp.body, name)
		}
	})
}

func TestUnmatchedRoutesPass(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := setup(t, redistest.Embedded(t))
		b.hold(t, "k")
		all := func(*http.Request) (string, error) { return "k", nil }
		for _, at := range []string{"route", "group", "use"} {
			for _, locked := range []bool{false, true} {
				s := service{at: at, guard: core.NewGuard(b.locker, nil), key: all, handler: mustNotRun(t)}
				if locked {
					s.options = []httplock.Option{httplock.LockSafeMethods()}
				} else {
					s.handler = ok
				}
				h := v.start(s)
				for range 2 { // what was learnt of a route is right the second time
					for _, path := range []string{"/nowhere", base, base + "/nowhere/at/all", base + "/orders/1/refund"} {
						require.Equal(t, http.StatusNotFound, call(t, h, http.MethodPost, path).status, path)
						require.Equal(t, http.StatusNotFound, call(t, h, http.MethodGet, path).status, path)
					}
					if at == "group" { // whose middleware has echo answer so
						require.Equal(t, http.StatusNotFound, call(t, h, http.MethodDelete, orderPath).status)
						require.Equal(t, http.StatusNotFound, call(t, h, http.MethodOptions, orderPath).status)
					} else {
						require.Equal(t, http.StatusMethodNotAllowed, call(t, h, http.MethodDelete, orderPath).status)
						require.Equal(t, http.StatusNoContent, call(t, h, http.MethodOptions, orderPath).status)
					}
					requireProblem(t, call(t, h, http.MethodPost, orderPath), http.StatusConflict, "conflict")
					requireProblem(t, call(t, h, http.MethodPost, base+"/files/a/b"), http.StatusConflict, "conflict")
					if locked {
						requireProblem(t, call(t, h, http.MethodGet, orderPath), http.StatusConflict, "conflict")
						resp := call(t, h, http.MethodHead, orderPath)
						require.Equal(t, http.StatusConflict, resp.status)
						require.Empty(t, resp.body)
					} else {
						require.Equal(t, "ok", call(t, h, http.MethodGet, orderPath).body)
						require.Equal(t, http.StatusOK, call(t, h, http.MethodHead, orderPath).status)
					}
				}
			}
		}
	})
}

func TestGuardInFrontOfTheRouterFailsClosed(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := setup(t, redistest.Embedded(t))
		var log bytes.Buffer
		logger := httplock.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))
		h := v.start(service{
			at: "pre", guard: core.NewGuard(b.locker, nil), key: orderKey,
			options: []httplock.Option{logger}, handler: mustNotRun(t),
		})
		requireProblem(t, call(t, h, http.MethodPost, orderPath), http.StatusInternalServerError, "internal")
		require.Contains(t, log.String(), "the middleware was given to e.Pre")
		require.NotContains(t, log.String(), secret)
		if v.name == "v4" {
			require.Equal(t, http.StatusNotFound, call(t, h, http.MethodPost, "/nowhere").status)
		}

		h = v.start(service{at: "pre", routes: routeTable{}, handler: mustNotRun(t)})
		requireProblem(t, call(t, h, http.MethodPost, orderPath), http.StatusInternalServerError, "misconfigured")
	})
}

func TestSkipper(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := setup(t, redistest.Embedded(t))
		b.hold(t, "order:"+secret)
		h := v.start(service{guard: core.NewGuard(b.locker, nil), key: orderKey, skip: true, handler: ok})
		requireProblem(t, call(t, h, http.MethodPost, orderPath), http.StatusConflict, "conflict")
		r := request(t, http.MethodPost, orderPath, "")
		r.Header.Set("X-Skip", "1")
		require.Equal(t, "ok", do(h, r).body)
	})
}

func TestMistakesFailClosed(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := setup(t, redistest.Embedded(t))
		guard := core.NewGuard(b.locker, nil)
		for name, s := range map[string]service{
			"nil guard":  {key: orderKey},
			"bad guard":  {guard: core.NewGuard(b.locker, nil, core.LeaseTTL(-1)), key: orderKey},
			"nil key":    {guard: guard},
			"option":     {guard: guard, key: orderKey, options: []httplock.Option{httplock.AllowHeaders("Cookie")}},
			"nil routes": {routes: routeTable(nil)},
		} {
			for _, at := range []string{"route", "use"} {
				s.at, s.handler = at, mustNotRun(t)
				if name == "nil routes" {
					s.routes = routeTable{"POST /api/orders/{id}": {}, "GET /api/orders/{id}": {}}
				}
				h := v.start(s)
				requireProblem(t, call(t, h, http.MethodPost, orderPath), http.StatusInternalServerError, "misconfigured")
				requireProblem(t, call(t, h, http.MethodGet, orderPath), http.StatusInternalServerError, "misconfigured")
				require.Equal(t, http.StatusNotFound, call(t, h, http.MethodPost, "/nowhere").status)
			}
		}
	})
}

// routeTable is httplock.Routes by method and normal pattern.
type routeTable map[string]httplock.Route

func (t routeTable) Route(method, pattern string) (httplock.Route, bool) {
	route, has := t[method+" "+httplock.NormalizePattern(pattern)]
	return route, has
}

func TestFromConfigGuardsWhatHasARoute(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, "order:"+secret)
		m, err := httplock.New(core.NewGuard(b.locker, nil))
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
			requireProblem(t, call(t, h, http.MethodPost, orderPath), http.StatusConflict, "conflict")
			require.Equal(t, "order:42", call(t, h, http.MethodPost, base+"/orders/42").body)
			require.Equal(t, "a/b", call(t, h, http.MethodPost, base+"/files/a/b").body)
			require.Equal(t, "none", call(t, h, http.MethodPut, orderPath).body)
			require.Equal(t, http.StatusNotFound, call(t, h, http.MethodPost, "/nowhere").status)
			requireProblem(t, call(t, h, http.MethodPost, base+"/orders/1/pay"), http.StatusInternalServerError, "internal")
		}
	})
}

func TestKeys(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := setup(t, redistest.Embedded(t))
		guard := core.NewGuard(b.locker, nil)
		plain := func(r *http.Request) (string, error) {
			return r.Pattern + "~" + r.PathValue("id") + r.PathValue("*"), nil
		}
		for name, test := range map[string]struct {
			key        httplock.KeyFunc
			path, want string // want: the key, or a problem
		}{
			"param":            {httplock.Param("k:", "id"), "/orders/42", "k:42"},
			"param, slash":     {httplock.Param("k:", "id"), "/orders/a%2Fb", "k:a/b"},
			"param, encoded":   {httplock.Param("k:", "id"), "/orders/%34%32", "k:42"},
			"param, percent":   {httplock.Param("k:", "id"), "/orders/100%25", "k:100%"},
			"param, once":      {httplock.Param("k:", "id"), "/orders/42%2525", "k:42%25"},
			"param, and odd":   {httplock.Param("k:", "id"), "/orders/%34%32%2525", "k:42%25"},
			"param, misnamed":  {httplock.Param("k:", "uid"), "/orders/42", "internal"},
			"wildcard":         {httplock.Param("k:", "*"), "/files/a/b", "k:a/b"},
			"wildcard, empty":  {httplock.Param("k:", "*"), "/files/", "bad-key"},
			"net/http's":       {plain, "/orders/a%2Fb", "/api/orders/:id~a/b"},
			"net/http's, tree": {plain, "/files/x/y", "/api/files/*~x/y"},
			"json":             {httplock.JSONField("k:", "o.id"), "/orders/1", "k:7"},
			"query":            {httplock.Query("k:", "q"), "/orders/1?q=2", "k:2"},
			"func": {v.of(func(c seen) (string, error) {
				body, err := io.ReadAll(c.Request().Body)
				c.Request().Body = io.NopCloser(bytes.NewReader(body))
				return c.Path() + c.Param("id") + string(body[:4]), err
			}), "/orders/1", `/api/orders/:id1{"o"`},
			"func, ours":     {v.of(func(seen) (string, error) { return "", errors.New(secret) }), "/orders/1", "internal"},
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
				resp := do(h, request(t, http.MethodPost, base+test.path, body))
				if status, is := map[string]int{"internal": 500, "bad-key": 400}[test.want]; is {
					requireProblem(t, resp, status, test.want)
					return
				}
				require.Equal(t, test.want, resp.body)
			})
		}
		_, err := v.of(func(seen) (string, error) { return "k", nil })(request(t, http.MethodPost, "/", ""))
		require.ErrorContains(t, err, "this package's middleware only")
	})
}

func TestPanicReleasesTheKeyAndGoesOn(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := setup(t, redistest.Embedded(t))
		for _, value := range []any{"boom", http.ErrAbortHandler} {
			for _, where := range []string{"", "outside", "inside"} {
				var before, after *http.Request
				h := v.start(service{
					guard: core.NewGuard(b.locker, nil), key: orderKey, recover: where,
					around: func(c seen, next func() error) error {
						before = c.Request()
						defer func() { after = c.Request() }()
						return next()
					},
					handler: func(exchange) error { panic(value) },
				})
				if where == "" || value != "boom" {
					require.PanicsWithValue(t, value, func() { call(t, h, http.MethodPost, orderPath) })
				} else {
					require.Equal(t, http.StatusInternalServerError, call(t, h, http.MethodPost, orderPath).status)
				}
				require.Same(t, before, after, "the request is restored")
				b.requireFree(t)
			}
		}
	})
}

func TestClientGoneWhileWaitingNeverRuns(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		b := setup(t, env)
		release := b.hold(t, "order:"+secret)
		left := make(chan struct{})
		h := v.start(service{
			guard: core.NewGuard(b.locker, retry.Policy{MaxWait: time.Hour}), key: orderKey, handler: mustNotRun(t),
			around: func(_ seen, next func() error) error {
				defer close(left)
				return next()
			},
		})
		url, client := serve(t, h)
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			<-b.conflict
			leave()
		}()
		_, err := send(client, toServer(ctx, t, url+orderPath, strings.Repeat("x", 300_000)))
		require.ErrorIs(t, err, context.Canceled)
		<-left // while the key is still held
		release()
		b.requireFree(t)
	})
}

func TestRequestsOfAKeyRunOneAtATime(t *testing.T) {
	onBoth(t, func(t *testing.T, v version, env *redistest.Env) {
		const requests = 20
		b := setup(t, env)
		var inside atomic.Int64
		url, client := serve(t, v.start(service{
			guard: core.NewGuard(b.locker, retry.Policy{MaxWait: time.Minute}), key: orderKey,
			handler: func(x exchange) error {
				if inside.Add(1) != 1 {
					t.Error("two handlers inside")
				}
				body, err := io.ReadAll(x.Request().Body)
				assert.NoError(t, err)
				inside.Add(-1)
				return x.String(http.StatusOK, string(body))
			},
		}))
		var wg sync.WaitGroup
		for range requests {
			wg.Go(func() {
				resp, err := send(client, toServer(t.Context(), t, url+orderPath, "hello"))
				if assert.NoError(t, err) {
					assert.Equal(t, "hello", resp.body)
				}
			})
		}
		wg.Wait()
	})
}

func TestStreamsHijacksAndControllers(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := setup(t, redistest.Embedded(t), core.WithTTL(900*time.Millisecond))
		guard := core.NewGuard(b.locker, retry.Policy{MaxWait: time.Minute})
		more := make(chan struct{})
		handlers := map[string]func(x exchange) error{
			"stream": func(x exchange) error {
				_, err := io.WriteString(x.w, "first\n")
				assert.NoError(t, err)
				assert.NoError(t, http.NewResponseController(x.w).Flush())
				<-more
				_, err = io.WriteString(x.w, "second\n")
				assert.NoError(t, x.Request().Context().Err())
				return err
			},
			"hijack": func(x exchange) error {
				conn, _, err := http.NewResponseController(x.w).Hijack()
				if err != nil {
					return err
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
				return conn.Close()
			},
			"direct": func(x exchange) error {
				hijacker, is := x.w.(http.Hijacker)
				assert.True(t, is)
				conn, _, err := hijacker.Hijack()
				if err != nil {
					return err
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
				return conn.Close()
			},
			"controller": func(x exchange) error {
				rc := http.NewResponseController(x.w)
				assert.NoError(t, rc.SetWriteDeadline(time.Now().Add(time.Minute)))
				flusher, is := x.w.(http.Flusher)
				assert.True(t, is)
				flusher.Flush()
				_, err := io.WriteString(x.w, "controlled")
				return err
			},
		}
		url, client := serve(t, v.start(service{guard: guard, key: orderKey, handler: func(x exchange) error {
			return handlers[x.Request().Header.Get("X-How")](x)
		}}))
		how := func(how string) *http.Request {
			r := toServer(t.Context(), t, url+orderPath, "")
			r.Header.Set("X-How", how)
			return r
		}
		for name, want := range map[string]string{"hijack": "hijacked", "direct": "hijacked", "controller": "controlled"} {
			resp, err := send(client, how(name))
			require.NoError(t, err, name)
			require.Equal(t, want, resp.body, name)
		}
		b.requireFree(t)

		resp, err := client.Do(how("stream"))
		require.NoError(t, err)
		first := make([]byte, 6)
		_, err = io.ReadFull(resp.Body, first)
		require.NoError(t, err)
		require.Equal(t, "first\n", string(first))
		for len(b.renewed) > 0 {
			<-b.renewed
		}
		for range 5 { // well over one lease
			<-b.renewed
		}
		_, err = b.rival.TryAcquire(t.Context(), "order:"+secret)
		require.ErrorIs(t, err, core.ErrConflict)
		close(more)
		rest, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "second\n", string(rest))
		b.requireFree(t)
	})
}

func TestNestedGuards(t *testing.T) {
	each(t, func(t *testing.T, v version) {
		b := setup(t, redistest.Embedded(t))
		guard := core.NewGuard(b.locker, nil)
		inner := v.start(service{at: "use", guard: guard, key: httplock.Query("inner:", "q"), handler: ok})
		h := v.start(service{guard: guard, key: orderKey, handler: func(x exchange) error {
			inner.ServeHTTP(x.w, x.Request())
			return nil
		}})
		require.Equal(t, "ok", call(t, h, http.MethodPost, orderPath+"?q=1").body)
		release := b.hold(t, "inner:1")
		requireProblem(t, call(t, h, http.MethodPost, orderPath+"?q=1"), http.StatusConflict, "conflict")
		b.requireFree(t)
		release()
	})
}
