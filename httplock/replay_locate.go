package httplock

import (
	"net/http"
	"net/url"
	"strings"
)

// place is what is known of a request's route before a handler is called.
type place int

const (
	placeUnknown   place = iota
	placeAbsent          // there is no such route
	placeUnguarded       // there is, and it has no guard
	placeServed          // there is; whether it has a guard is not known
	placeGuarded
	placeAsks // it has a guard that asks whether the principal may still have a replay run
)

// locator is a handler that can be asked for a route without being called. The pattern
// is the one under which the handler is registered, or empty.
type locator interface {
	locate(r *http.Request, pattern string) place
}

// locate asks a handler for the place of a request.
func locate(h http.Handler, r *http.Request, pattern string) place {
	switch h := h.(type) {
	case locator:
		return h.locate(r, pattern)
	case patterns:
		handler, pattern := routeIn(h, r)
		if pattern == "" {
			return placeAbsent
		}
		if at := locate(handler, r, pattern); at != placeUnknown || isSubtree(pattern) {
			return at
		}
		return placeServed
	}
	return placeUnknown
}

func (c *configured) locate(r *http.Request, pattern string) place {
	next := c.next
	if c.mux != nil {
		if next, pattern = routeIn(c.mux, r); pattern == "" {
			return placeAbsent
		}
	}
	if pattern == "" {
		return placeGuarded // it refuses every request here
	}
	if route, guarded := c.routes.Route(r.Method, pattern); guarded {
		return placeBehind(route.Middleware, next, r)
	}
	if at := locate(next, r, pattern); at != placeUnknown && at != placeServed || isSubtree(pattern) {
		return at
	}
	return placeUnguarded
}

// placeBehind is the place of a request that a guard lets pass to next.
func placeBehind(m *Middleware, next http.Handler, r *http.Request) place {
	if m != nil && m.reauthorize != nil || locate(next, r, "") == placeAsks {
		return placeAsks
	}
	return placeGuarded
}

// isSubtree reports whether a router may be registered under a mux's pattern.
func isSubtree(pattern string) bool {
	return strings.HasSuffix(pattern, "/") || strings.HasSuffix(pattern, "...}") || strings.HasSuffix(pattern, "*")
}

// locateAmong finds the place of a request among the routes that a router lists.
func locateAmong(registered []string, guards Routes, r *http.Request) place {
	pattern, found := matchRoute(registered, r.Method, r.URL)
	switch {
	case !found:
		return placeAbsent
	case guards == nil:
		return placeServed
	}
	if route, guarded := guards.Route(r.Method, pattern); guarded {
		return placeBehind(route.Middleware, nil, r)
	}
	return placeUnguarded
}

// matchRoute returns the pattern that matches a path: of several the one that says more
// about the first segment in which they differ, as routers choose.
func matchRoute(registered []string, method string, u *url.URL) (pattern string, found bool) {
	best := ""
	for _, route := range registered {
		of, at, hasMethod := strings.Cut(route, " ")
		if !hasMethod {
			of, at = "", route
		}
		if of != "" && of != method && of != anyMethod && (method != http.MethodHead || of != http.MethodGet) {
			continue
		}
		if rank, matches := matchPath(strings.TrimLeft(at, " "), u.EscapedPath()); matches && (!found || rank < best) {
			pattern, best, found = strings.TrimLeft(at, " "), rank, true
		}
	}
	return pattern, found
}

// anyMethod is how echo v5 lists a route of any method.
const anyMethod = "echo_route_any"

// matchPath reports whether a pattern matches an escaped path. The rank tells how much it
// says about each segment: the least in string order says most.
func matchPath(pattern, path string) (rank string, matches bool) {
	segments := NormalizePattern(pattern)
	segments = segments[max(strings.IndexByte(segments, '/'), 0):] // without a host
	for segments != "" && path != "" {
		var segment, value string
		rest := path
		segment, segments = cutSegment(segments)
		value, path = cutSegment(path)
		if unescaped, err := url.PathUnescape(value); err == nil {
			value = unescaped
		}
		switch {
		case segment == "*" || strings.HasSuffix(segment, "...}"):
			return rank + "c", rest != ""
		case segment == "{$}":
			segment = ""
			fallthrough
		case !strings.Contains(segment, "{"):
			if strings.ReplaceAll(segment, `\:`, ":") != value {
				return "", false
			}
			rank += "a"
		case value == "":
			return "", false
		default:
			rank += "b"
		}
	}
	return rank, segments == "" && path == ""
}
