package httplock_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
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

func TestUnderChi(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		b.Hold(t)
		guard := b.Locker.Guard(core.RejectConflicts)
		order := httplock.PerKey(guard, httplock.Param("order:", "id"))
		routes := httplock.FromConfig(routeTable{
			"POST /v1/orders/{id}":    {Middleware: newMiddleware(t, guard), Key: httplock.Param("order:", "id")},
			"POST /v2/orders/{id}":    {Middleware: newMiddleware(t, guard), Key: httplock.Param("order:", "id")},
			"POST /v2/orders/{id}/to": {Middleware: newMiddleware(t, guard), Key: httplock.Param("order:", "id")},
		})
		r := chi.NewRouter()
		r.With(order).Post("/orders/{id:[a-z0-9-]+}", ownKey)
		r.With(routes).Post("/v1/orders/{id:[^/]+}", ownKey)
		r.Route("/v2", func(r chi.Router) {
			r.Group(func(r chi.Router) {
				r.Use(routes) // of a group that is inline: it runs behind the router
				r.Post("/orders/{id}", ownKey)
				r.Put("/orders/{id}", ownKey)
			})
			r.With(routes).Post("/orders/{id}/to", ownKey)
		})
		for _, path := range []string{testbed.OrderPath, "/v1" + testbed.OrderPath, "/v2" + testbed.OrderPath, "/v2" + testbed.OrderPath + "/to"} {
			testbed.RequireProblem(t, testbed.Call(t, r, http.MethodPost, path, ""), http.StatusConflict, "conflict", true)
		}
		for target, want := range map[string]string{
			"/orders/42":           "order:42 in /orders/{id:[a-z0-9-]+} of 42",
			"/v1/orders/42":        "order:42 in /v1/orders/{id:[^/]+} of 42",
			"/v2/orders/42":        "order:42 in /v2/orders/{id} of 42",
			"/v2/orders/%34%32/to": "order:42 in /v2/orders/{id}/to of %34%32", // chi leaves it encoded
		} {
			require.Equal(t, want, testbed.Call(t, r, http.MethodPost, target, "").Body, target)
		}
		require.Equal(t, "none in /v2/orders/{id} of 42", testbed.Call(t, r, http.MethodPut, "/v2/orders/42", "").Body)
		require.Equal(t, http.StatusNotFound, testbed.Call(t, r, http.MethodPost, "/v1/nowhere", "").Status)

		early := chi.NewRouter() // in front of the routing
		early.Use(routes)
		early.Post("/v1/orders/{id}", mustNotRun(t))
		testbed.RequireProblem(t, testbed.Call(t, early, http.MethodPost, "/v1/orders/42", ""), http.StatusInternalServerError, "misconfigured", false)
		early = chi.NewRouter()
		early.Use(order)
		early.Post("/orders/{id}", mustNotRun(t))
		testbed.RequireProblem(t, testbed.Call(t, early, http.MethodPost, "/orders/42", ""), http.StatusInternalServerError, "internal", false)
	})
}

