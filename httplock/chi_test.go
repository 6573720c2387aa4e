package httplock_test

import (
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
