package config_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/config"
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
	var e *config.Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Problems, 2)
	assert.Equal(t, `perkey.yaml:5:3: routes."POST /order/:id": the router has no such route; did you mean "POST /orders/:id"?`, e.Problems[0].String())
	assert.Equal(t, `perkey.yaml:8:3: routes."PUT /somewhere/else": the router has no such route`, e.Problems[1].String())
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
	var e *config.Error
	require.ErrorAs(t, err, &e)
	var problems []string
	for _, p := range e.Problems {
		problems = append(problems, p.String())
	}
	const late = "with gin and a group of echo's, Use comes before the routes"
	assert.ElementsMatch(t, []string{
		`perkey.yaml:6:3: routes."PUT /late/:id": the router has this route without a FromConfig in front of it; ` + late,
		"perkey.yaml:4:1: routes: DELETE /orders/{id}: no guard is in front of this route; " + late + ". If it needs none, say so in the list of unguarded routes",
		"perkey.yaml:4:1: routes: POST /login: no guard is in front of this route; " + late + ". If it needs none, say so in the list of unguarded routes",
		"perkey.yaml:4:1: routes: POST /lost: it is in the list of unguarded routes, but the router has no such route",
	}, problems)
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
	var e *config.Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Problems, 1)
	assert.Equal(t, `perkey.yaml:4:3: routes."POST /order/:id": the router has no such route; did you mean "POST /orders/{id}"?`, e.Problems[0].String())
	_, known := rt.Route("POST", "/orders/:id")
	assert.True(t, known, "the old file stays in force")
}