func TestCheckRoutes_TellsWhatRunsWithoutItsGuard(t *testing.T) {
	of := func(route string, by ...string) httplock.RegisteredRoute {
		method, pattern, found := strings.Cut(route, " ")
		if !found {
			method, pattern = "", route
		}
		r := httplock.RegisteredRoute{Method: method, Pattern: pattern}
		for _, guard := range by {
			r.PerKey, r.FromConfig = r.PerKey || guard == "PerKey", r.FromConfig || guard == "FromConfig"
		}
		return r
	}
	file := routesFunc(func(method, pattern string) (httplock.Route, bool) {
		return httplock.Route{}, method == http.MethodPost && httplock.NormalizePattern(pattern) == "/orders/{id}"
	})
	const unguarded, late, unknown = "no guard is in front", "no FromConfig is in front", "the router has no such route"
	for name, test := range map[string]struct {
		registered []httplock.RegisteredRoute
		routes     httplock.Routes
		meant      []string
		want       []string
	}{
		"nothing":                   {},
		"guarded":                   {[]httplock.RegisteredRoute{of("POST /a", "PerKey"), of("GET /b"), of("HEAD /b"), of("OPTIONS /a")}, nil, nil, nil},
		"each write":                {[]httplock.RegisteredRoute{of("POST /a"), of("PUT /a"), of("PATCH /a"), of("DELETE /a")}, nil, nil, []string{"POST /a: " + unguarded, "PUT /a: " + unguarded, "PATCH /a: " + unguarded, "DELETE /a: " + unguarded}},
		"any method":                {[]httplock.RegisteredRoute{of("/a")}, nil, []string{"PUT /a", "PATCH /a", "DELETE /a"}, []string{"POST /a: " + unguarded}},
		"meant":                     {[]httplock.RegisteredRoute{of("POST /a/:id"), of("PUT /a/:id")}, nil, []string{"/a/{id}"}, nil},
		"meant, for one method":     {[]httplock.RegisteredRoute{of("POST /a"), of("PUT /a")}, nil, []string{"POST /a"}, []string{"PUT /a: " + unguarded}},
		"meant, and misspelt":       {[]httplock.RegisteredRoute{of("POST /a")}, nil, []string{"POST /b"}, []string{"POST /a: " + unguarded, "POST /b: it is in the list"}},
		"by the configuration":      {[]httplock.RegisteredRoute{of("POST /orders/:id", "FromConfig")}, file, nil, nil},
		"not in the configuration":  {[]httplock.RegisteredRoute{of("PUT /orders/:id", "FromConfig")}, file, nil, []string{"PUT /orders/:id: " + unguarded}},
		"FromConfig, but no routes": {[]httplock.RegisteredRoute{of("POST /orders/:id", "FromConfig")}, nil, nil, []string{"POST /orders/:id: " + unguarded}},
		"Use after the routes":      {[]httplock.RegisteredRoute{of("POST /orders/:id")}, file, nil, []string{"POST /orders/:id: the configuration has a guard for this route, but " + late}},
		"meant, but configured":     {[]httplock.RegisteredRoute{of("POST /orders/:id", "PerKey")}, file, []string{"/orders/:id"}, []string{"POST /orders/:id: the configuration has a guard for this route, but " + late}},
	} {
		err := httplock.CheckRoutes(test.registered, test.routes, test.meant...)
		if test.want == nil {
			require.NoError(t, err, name)
			continue
		}
		var e *httplock.RoutesError
		require.ErrorAs(t, err, &e, name)
		require.Len(t, e.Problems, len(test.want), name)
		for i, want := range test.want {
			require.True(t, strings.HasPrefix(e.Problems[i].Route.String()+": "+e.Problems[i].Text, want), "%s: %v", name, err)
			require.ErrorContains(t, err, want)
		}
	}
	require.NoError(t, httplock.CheckRoutes([]httplock.RegisteredRoute{of("POST /a", "PerKey")}, (*pointerRoutes)(nil)))
	require.ErrorContains(t, httplock.CheckRoutes(nil, nil, "/x"), "/x: it is in the list of unguarded routes, but "+unknown)
}

