package httplock_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// routeTable is Routes as a configuration has them, by method and normal pattern.
type routeTable map[string]httplock.Route

func (t routeTable) Route(method, pattern string) (httplock.Route, bool) {
	route, has := t[method+" "+httplock.NormalizePattern(pattern)]
	return route, has
}

func newMiddleware(t *testing.T, guard *core.Guard, opts ...httplock.Option) *httplock.Middleware {
	t.Helper()
	m, err := httplock.New(guard, opts...)
	require.NoError(t, err)
	return m
}

// ownKey answers with the key that the request runs under.
func ownKey(w http.ResponseWriter, r *http.Request) {
	key := "none"
	if lease, held := core.LeaseFrom(r.Context()); held {
		key = lease.Key()
	}
	_, _ = io.WriteString(w, key+" in "+r.Pattern+" of "+r.PathValue("id"))
}

func TestFromConfig_GuardsWhatHasARoute(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		m := newMiddleware(t, b.Locker.Guard(core.RejectConflicts))
		param := func(name string) httplock.Route {
			return httplock.Route{Middleware: m, Key: httplock.Param("k:", name)}
		}
		routes := httplock.FromConfig(routeTable{
			"POST /orders/{id}/pay":     param("id"),
			"POST /files/{path...}":     param("path"),
			"POST /tenants/{id}/{$}":    param("id"),
			"POST shop.test/hosts/{id}": param("id"),
			"PUT /orders/{id}":          param("id"),
		})
		// The patterns as the mux has them.
		patterns := []string{
			"POST /orders/{id}/pay", "/orders/{id}", "POST /files/{path...}", "/tenants/{id}/{$}", "POST shop.test/hosts/{id}", "/other/{id}/",
		}
		around, inside := http.NewServeMux(), http.NewServeMux()
		for _, pattern := range patterns {
			around.HandleFunc(pattern, ownKey)
			inside.Handle(pattern, routes(http.HandlerFunc(ownKey)))
		}
		for name, h := range map[string]http.Handler{"around the mux": routes(around), "around the handlers": inside} {
			for target, want := range map[string]string{
				"POST /orders/42/pay":            "k:42 in POST /orders/{id}/pay of 42",
				"POST /orders/a%2Fb/pay":         "k:a/b in POST /orders/{id}/pay of a/b",
				"POST /orders/%34%32/pay":        "k:42 in POST /orders/{id}/pay of 42",
				"PUT /orders/42":                 "k:42 in /orders/{id} of 42",
				"POST /orders/42":                "none in /orders/{id} of 42",
				"GET /orders/42":                 "none in /orders/{id} of 42",
				"POST /files/a/b%20c/":           "k:a/b c/ in POST /files/{path...} of ",
				"POST /tenants/7/":               "k:7 in /tenants/{id}/{$} of 7",
				"POST /other/7/x":                "none in /other/{id}/ of 7",
				"POST http://shop.test/hosts/42": "k:42 in POST shop.test/hosts/{id} of 42",
				"POST /nowhere":                  "404 page not found\n",
				"DELETE /orders/42/pay":          "Method Not Allowed\n",
				"POST /orders//42/pay":           "",
			} {
				method, path, _ := strings.Cut(target, " ")
				resp := testbed.Call(t, h, method, path, "")
				require.Equal(t, want, resp.Body, "%s: %s", name, target)
				if want == "" {
					require.Equal(t, "/orders/42/pay", resp.Header.Get("Location"))
				}
			}
		}
		b.HoldKey(t, "k:42")
		for _, h := range []http.Handler{routes(around), inside} {
			testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, "/orders/42/pay", ""), http.StatusConflict, "conflict", true)
			testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPut, "/orders/42", ""), http.StatusConflict, "conflict", true)
			require.Equal(t, http.StatusOK, testbed.Call(t, h, http.MethodPost, "/orders/42", "").Status)
		}
	})
}

