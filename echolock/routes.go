package echolock

import (
	"reflect"

	"github.com/labstack/echo/v4"

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
// It takes e.OnAddRouteHandler, and calls what was there before; echo does not list the middleware of routes.
// Call the function when all routes are registered, and before the Echo serves: its error says that a route was registered
// before WatchRoutes was called, or that a release of echo has the middleware of Use elsewhere. No handler is called.
func WatchRoutes(e *echo.Echo) func() ([]httplock.RegisteredRoute, error) {
	w := &adapter.RouteWatch{
		Package: "echolock", PerKey: guarded{}.wrap, FromConfig: configured{}.wrap,
		Use: func() reflect.Value { return reflect.ValueOf(e).Elem().FieldByName("middleware") },
		Listed: func() (routes []httplock.RegisteredRoute) {
			for host, router := range e.Routers() {
				routes = append(routes, routesOf(host, router)...)
			}
			return append(routes, routesOf("", e.Router())...)
		},
	}
	before := e.OnAddRouteHandler
	e.OnAddRouteHandler = func(host string, route echo.Route, handler echo.HandlerFunc, middleware []echo.MiddlewareFunc) {
		if before != nil {
			before(host, route, handler, middleware)
		}
		w.Add(route.Method, host+route.Path, middleware)
	}
	return w.Read
}

func routesOf(host string, r *echo.Router) (routes []httplock.RegisteredRoute) {
	for _, route := range r.Routes() {
		if route.Method != echo.RouteNotFound {
			routes = append(routes, httplock.RegisteredRoute{Method: route.Method, Pattern: host + route.Path})
		}
	}
	return routes
}