func TestMuxRoutes_ReadsWhichRoutesHaveAGuard(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := httplock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey)
	none := httplock.FromConfig(routesFunc(func(string, string) (httplock.Route, bool) { return httplock.Route{}, false }))
	mux := http.NewServeMux()
	all := []string{
		"POST /orders/{id}", "/orders/{id}", "PUT shop.example/files/{path...}", "POST /{$}", "/tree/", "POST /items:batch", "POST /timed",
	}
	limit := httplock.Timeout(time.Second)
	mux.Handle(all[0], guard(mustNotRun(t)))
	mux.Handle(all[1], mustNotRun(t))
	mux.Handle(all[2], none(guard(mustNotRun(t))))
	mux.Handle(all[3], mustNotRun(t))
	mux.Handle(all[4], none(mustNotRun(t)))
	mux.Handle(all[5], http.TimeoutHandler(guard(mustNotRun(t)), time.Second, "")) // is as it should be, but not to be seen through
	mux.Handle(all[6], limit(guard(mustNotRun(t))))
	want := []httplock.RegisteredRoute{
		{Method: "POST", Pattern: "/orders/{id}", PerKey: true},
		{Pattern: "/orders/{id}"},
		{Method: "PUT", Pattern: "shop.example/files/{path...}", PerKey: true, FromConfig: true},
		{Method: "POST", Pattern: "/{$}"},
		{Pattern: "/tree/", FromConfig: true},
		{Method: "POST", Pattern: "/items:batch"},
		{Method: "POST", Pattern: "/timed", PerKey: true},
	}
	routes, err := httplock.MuxRoutes(mux, all...)
	require.NoError(t, err)
	require.Equal(t, want, routes)
	for _, pattern := range []string{"PUT /orders/{id}", "POST /orders/{uid}", "/nowhere", "", "POST", "%zz/x"} {
		_, err = httplock.MuxRoutes(mux, pattern)
		require.ErrorContains(t, err, "the mux has no pattern", pattern)
	}
	_, err = httplock.MuxRoutes(mustNotRun(t), "/")
	require.ErrorContains(t, err, "is not an http.ServeMux")

	routes, err = httplock.MuxRoutes(limit(none(mux)), "/orders/{id}")
	require.NoError(t, err)
	require.Equal(t, []httplock.RegisteredRoute{{Pattern: "/orders/{id}", FromConfig: true}}, routes)
	_, err = httplock.MuxRoutes(none(mux), "POST /items:batch")
	require.ErrorContains(t, err, `"POST /items:batch" has an http.TimeoutHandler behind its guard`)
	_, err = httplock.MuxRoutes(none(mux), "POST /timed")
	require.ErrorContains(t, err, `"POST /timed" has an httplock.Timeout behind its guard`)
	_, err = httplock.MuxRoutes(none(http.HandlerFunc(mux.ServeHTTP)), "/orders/{id}")
	require.ErrorContains(t, err, "is not an http.ServeMux")
}

func TestRoutePattern_PatternsOfAllFrameworksHaveOneForm(t *testing.T) {
	for pattern, test := range map[string]struct {
		want   string
		params []string
	}{
		"":                               {"", nil},
		"/":                              {"/", nil},
		"/orders/":                       {"/orders/", nil},
		"/orders/:id":                    {"/orders/{id}", []string{"id"}},
		"/orders/:id/pay":                {"/orders/{id}/pay", []string{"id"}},
		"/orders/{id}/pay":               {"/orders/{id}/pay", []string{"id"}},
		"POST /orders/{id}/pay":          {"/orders/{id}/pay", []string{"id"}},
		"POST \t example.com/orders/":    {"example.com/orders/", nil},
		"/:tenant/orders/:id":            {"/{tenant}/orders/{id}", []string{"tenant", "id"}},
		"/orders/{id:[0-9]{4}}":          {"/orders/{id}", []string{"id"}},
		"/orders/{date:[0-9]+/[0-9]+}/x": {"/orders/{date}/x", []string{"date"}},
		"/orders/{a}-{b}":                {"/orders/{a}-{b}", []string{"a", "b"}},
		"/user_:name/x":                  {"/user_{name}/x", []string{"name"}},
		"/files/*path":                   {"/files/{path...}", []string{"path"}},
		"/files/{path...}":               {"/files/{path...}", []string{"path"}},
		"/files/*":                       {"/files/*", []string{"*"}},
		"/orders/{$}":                    {"/orders/{$}", nil},
		`/orders/\:id`:                   {`/orders/\:id`, nil},
		`/orders/\:id/:id`:               {`/orders/\:id/{id}`, []string{"id"}},
		"/a/{":                           {"/a/{", nil},
		"/a/{}":                          {"/a/{}", nil},
		"/a/:/b":                         {"/a/:/b", nil},
	} {
		require.Equal(t, test.want, httplock.NormalizePattern(pattern), pattern)
		require.Equal(t, test.params, httplock.PatternParams(pattern), pattern)
	}
}

func FuzzNormalFormIsItsOwn(f *testing.F) {
	for _, pattern := range []string{"/orders/:id", "GET /{a}/{b...}", `/\:x/*y`, "/{a:{}}:b", "/{:}", "{x y", "A B C"} {
		f.Add(pattern)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		normal := httplock.NormalizePattern(pattern)
		require.Equal(t, normal, httplock.NormalizePattern(normal))
		require.Equal(t, httplock.PatternParams(pattern), httplock.PatternParams(normal))
	})
}