func TestFromConfig_TellsTheKeyWhatTheHandlerIsTold(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	m := newMiddleware(t, b.Locker.Guard(core.RejectConflicts))
	mux := http.NewServeMux()
	check := func(names ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var values []string
			for _, name := range names {
				values = append(values, r.PathValue(name))
			}
			lease, held := core.LeaseFrom(r.Context())
			if assert.True(t, held) {
				assert.Equal(t, strings.Join(values, "\t")+"\tend", strings.ReplaceAll(lease.Key(), "~", "\t"))
			}
			ok(w, r)
		}
	}
	mux.HandleFunc("/a/{x}/b/{y}", check("x", "y"))
	mux.HandleFunc("POST host.test/{x}/{rest...}", check("x", "rest"))
	mux.HandleFunc("/tree/{x}/", check("x"))
	mux.HandleFunc("/x/{x}/{y}/{$}", check("x", "y"))
	names := map[string][]string{
		"/a/{x}/b/{y}": {"x", "y"}, "POST host.test/{x}/{rest...}": {"x", "rest"}, "/tree/{x}/": {"x"}, "/x/{x}/{y}/{$}": {"x", "y"},
	}
	routes := routesFunc(func(_, pattern string) (httplock.Route, bool) {
		return httplock.Route{Middleware: m, Key: func(r *http.Request) (string, error) {
			var b strings.Builder
			for _, name := range names[pattern] {
				b.WriteString(r.PathValue(name) + "~")
			}
			return b.String() + "end", nil
		}}, true
	})
	h := httplock.FromConfig(routes)(mux)
	for _, target := range []string{
		"/a/1/b/2", "/a/1%2F/b/%20x", "/a/1%2Fb%2F2/b/%25", "/a/%252F/b/%e2%82%ac", "http://host.test/x/", "http://host.test/x/a/b%2Fc/d/",
		"http://host.test:80/x/y", "/tree/1/", "/tree/%2e/2/3", "/x/p/q/", "/x/p%20q/q/",
	} {
		require.Equal(t, "ok", testbed.Call(t, h, http.MethodPost, target, "").Body, target)
	}
	r := testbed.Request(t, http.MethodConnect, "/a/1/b/2", "") // a path that the mux does not clean
	r.URL = &url.URL{Path: "/a/1/b/2"}
	require.Equal(t, "ok", testbed.Do(h, r).Body)
}

type routesFunc func(method, pattern string) (httplock.Route, bool)

func (f routesFunc) Route(method, pattern string) (httplock.Route, bool) { return f(method, pattern) }

func TestFromConfig_FailsClosed(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	m := newMiddleware(t, b.Locker.Guard(core.RejectConflicts))
	key := httplock.Param("k:", "id")
	mux := func(h http.Handler) *http.ServeMux {
		mux := http.NewServeMux()
		mux.Handle("/orders/{id}", h)
		return mux
	}
	all := func(route httplock.Route) func(http.Handler) http.Handler {
		return httplock.FromConfig(routesFunc(func(string, string) (httplock.Route, bool) { return route, true }))
	}
	out := testbed.CaptureLog(t)
	for name, h := range map[string]http.Handler{
		"no middleware":          all(httplock.Route{Key: key})(mux(mustNotRun(t))),
		"no middleware, inside":  mux(all(httplock.Route{Key: key})(mustNotRun(t))),
		"an unknown route":       all(httplock.Route{Middleware: m, Key: key})(mustNotRun(t)),
		"a handler around a mux": all(httplock.Route{Middleware: m, Key: key})(http.HandlerFunc(mux(mustNotRun(t)).ServeHTTP)),
	} {
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, "/orders/1", ""), http.StatusInternalServerError, "misconfigured", false)
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodGet, "/orders/1", ""), http.StatusInternalServerError, "misconfigured", false)
		_ = name
	}
	require.Equal(t, 2, strings.Count(out.String(), "FromConfig cannot know the route where it stands"), "each that cannot says so once")
	var log bytes.Buffer
	m = newMiddleware(t, b.Locker.Guard(core.RejectConflicts), httplock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	for _, h := range []http.Handler{
		all(httplock.Route{Middleware: m})(mux(mustNotRun(t))), mux(all(httplock.Route{Middleware: m})(mustNotRun(t))),
	} {
		log.Reset()
		testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, "/orders/1", ""), http.StatusInternalServerError, "internal", false)
		require.Contains(t, log.String(), "the key function is nil")
	}
}
