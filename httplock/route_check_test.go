package httplock_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
