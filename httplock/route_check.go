package httplock

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/perkey-go/perkey/internal/nilcheck"
)

// RegisteredRoute is a route of a router. MuxRoutes, ginlock.Routes and echolock.WatchRoutes return
// them, without calling a handler.
type RegisteredRoute struct {
	// Method is the route's method. Empty: all.
	Method string
	// Pattern is the route as its router writes it, such as "/orders/:id".
	Pattern string
	// PerKey reports that a PerKey is in front of the handler.
	PerKey bool
	// FromConfig reports that a FromConfig is in front of it, which guards the routes of its
	// Routes.
	FromConfig bool
}

// String returns the method, if there is one, and the pattern.
func (r RegisteredRoute) String() string { return strings.TrimPrefix(r.Method+" "+r.Pattern, " ") }

// RouteProblem is a mistake that CheckRoutes found in a route.
type RouteProblem struct {
	Route RegisteredRoute
	// Text says what is wrong, and what to do.
	Text string
}

// RoutesError is the error of CheckRoutes.
type RoutesError struct{ Problems []RouteProblem }

// Error lists all problems, one per line.
func (e *RoutesError) Error() string {
	var b strings.Builder
	b.WriteString("httplock: the registered routes are not guarded as they should be:")
	for _, p := range e.Problems {
		fmt.Fprintf(&b, "\n\t%s: %s", p.Route, p.Text)
	}
	return b.String()
}

// CheckRoutes returns a *RoutesError with the registered routes whose requests would run without
// the guard that is meant for them. Call it at start, when all routes are registered:
//
//   - POST, PUT, PATCH and DELETE that have neither a PerKey nor an entry in routes, unless unguarded has
//     the route, as "POST /login", or as "/login" for all methods;
//   - those that have an entry, but no FromConfig in front of them, for example because r.Use came after them;
//   - entries of unguarded that the router does not have.
//
// routes may be nil. A guard inside a function of yours is not seen: put its route in
// unguarded. The CheckRoutes of a config.Runtime also reports the routes of its file that
// are not registered.
func CheckRoutes(registered []RegisteredRoute, routes Routes, unguarded ...string) error {
	var problems []RouteProblem
	used := map[string]bool{}
	for _, r := range registered {
		methods := []string{r.Method}
		if r.Method == "" {
			methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
		}
		for _, method := range methods {
			r := RegisteredRoute{method, r.Pattern, r.PerKey, r.FromConfig}
			meant := r.among(unguarded, used)
			configured := false
			if !nilcheck.IsNil(routes) {
				_, configured = routes.Route(method, r.Pattern)
			}
			switch {
			case configured && !r.FromConfig:
				problems = append(problems, RouteProblem{r, "the configuration has a guard for this route, but no FromConfig is in front of it; " +
					"with gin and a group of echo's, Use comes before the routes"})
			case !configured && !r.PerKey && isWrite(method) && !meant:
				problems = append(problems, RouteProblem{r, "no guard is in front of this route; with gin and a group of echo's, Use comes before the routes. " +
					"If it needs none, say so in the list of unguarded routes"})
			}
		}
	}
	for _, route := range unguarded {
		if !used[route] {
			method, pattern := cutMethod(route)
			problems = append(problems, RouteProblem{RegisteredRoute{Method: method, Pattern: pattern}, "it is in the list of unguarded routes, but the router has no such route"})
		}
	}
	if problems == nil {
		return nil
	}
	return &RoutesError{problems}
}

func isWrite(method string) bool {
	return slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, method)
}

// among reports whether a route is in a list, and marks the entries that say so.
func (r RegisteredRoute) among(list []string, used map[string]bool) (is bool) {
	for _, route := range list {
		method, pattern := cutMethod(route)
		if (method == "" || method == r.Method) && NormalizePattern(pattern) == NormalizePattern(r.Pattern) {
			used[route], is = true, true
		}
	}
	return is
}

func cutMethod(route string) (method, pattern string) {
	if pattern = withoutMethod(route); pattern == route {
		return "", route
	}
	method, _, _ = strings.Cut(route, " ")
	return method, pattern
}

// MuxRoutes returns the routes of these patterns, read from an http.ServeMux or from a FromConfig around one,
// also through a [Timeout] in front. A ServeMux does not list its patterns: those that are not given are not
// seen. The error says which pattern is not registered, or has an [http.TimeoutHandler] or a Timeout behind its
// guard; see [PerKey].
func MuxRoutes(mux http.Handler, patternsOf ...string) ([]RegisteredRoute, error) {
	around := RegisteredRoute{}
	if limited, is := mux.(*timeLimited); is {
		mux = limited.next
	}
	if c, is := mux.(*configured); is && c.mux != nil {
		around.FromConfig, mux = true, c.next
	}
	m, is := mux.(patterns)
	if !is {
		return nil, invalid("MuxRoutes: a %T is not an http.ServeMux, nor a FromConfig around one", mux)
	}
	var routes []RegisteredRoute
	for _, pattern := range patternsOf {
		h, found := m.Handler(probeOf(pattern))
		if found == "" || found != pattern {
			return nil, invalid("MuxRoutes: the mux has no pattern %q", pattern)
		}
		r := around
		r.Method, r.Pattern = cutMethod(pattern)
		for next := h; next != nil; {
			if name := timeoutName(next); name != "" && (r.PerKey || r.FromConfig) {
				return nil, invalid("MuxRoutes: %q has an %s behind its guard, which returns before its handler does, so that "+
					"the handler would run on after its key was released: put httplock.Timeout in front of the guard instead", pattern, name)
			}
			switch g := next.(type) {
			case *timeLimited:
				next = g.next
			case *guarded:
				r.PerKey, next = true, g.next
			case *configured:
				r.FromConfig, next = true, g.next
			default:
				next = nil
			}
		}
		routes = append(routes, r)
	}
	return routes, nil
}

// probeOf is a request that a pattern of http.ServeMux matches, and no other one that says less.
func probeOf(pattern string) *http.Request {
	method, pattern := cutMethod(pattern)
	if method == "" {
		method = "PROBE" // which no pattern has
	}
	host, path, _ := strings.Cut(pattern, "/")
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		switch {
		case segment == "{$}":
			segments[i] = ""
		case strings.HasPrefix(segment, "{"):
			segments[i] = "-"
		}
	}
	r, err := http.NewRequest(method, "http://"+host+"/", http.NoBody) //nolint:noctx // it is not sent
	if err != nil {
		return &http.Request{Method: method, URL: &url.URL{Path: "/"}}
	}
	r.URL.Path = "/" + strings.Join(segments, "/")
	return r
}
