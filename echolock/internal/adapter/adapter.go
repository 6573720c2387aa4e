// Package adapter is what the packages for echo v4 and v5 share: all but echo's types.
package adapter

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Context is what the context of either version has.
type Context interface {
	Request() *http.Request
	SetRequest(*http.Request)
	Path() string
}

// Routing says how far the router is with a request.
type Routing int

const (
	// Matched means that c.Path() is the route's.
	Matched Routing = iota
	// Unmatched means that the answer will be echo's 404, 405 or OPTIONS.
	Unmatched
	// Unrouted means that the router comes later: the middleware was given to e.Pre.
	Unrouted
)

// Echo is one version of echo.
type Echo[C Context] struct {
	// Package names it in errors.
	Package string
	// Routing says how far the router is.
	Routing func(C) Routing
	// Params yields the path parameters, perhaps percent-encoded.
	Params func(c C, yield func(name, value string) bool)
	// Writer is where responses go.
	Writer func(C) http.ResponseWriter
	// Track has responses go through a writer that knows the status of the one that was begun, until Untrack.
	Track   func(C) Tracked
	Untrack func(C, Tracked)
	// Status is that of the response that was begun, 0 if none was.
	Status func(Tracked) int
	// Tee has responses go through what wrap returns too, until Untrack.
	Tee func(c C, wrap func(http.ResponseWriter) http.ResponseWriter)
	// Answer has the error handler answer for a handler.
	Answer func(C, error)
	// Error is a problem as the version's error handler knows errors.
	Error func(*httplock.Problem) error

	servings sync.Pool // of *serving
}

// Tracked is a response between Track and Untrack.
type Tracked struct {
	Response any // the version's own; nil: not known
	Was      http.ResponseWriter
	Begun    func() int // of httplock.Track
}

// Config is a Config of either version.
type Config[C Context] struct {
	Skipper      func(C) bool
	Guard        *core.Guard
	Key          httplock.KeyFunc
	Options      []httplock.Option
	ReturnErrors bool
}

// Handler runs a request, and what is behind the middleware, as echo has it.
type Handler[C Context] func(c C, next func(C) error) error

// PerKey returns the handler of a Config.
func (e *Echo[C]) PerKey(config Config[C]) (Handler[C], error) {
	m, err := httplock.New(config.Guard, config.Options...)
	if err != nil {
		return nil, err
	}
	if config.Key == nil {
		return nil, e.invalid(`PerKey: the key function is nil: give it one, such as echolock.Param("order:", "id")`)
	}
	return func(c C, next func(C) error) error {
		routing := e.Routing(c)
		if routing == Unmatched {
			return next(c)
		}
		return e.serve(c, next, m, config, routing)
	}, nil
}

// FromConfig returns a handler that guards each request as its route says. It panics without routes.
func (e *Echo[C]) FromConfig(routes httplock.Routes) Handler[C] {
	if nilcheck.IsNil(routes) {
		panic(e.invalid("FromConfig: the routes are nil: give it a config.Runtime, or httplock.Routes of yours"))
	}
	misplaced := sync.OnceFunc(func() { slog.Error("echolock: every request is refused", "error", e.errPre()) })
	return func(c C, next func(C) error) error {
		switch routing := e.Routing(c); routing {
		case Unrouted:
			misplaced()
			return e.serve(c, next, nil, Config[C]{}, routing)
		case Matched:
			if route, guarded := routes.Route(c.Request().Method, c.Path()); guarded {
				return e.serve(c, next, route.Middleware, Config[C]{Key: route.Key}, routing)
			}
		}
		return next(c)
	}
}

// serve runs next under its key, or answers in its place.
func (e *Echo[C]) serve(c C, next func(C) error, m *httplock.Middleware, config Config[C], routing Routing) error {
	s, again := e.servings.Get().(*serving[C])
	if !again {
		s = newServing(e)
	}
	tracked := e.Track(c)
	defer e.Untrack(c, tracked)
	s.c, s.of, s.handler, s.key, s.routing, s.tracked = c, c.Request(), next, config.Key, routing, tracked
	x := s.x
	x.Writer, x.Request, x.Name, x.Framework = e.Writer(c), s.of, s.of.Method+" "+c.Path(), c
	if config.Skipper != nil {
		x.Skip = func() bool { return config.Skipper(c) }
	}
	if !config.ReturnErrors {
		x.Problem = nil
	}
	m.Serve(x)
	problem, result := s.problem, s.result
	*s = serving[C]{echo: e, x: s.x}
	e.servings.Put(s)
	if problem == nil {
		return result
	}
	if result != nil { // the lease was lost while the handler ran
		problem.Err = errors.Join(problem.Err, result)
	}
	return e.Error(problem)
}

