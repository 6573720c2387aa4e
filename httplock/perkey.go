package httplock

import (
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// PerKey returns net/http middleware that runs one request at a time per key.
// Around a handler that is registered with a pattern the key function has
// Request.PathValue; with chi these are those behind r.With and r.Group.
//
// The key is released when the handler returns. A time-out middleware behind PerKey, such as
// [http.TimeoutHandler], returns before its handler does, which then runs on after its key was
// released: put [Timeout] in front of PerKey instead. PerKey panics if it is right around one;
// locktest.RequireGuardWaits finds others, in a test of the service.
//
// A handler that asks its own service for the same key over HTTP waits for itself, for as long
// as the policy of the guard lets it wait: see [Transport].
//
// PerKey panics on a mistake in its arguments, with an error that wraps core.ErrInvalidOption, and
// so does what it returns. New returns the error.
func PerKey(guard *core.Guard, key KeyFunc, opts ...Option) func(http.Handler) http.Handler {
	m, err := New(guard, opts...)
	if err != nil {
		panic(err)
	}
	if key == nil {
		panic(errNoKeyFunc)
	}
	return func(next http.Handler) http.Handler { return m.Handler(key, next) }
}

// Handler returns next, guarded. It panics, as PerKey does, if the Middleware is not one of New's,
// without a key function and without next, and if next is an [http.TimeoutHandler] or [Timeout]'s.
func (m *Middleware) Handler(key KeyFunc, next http.Handler) http.Handler {
	switch {
	case m == nil || m.guard == nil:
		panic(invalid("Handler: the Middleware is empty: make one with New"))
	case key == nil:
		panic(errNoKeyFunc)
	}
	checkNext("PerKey", next)
	return &guarded{m, routed(key), next}
}

var errNoKeyFunc = invalid("PerKey: the key function is nil: give it one, such as Param(\"order:\", \"id\")")

// checkNext panics if a handler cannot be guarded.
func checkNext(by string, next http.Handler) {
	if nilcheck.IsNil(next) {
		panic(invalid("%s: the handler is nil", by))
	}
	if name := timeoutName(next); name != "" {
		panic(invalid("%s is around an %s, which returns before its handler does, so that the handler would run on "+
			"after its key was released: take it away, and put httplock.Timeout in front of %s", by, name, by))
	}
}

// timeoutName is the name of middleware that returns before its handler does; empty if it is not known to.
func timeoutName(h http.Handler) string {
	if _, ours := h.(*timeLimited); ours {
		return "httplock.Timeout"
	}
	if reflect.TypeOf(h) == reflect.TypeOf(http.TimeoutHandler(nil, 0, "")) {
		return "http.TimeoutHandler"
	}
	return ""
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
	s := servings.Get().(*serving)
	s.request, s.next, s.key = r, next, key
	s.writer = &writer{ResponseWriter: w, ctx: r.Context()}
	x := s.x
	x.Writer, x.Request, x.Name, x.host = s.writer, r, routeName(r.Method, pattern), patternHost(pattern)
	m.Serve(x)
	s.request, s.next, s.key, s.writer = nil, nil, nil, nil
	servings.Put(s)
}

// serving is a request on its way through serveHTTP. It is used again, so that the functions of an
// Exchange are made once for many requests.
type serving struct {
	request *http.Request
	writer  *writer
	next    http.Handler
	key     KeyFunc
	x       Exchange // of which the functions are the serving's
}

var servings = sync.Pool{New: func() any {
	s := &serving{}
	s.x = Exchange{
		Key:     func() (string, error) { return s.key(s.request) },
		Next:    func(r *http.Request) { s.next.ServeHTTP(s.writer, r) },
		Written: func() bool { return s.writer.Written() },
		Status:  func() int { return s.writer.Status() },
		Tee: func(wrap func(http.ResponseWriter) http.ResponseWriter, _ bool) {
			s.writer.ResponseWriter = wrap(s.writer.ResponseWriter)
		},
	}
	return s
}}

// routeName is the method and the pattern that http.ServeMux matched.
func routeName(method, pattern string) string {
	if pattern == "" || strings.Contains(pattern, " ") {
		return pattern
	}
	return method + " " + pattern
}

// Track returns a writer over w that implements the same optional interfaces as w, and a
// function that returns the status of the response begun through it: 0 if none was, and
// 101 if the connection was taken over. It is for adapters whose framework's writer does
// not know its status: see Exchange.Written and Exchange.Status.
func Track(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, func() int) {
	tracked := &writer{ResponseWriter: w, ctx: r.Context()}
	return tracked, func() int { return tracked.status }
}
