package echolock

import (
	"reflect"

	"github.com/labstack/echo/v5"

	"github.com/perkey-go/perkey/echolock/internal/adapter"
	"github.com/perkey-go/perkey/httplock"
)

// WatchRoutes returns a function that returns the routes of an Echo, and which of them
// have a guard, for httplock.CheckRoutes and the CheckRoutes of a config.Runtime:
//
//	e := echo.New()
//	watched := echolock.WatchRoutes(e)
//	… // e.Use, e.POST, …
//	routes, err := watched()
//
// It takes e.OnAddRoute, and calls what was there before; echo does not list the middleware of routes.
// Call the function when all routes are registered, and before the Echo serves: its error says that a route was registered
// before WatchRoutes was called. No handler is called.
func WatchRoutes(e *echo.Echo) func() ([]httplock.RegisteredRoute, error) {
	w := &adapter.RouteWatch{
		Package: "echolock", PerKey: guarded{}.wrap, FromConfig: configured{}.wrap,
		Use: func() reflect.Value { return reflect.ValueOf(e.Middlewares()) },
		Listed: func() (routes []httplock.RegisteredRoute) {
			for _, route := range e.Router().Routes() {
				if route.Method != echo.RouteNotFound {
					routes = append(routes, httplock.RegisteredRoute{Method: methodOf(route.Method), Pattern: route.Path})
				}
			}
			return routes
		},
	}
	before := e.OnAddRoute
	e.OnAddRoute = func(route echo.Route) error {
		if before != nil {
			if err := before(route); err != nil {
				return err
			}
		}
		w.Add(methodOf(route.Method), route.Path, route.Middlewares)
		return nil
	}
	return w.Read
}

// methodOf is the method of a route; empty for that of Any.
func methodOf(method string) string {
	if method == echo.RouteAny {
		return ""
	}
	return method
}
