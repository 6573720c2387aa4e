package adapter

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"

	"github.com/perkey-go/perkey/httplock"
)

// RouteWatch notes the middleware of routes as they are registered: echo does not list it.
type RouteWatch struct {
	// Package names the adapter in errors, and PerKey and FromConfig are middleware of its own.
	Package            string
	PerKey, FromConfig any
	// Listed lists the routes: a method of all is empty.
	Listed func() []httplock.RegisteredRoute
	// Use is the slice of the middleware of e.Use. The zero Value: it cannot be read.
	Use func() reflect.Value

	mu     sync.Mutex
	routes map[string]httplock.RegisteredRoute
}

// Add notes a route, with its middleware and its groups'.
func (w *RouteWatch) Add(method, path string, middleware any) {
	route := httplock.RegisteredRoute{Method: method, Pattern: path}
	w.note(&route, reflect.ValueOf(middleware))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.routes == nil {
		w.routes = map[string]httplock.RegisteredRoute{}
	}
	w.routes[route.String()] = route
}

// note notes which guards are in a slice of middleware.
func (w *RouteWatch) note(route *httplock.RegisteredRoute, middleware reflect.Value) {
	for i := range middleware.Len() {
		switch nameOf(middleware.Index(i)) {
		case nameOf(reflect.ValueOf(w.PerKey)):
			route.PerKey = true
		case nameOf(reflect.ValueOf(w.FromConfig)):
			route.FromConfig = true
		}
	}
}

// nameOf is the name of a function: closures cannot be compared.
func nameOf(f reflect.Value) string { return runtime.FuncForPC(f.Pointer()).Name() }

// Read returns the routes that are registered by now.
func (w *RouteWatch) Read() ([]httplock.RegisteredRoute, error) {
	use := w.Use()
	if !use.IsValid() || use.Kind() != reflect.Slice || use.Type().Elem().Kind() != reflect.Func {
		return nil, fmt.Errorf("%s: WatchRoutes: the middleware of Use cannot be read from this release of echo", w.Package)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var routes []httplock.RegisteredRoute
	for _, listed := range w.Listed() {
		route, noted := w.routes[listed.String()]
		if !noted {
			return nil, fmt.Errorf("%s: WatchRoutes: %s was registered before WatchRoutes was called, or another function was put into the hook of "+
				"echo since: call it right after echo.New", w.Package, listed)
		}
		w.note(&route, use)
		routes = append(routes, route)
	}
	return routes, nil
}
