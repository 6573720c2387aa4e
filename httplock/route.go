package httplock

import (
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"

	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Routes returns the guard of each route: with it a configuration chooses the guards of a
// whole service. It is called for each request, so its answers may change at any time. It
// must be safe for concurrent use.
type Routes interface {
	// Route returns what guards a route. Method is the request's, and pattern the route's
	// as the framework has it, such as "/orders/:id/pay" or "POST /orders/{id}/pay":
	// NormalizePattern makes them alike. False: the route needs no key. So a handler that
	// is registered for any method runs without a key under methods that have no Route.
	// HEAD should have the Route of GET, whose handler it runs.
	Route(method, pattern string) (Route, bool)
}

// Route is the guard of a route. If a field is nil it refuses every request.
type Route struct {
	Middleware *Middleware
	Key        KeyFunc
}

// FromConfig returns net/http middleware that guards each request as its route says.
// Put it right around an http.ServeMux, whose patterns it then knows:
//
//	http.ListenAndServe(addr, httplock.FromConfig(routes)(mux))
//
// or around single handlers that are registered with a pattern. With chi these are
// those behind r.With and r.Group: a middleware of r.Use comes before the route is
// known, as does what wraps the router. A request of which no route is known, since
// FromConfig stands in such a place, is refused with 500, and the log says why; a
// mux's own answers (404, 405, a redirect) are not.
//
// A router within a router is a place of its own: put FromConfig around the inner mux.
// Further out it sees only the pattern under which that one is mounted, such as
// "/v2/" or chi's "/v2/*", finds no route for it, and lets everything pass. So it is
// with chi's r.Route and r.Mount: use r.With or r.Group inside them.
//
// [Replay] reads the routes too: one that has no entry has a guard only if the handler that is
// registered for it is PerKey's own, and not middleware around that. What was parked for
// another is handed back until it expires.
//
// FromConfig panics without routes, and what it returns without a handler, with an error that wraps
// core.ErrInvalidOption.
func FromConfig(routes Routes) func(http.Handler) http.Handler {
	if nilcheck.IsNil(routes) {
		panic(invalid("FromConfig: the routes are nil: give it a config.Runtime, or Routes of yours"))
	}
	return func(next http.Handler) http.Handler {
		checkNext("FromConfig", next)
		mux, _ := next.(patterns)
		return &configured{routes: routes, next: next, mux: mux}
	}
}

// configured is a handler whose guards a configuration chooses.
type configured struct {
	routes   Routes
	next     http.Handler
	mux      patterns // next, if it is one
	unrouted sync.Once
}

func (c *configured) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	match := Match{Pattern: r.Pattern}
	if c.mux != nil {
		if _, match.Pattern = routeIn(c.mux, r); match.Pattern == "" {
			c.next.ServeHTTP(w, r)
			return
		}
		match.Params = pathValues(match.Pattern, r.URL)
	}
	if match.Pattern == "" {
		c.unrouted.Do(func() {
			slog.Error("httplock: every request is refused: FromConfig cannot know the route where it stands: put it right around " +
				"an http.ServeMux, or around handlers that are registered with a pattern (chi: r.With, not r.Use)")
		})
		(*Middleware)(nil).serveHTTP(w, r, c.next, "", nil)
		return
	}
	route, guarded := c.routes.Route(r.Method, match.Pattern)
	if !guarded {
		c.next.ServeHTTP(w, r)
		return
	}
	key := routed(route.Key)
	if c.mux != nil {
		key = func(r *http.Request) (string, error) { return match.Key(route.Key, r) }
	}
	route.Middleware.serveHTTP(w, r, c.next, match.Pattern, key)
}

// routeIn returns what a mux has for a request. No pattern: it answers by itself.
func routeIn(mux patterns, r *http.Request) (handler http.Handler, pattern string) {
	if handler, pattern = mux.Handler(r); reflect.TypeOf(handler) == redirects {
		pattern = ""
	}
	return handler, pattern
}

// redirects is what a mux answers with for a path that it would rather have another way.
var redirects = reflect.TypeOf(http.RedirectHandler("/", http.StatusTemporaryRedirect))

// patterns is what FromConfig needs of an http.ServeMux.
type patterns interface {
	Handler(r *http.Request) (h http.Handler, pattern string)
}

// pathValues are the values of a ServeMux's pattern in the path that it matched. The
// mux tells them to its handler, which is too late for the key.
func pathValues(pattern string, u *url.URL) func(yield func(name, value string) bool) {
	return func(yield func(name, value string) bool) {
		pattern = withoutMethod(pattern)
		segments := pattern[max(strings.IndexByte(pattern, '/'), 0):] // without a host
		path := u.EscapedPath()
		for segments != "" && path != "" {
			var segment, value string
			segment, segments = cutSegment(segments)
			rest := path
			value, path = cutSegment(path)
			name, is := strings.CutPrefix(segment, "{")
			if !is {
				continue
			}
			name = strings.TrimSuffix(name, "}")
			name, wildcard := strings.CutSuffix(name, "...")
			if wildcard {
				value = rest[1:]
			}
			if unescaped, err := url.PathUnescape(value); err == nil {
				value = unescaped
			}
			if !yield(name, value) {
				return
			}
		}
	}
}

// cutSegment takes the first segment off a path that begins with a slash.
func cutSegment(path string) (segment, rest string) {
	segment = path[1:]
	if i := strings.IndexByte(segment, '/'); i >= 0 {
		return segment[:i], segment[i:]
	}
	return segment, ""
}