// serving is a request on its way through serve. It is used again, so that the functions of an
// Exchange are made once for many requests.
type serving[C Context] struct {
	echo    *Echo[C]
	c       C
	of      *http.Request
	handler func(C) error
	key     httplock.KeyFunc
	routing Routing
	tracked Tracked
	x       httplock.Exchange // of which the functions are the serving's

	problem *httplock.Problem
	result  error // the handler's
	teed    bool
}

func newServing[C Context](e *Echo[C]) *serving[C] {
	s := &serving[C]{echo: e}
	params := func(yield func(name, value string) bool) { e.params(s.c, yield) }
	s.x = httplock.Exchange{
		Key: func() (string, error) {
			if s.routing == Unrouted {
				return "", e.errPre()
			}
			return httplock.Match{Pattern: s.c.Path(), Params: params, Framework: s.c}.Key(s.key, s.c.Request())
		},
		Next: s.next,
		Tee: func(wrap func(http.ResponseWriter) http.ResponseWriter, whole bool) {
			s.teed = whole
			e.Tee(s.c, wrap)
		},
		Written: func() bool { return s.status() != 0 },
		Status: func() int {
			if status := s.status(); status != 0 || s.result != nil {
				return status // echo answers the error later
			}
			return http.StatusOK
		},
		Problem: func(p *httplock.Problem) { s.problem = p },
	}
	return s
}

func (s *serving[C]) status() int { return s.echo.Status(s.tracked) }

func (s *serving[C]) next(r *http.Request) {
	defer s.c.SetRequest(s.of)
	s.c.SetRequest(r)
	s.result = s.handler(s.c)
	if s.teed && s.result != nil && s.status() == 0 {
		s.echo.Answer(s.c, s.result) // now, since it is the response
		s.result = nil               // echo would answer it once more
	}
}

func (e *Echo[C]) invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", e.Package, core.ErrInvalidOption, fmt.Sprintf(format, args...))
}

func (e *Echo[C]) errPre() error {
	return e.invalid("the middleware is in e.Pre, which runs before the route is known: put it into e.Use, a group or a route")
}

// params yields the path parameters. Echo calls a wildcard *, whatever the route calls it: it
// is there under both names.
func (e *Echo[C]) params(c C, yield func(name, value string) bool) {
	if !strings.Contains(c.Path(), "*") {
		e.Params(c, yield)
		return
	}
	e.Params(c, func(name, value string) bool {
		if !yield(name, value) {
			return false
		}
		if name != "*" {
			return true
		}
		names := httplock.PatternParams(c.Path())
		return len(names) == 0 || yield(names[len(names)-1], value)
	})
}

// WithPrincipal is httplock.WithPrincipal of a function of echo's context.
func (e *Echo[C]) WithPrincipal(f func(C) (string, error)) httplock.Option {
	if f == nil {
		return httplock.WithPrincipal(nil)
	}
	return httplock.WithPrincipal(func(r *http.Request) (string, error) {
		c, is := httplock.FrameworkFrom(r.Context()).(C)
		if !is {
			return "", fmt.Errorf("%s: WithPrincipal is for this package's middleware only", e.Package)
		}
		return f(c)
	})
}

// Func makes a KeyFunc of a function of echo's context.
func (e *Echo[C]) Func(f func(C) (string, error)) httplock.KeyFunc {
	if f == nil {
		return nil
	}
	return func(r *http.Request) (string, error) {
		c, ok := httplock.FrameworkFrom(r.Context()).(C)
		if !ok {
			return "", fmt.Errorf("%s: Func makes keys for this package's middleware only", e.Package)
		}
		outer := c.Request()
		defer c.SetRequest(outer)
		c.SetRequest(r)
		return f(c)
	}
}
