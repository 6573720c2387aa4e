package config_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	echov4 "github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/echolock"
	echolockv5 "github.com/perkey-go/perkey/echolock/v5"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestRoute_IsFoundInEveryFrameworksForm(t *testing.T) {
	t.Parallel()
	rt := build(t, redistest.Embedded(t), `
routes:
  POST /orders/:id: {key: k, fixed_key: true}
  PUT /files/{path...}: {key: k, fixed_key: true}
`)
	for _, route := range [][2]string{
		{"POST", "/orders/:id"},
		{"POST", "/orders/{id}"},
		{"POST", "POST /orders/{id}"},
		{"POST", "shop.example/orders/{id}"},
		{"POST", "POST shop.example/orders/{id}"},
		{"PUT", "/files/*path"},
		{"PUT", "/files/{path...}"},
	} {
		found, ok := rt.Route(route[0], route[1])
		assert.True(t, ok, route)
		assert.NotNil(t, found.Middleware)
		assert.NotNil(t, found.Key)
	}
	_, ok := rt.Route("PUT", "/orders/:id")
	assert.False(t, ok)
	_, ok = rt.Route("HEAD", "/orders/:id")
	assert.False(t, ok)
}

func TestCheckRoutes_ReportsRoutesThatTheRouterDoesNotHave(t *testing.T) {
	t.Parallel()
	rt := build(t, redistest.Embedded(t), `
routes:
  POST /order/:id: {key: k, fixed_key: true}
  GET /files/{path...}: {key: k, fixed_key: true, safe_methods: lock}
  HEAD /files/{path...}: {key: k, fixed_key: true, safe_methods: lock}
  PUT /somewhere/else: {key: k, fixed_key: true}
`)
	err := rt.CheckRoutes([]httplock.RegisteredRoute{
		{Method: "POST", Pattern: "/orders/:id", FromConfig: true, PerKey: true},
		{Method: "GET", Pattern: "/files/*path", FromConfig: true},
		{Method: "GET", Pattern: "/unguarded"},
	})
	assert.Equal(t, []string{
		`perkey.yaml:5:3: routes."POST /order/:id": the router has no such route; did you mean "POST /orders/:id"?`,
		`perkey.yaml:8:3: routes."PUT /somewhere/else": the router has no such route`,
	}, placed(t, err))
}

func TestCheckRoutes_ReportsRoutesWithoutTheirGuard(t *testing.T) {
	t.Parallel()
	rt := build(t, redistest.Embedded(t), `
routes:
  POST /orders/:id: {key: "k:{param.id}"}
  PUT /late/:id: {key: "k:{param.id}"}
`)
	registered := []httplock.RegisteredRoute{
		{Pattern: "/orders/{id}", FromConfig: true},
		{Method: "PUT", Pattern: "/late/:id"},
		{Method: "POST", Pattern: "/login", FromConfig: true},
		{Method: "POST", Pattern: "/own", PerKey: true},
	}
	err := rt.CheckRoutes(registered, "PUT /orders/:id", "PATCH /orders/:id", "POST /lost")
	const late = "with gin and a group of echo's, Use comes before the routes"
	assert.ElementsMatch(t, []string{
		`perkey.yaml:6:3: routes."PUT /late/:id": the router has this route without a FromConfig in front of it; ` + late,
		"perkey.yaml:4:1: routes: DELETE /orders/{id}: no guard is in front of this route; " + late + ". If it needs none, say so in the list of unguarded routes",
		"perkey.yaml:4:1: routes: POST /login: no guard is in front of this route; " + late + ". If it needs none, say so in the list of unguarded routes",
		"perkey.yaml:4:1: routes: POST /lost: it is in the list of unguarded routes, but the router has no such route",
	}, placed(t, err))
	registered[1].FromConfig = true
	require.NoError(t, rt.CheckRoutes(registered, "PUT /orders/:id", "PATCH /orders/:id", "DELETE /orders/:id", "/login"))
}

