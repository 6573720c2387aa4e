package httplock

import (
	"net/http"
	"strings"

	"github.com/perkey-go/perkey/core"
)

// PerKey returns net/http middleware that runs one request at a time per key.
// Around a handler that is registered with a pattern the key function has
// Request.PathValue; with chi these are those behind r.With and r.Group.
//
// A mistake in its arguments is logged once, and every request is then refused
// with 500. New and Middleware.Handler report it instead.
func PerKey(guard *core.Guard, key KeyFunc, opts ...Option) func(http.Handler) http.Handler {
	m, err := New(guard, opts...)
	if err == nil && key == nil {
		err = invalid("PerKey: the key function is nil")
	}
	if err != nil {
		m = FailClosed(err)
	}
	return func(next http.Handler) http.Handler { return m.Handler(key, next) }
}

// Handler returns next, guarded. Without a key function or without next it
// refuses every request.
func (m *Middleware) Handler(key KeyFunc, next http.Handler) http.Handler {
	if m != nil && (key == nil || next == nil) {
		m = FailClosed(invalid("Handler: the key function or the handler is nil"))
	}
	return &guarded{m, routed(key), next}
}

// guarded is a handler with its guard.
type guarded struct {
	m    *Middleware
	key  KeyFunc
	next http.Handler
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.m.serveHTTP(w, r, g.next, r.Pattern, g.key)
}

func (g *guarded) locate(r *http.Request, _ string) place { return placeBehind(g.m, g.next, r) }

// serveHTTP runs next, guarded, for a request that matched a pattern.
func (m *Middleware) serveHTTP(w http.ResponseWriter, r *http.Request, next http.Handler, pattern string, key KeyFunc) {
	if key == nil {
		key = incomplete
	}
	tracked := &writer{ResponseWriter: w, ctx: r.Context()}
	m.Serve(Exchange{
		Writer:  tracked,
		Request: r,
		Name:    routeName(r.Method, pattern),
		Key:     func() (string, error) { return key(r) },
		Next:    func(r *http.Request) { next.ServeHTTP(tracked, r) },
		Written: tracked.Written,
		Tap:     tracked.tap,
		host:    patternHost(pattern),
	})
}

// routeName is the method and the pattern that http.ServeMux matched.
func routeName(method, pattern string) string {
	if pattern == "" || strings.Contains(pattern, " ") {
		return pattern
	}
	return method + " " + pattern
}

// Track returns a writer over w that is as able as w, and a function that reports
// whether a response was begun through it, or the connection taken over. It is for
// adapters whose framework does not know this of its own writer: Exchange.Written.
func Track(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, func() bool) {
	tracked := &writer{ResponseWriter: w, ctx: r.Context()}
	return tracked, tracked.Written
}
