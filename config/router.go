package config

import (
	"errors"
	"net/http"
	"slices"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/strictyaml"
)

// Route is that of a Runtime, under one file.
func (s *state) Route(method, pattern string) (httplock.Route, bool) {
	id, ok := s.find(method, pattern)
	return s.routes[id].Route, ok
}

// find looks a route up.
func (s *state) find(method, pattern string) (id routeID, ok bool) {
	if id, ok = find(s.routes, routeID{method, pattern}); ok { // it is in normal form already
		return id, true
	}
	for _, pattern := range patternsOf(pattern) {
		if id, ok = find(s.routes, routeID{method, pattern}); ok {
			return id, true
		}
	}
	return routeID{}, false
}

// find looks up a route whose pattern is in normal form. HEAD has GET's, unless it has its own.
func find[T any](routes map[routeID]T, id routeID) (found routeID, ok bool) {
	if _, ok = routes[id]; !ok && id.method == http.MethodHead {
		id.method = http.MethodGet
		_, ok = routes[id]
	}
	return id, ok
}

// router is what a program serves.
type router struct {
	registered []httplock.RegisteredRoute
	unguarded  []string // as the program says
}

// CheckRoutes returns an *Error with the routes that would run without the guard that is meant for them:
// routes of the file that the router does not have, such as misspelt ones, and what httplock.CheckRoutes
// finds, such as registered writes that have no guard and are neither in unguarded nor in the file's own list.
// ginlock.Routes, echolock.WatchRoutes and httplock.MuxRoutes read what is registered. Once it has returned nil,
// Reload asks the same of each new file.
func (rt *Runtime) CheckRoutes(registered []httplock.RegisteredRoute, unguarded ...string) error {
	rt.reloads.Lock()
	defer rt.reloads.Unlock()
	s := rt.current.Load()
	r, serves := s.file.report(), &router{slices.Clone(registered), slices.Clone(unguarded)}
	serves.check(r, s, s)
	if err := r.err(); err != nil {
		return err
	}
	rt.router = serves
	return nil
}

// check reports what a file and a router do not agree on, but for guards that the file before had: see checkDropped.
func (serves *router) check(r *report, s, before *state) {
	has, names := map[routeID]bool{}, make([]string, len(serves.registered)) // whether with FromConfig
	for i, route := range serves.registered {
		names[i] = route.String()
		for _, pattern := range patternsOf(route.Pattern) {
			id := routeID{route.Method, pattern}
			before, twice := has[id] // under another host
			has[id] = route.FromConfig && (before || !twice)
		}
	}
	lookUp := func(at string, id routeID, text string) (fromConfig, ok bool) {
		ids := []routeID{id, {"", id.pattern}}
		if id.method == http.MethodHead {
			ids = append(ids, routeID{http.MethodGet, id.pattern}) // net/http serves HEAD with it
		}
		i := slices.IndexFunc(ids, func(id routeID) bool { _, registered := has[id]; return registered })
		if i < 0 {
			r.At(at, "the router has no such route%s", strictyaml.Meant(strictyaml.Nearest(text, names)))
			return false, false
		}
		return has[ids[i]], true
	}
	for id, route := range s.routes {
		at := member("routes", route.text)
		if fromConfig, ok := lookUp(at, id, route.text); ok && !fromConfig {
			r.At(at, "the router has this route without a FromConfig in front of it; with gin and a group of echo's, Use comes before the routes")
		}
	}
	serves.checkUnguarded(r, s, before, s.file.unguarded())
}

// checkUnguarded reports the writes that have no guard, and are not meant to have none.
func (serves *router) checkUnguarded(r *report, s, before *state, meant map[routeID]bool) {
	e, ok := errors.AsType[*httplock.RoutesError](httplock.CheckRoutes(serves.registered, s, serves.unguarded...))
	if !ok {
		return
	}
	for _, p := range e.Problems {
		_, configured := s.find(p.Route.Method, p.Route.Pattern) // check has those
		_, dropped := before.find(p.Route.Method, p.Route.Pattern)
		for _, pattern := range patternsOf(p.Route.Pattern) {
			configured = configured || meant[routeID{p.Route.Method, pattern}]
		}
		if !configured && !dropped {
			r.At("routes", "%s: %s", p.Route, p.Text)
		}
	}
}