// From then on it is known what the router has.
func TestReload_RefusesRoutesThatTheRouterDoesNotHave(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	const right, wrong = "routes:\n  POST /orders/:id: {key: k, fixed_key: true}\n", "routes:\n  POST /order/:id: {key: k, fixed_key: true}\n"
	rt := build(t, env, right)
	require.NoError(t, rt.Reload(load(t, env, wrong+"unguard: [POST /orders/:id]\n")), "nobody can know")
	registered := []httplock.RegisteredRoute{{Method: "POST", Pattern: "/orders/{id}", FromConfig: true}}
	require.Error(t, rt.CheckRoutes(registered))
	require.NoError(t, rt.Reload(load(t, env, right+"unguard: [POST /order/:id]\n")), "a check that failed holds nothing up")
	require.NoError(t, rt.CheckRoutes(registered), "this process is newer than the one that has the route which the file drops")

	err := rt.Reload(load(t, env, wrong+"unguard: [POST /orders/:id]\n"))
	assert.Equal(t, []string{`perkey.yaml:4:3: routes."POST /order/:id": the router has no such route; did you mean "POST /orders/{id}"?`}, placed(t, err))
	_, known := rt.Route("POST", "/orders/:id")
	assert.True(t, known, "the old file stays in force")
}

// routers make a guarded service, whose route takes any method or only POST, and read what it has registered.
var routers = map[string]func(rt *config.Runtime, pattern string, anyMethod bool) (guarded http.Handler, registered []httplock.RegisteredRoute, err error){
	"net/http": func(rt *config.Runtime, pattern string, anyMethod bool) (http.Handler, []httplock.RegisteredRoute, error) {
		if !anyMethod {
			pattern = "POST shop.example" + pattern
		}
		mux := http.NewServeMux()
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
		h := httplock.FromConfig(rt)(mux)
		registered, err := httplock.MuxRoutes(h, pattern)
		return h, registered, err
	},
	"gin": func(rt *config.Runtime, pattern string, anyMethod bool) (http.Handler, []httplock.RegisteredRoute, error) {
		e := gin.New()
		e.Use(ginlock.FromConfig(rt))
		if anyMethod {
			e.Any(pattern, func(*gin.Context) {})
		} else {
			e.POST(pattern, func(*gin.Context) {})
		}
		registered, err := ginlock.Routes(e)
		return e, registered, err
	},
	"echo": func(rt *config.Runtime, pattern string, anyMethod bool) (http.Handler, []httplock.RegisteredRoute, error) {
		e := echov4.New()
		routes := echolock.WatchRoutes(e)
		e.Use(echolock.FromConfig(rt))
		if anyMethod {
			e.Any(pattern, func(echov4.Context) error { return nil })
		} else {
			e.POST(pattern, func(echov4.Context) error { return nil })
		}
		registered, err := routes()
		return e, registered, err
	},
	"echo v5": func(rt *config.Runtime, pattern string, anyMethod bool) (http.Handler, []httplock.RegisteredRoute, error) {
		e := echov5.New()
		routes := echolockv5.WatchRoutes(e)
		e.Use(echolockv5.FromConfig(rt))
		if anyMethod {
			e.Any(pattern, func(*echov5.Context) error { return nil })
		} else {
			e.POST(pattern, func(*echov5.Context) error { return nil })
		}
		registered, err := routes()
		return e, registered, err
	},
}

// What CheckRoutes lets pass is guarded.
func TestRouters_HaveTheFilesRoutes(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	rt := build(t, env, `
routes:
  POST /items\:batch: {key: taken, fixed_key: true}
`)
	hold(t, rt, "taken")
	for name, router := range routers {
		pattern := `/items\:batch`
		if name == "net/http" {
			pattern = "/items:batch"
		}
		if name == "gin" && strings.HasPrefix(gin.Version, "v1.10.") { // it reads an escape only in an engine that Run started
			continue
		}
		for _, anyMethod := range []bool{false, true} {
			handler, registered, err := router(rt, pattern, anyMethod)
			require.NoError(t, err, name)
			var others []string // that the file does not have
			if anyMethod {
				others = []string{"PUT " + pattern, "PATCH " + pattern, "DELETE " + pattern}
			}
			require.NoError(t, rt.CheckRoutes(registered, others...), name)
			for range 2 { // gin has another form of it from the first request on
				r := request("POST", "http://shop.example/items:batch")
				assert.Equal(t, http.StatusConflict, (&service{Handler: handler}).do(r).Code, "%s, any method: %t", name, anyMethod)
			}
		}
	}
}
