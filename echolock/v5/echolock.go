package echolock

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock/internal/adapter"
	"github.com/perkey-go/perkey/httplock"
)

// Config configures PerKeyWithConfig and ToMiddleware.
type Config struct {
	// Skipper lets a request pass without the key if it returns true. It must be safe for
	// concurrent use. Nil: no request passes.
	Skipper func(c *echo.Context) bool
	// Guard decides which requests wait, are parked or are refused. Required.
	Guard *core.Guard
	// Key returns the key of a request. Required.
	Key KeyFunc
	// Options are httplock's.
	Options []httplock.Option
	// ReturnErrors makes the middleware return an error where it would write a problem document:
	// an *httplock.Problem, which has the StatusCode that echo looks for. Retry-After and
	// Cache-Control are set then. The default HTTPErrorHandler of echo writes the document as
	// application/json. A 202 is always written, and what an option of Options handles is not
	// returned as an error.
	ReturnErrors bool
}

// ToMiddleware returns the middleware. Its error wraps core.ErrInvalidOption.
func (config Config) ToMiddleware() (echo.MiddlewareFunc, error) {
	handler, err := version.PerKey(adapter.Config[*echo.Context](config))
	if err != nil {
		return nil, err
	}
	return guarded{handler}.wrap, nil
}

// PerKeyWithConfig returns middleware that runs one request at a time per key. It panics on a
// mistake in the Config, with an error that wraps core.ErrInvalidOption; ToMiddleware returns the
// error.
//
// echo copies the middleware of a group into a route when the route is registered: g.Use goes in
// front of the routes that it is for, while e.Use may come after them. [WatchRoutes] finds those without
// a guard.
//
// The key is released when the handler returns. A time-out middleware behind this one that runs the
// handler on another goroutine returns before it does, and the handler runs on without its key: put
// httplock.Timeout around the Echo instead. locktest.RequireGuardWaits finds it in a
// test. A handler that asks its own service for the same key over HTTP waits for itself: see httplock.Transport.
func PerKeyWithConfig(config Config) echo.MiddlewareFunc {
	mw, err := config.ToMiddleware()
	if err != nil {
		panic(err)
	}
	return mw
}

// New is PerKey with an error instead of a panic. The error wraps core.ErrInvalidOption.
func New(guard *core.Guard, key KeyFunc, opts ...httplock.Option) (echo.MiddlewareFunc, error) {
	return Config{Guard: guard, Key: key, Options: opts}.ToMiddleware()
}

// PerKey is PerKeyWithConfig for a Config with only these fields.
func PerKey(guard *core.Guard, key KeyFunc, opts ...httplock.Option) echo.MiddlewareFunc {
	return PerKeyWithConfig(Config{Guard: guard, Key: key, Options: opts})
}

// FromConfig returns middleware for all routes, e.Use(echolock.FromConfig(routes)), that
// guards each request as its route says for the request's method and c.Path(). Routes
// that it does not know need no key. It panics if routes is nil, with an error that wraps
// core.ErrInvalidOption.
func FromConfig(routes httplock.Routes) echo.MiddlewareFunc {
	return configured{guarded{version.FromConfig(routes)}}.wrap
}

// Lease returns the lease under which the request runs, the innermost if there are several. Nil and
// false: there is none, as for a GET that needs no key.
func Lease(c *echo.Context) (*core.Lease, bool) { return core.LeaseFrom(c.Request().Context()) }

// WithPrincipal is httplock.WithPrincipal in echo's terms: f returns who sends a request, from what
// earlier middleware left in c. It is for this package's middleware only.
func WithPrincipal(f func(c *echo.Context) (string, error)) httplock.Option {
	return version.WithPrincipal(f)
}

// guarded is the middleware of PerKey, and configured that of FromConfig.
type (
	guarded struct {
		handler adapter.Handler[*echo.Context]
	}
	configured struct{ guarded }
)

func (g guarded) wrap(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error { return g.handler(c, next) }
}

func (f configured) wrap(next echo.HandlerFunc) echo.HandlerFunc { return f.guarded.wrap(next) }

// version is what is peculiar to echo v5.
var version = &adapter.Echo[*echo.Context]{
	Package: "echolock",
	Routing: routing,
	Params: func(c *echo.Context, yield func(name, value string) bool) {
		for _, v := range c.PathValues() {
			if !yield(v.Name, v.Value) {
				return
			}
		}
	},
	Writer: func(c *echo.Context) http.ResponseWriter { return c.Response() },
	Track: func(c *echo.Context) (t adapter.Tracked) {
		response, err := echo.UnwrapResponse(c.Response())
		if err != nil { // a writer of somebody's that hides echo's
			var tracked http.ResponseWriter
			t.Was = c.Response()
			tracked, t.Begun = httplock.Track(t.Was, c.Request())
			c.SetResponse(tracked)
			return t
		}
		t.Response, t.Was = response, response.ResponseWriter
		response.ResponseWriter, t.Begun = httplock.Track(t.Was, c.Request())
		return t
	},
	Untrack: func(c *echo.Context, t adapter.Tracked) {
		if response, known := t.Response.(*echo.Response); known {
			response.ResponseWriter = t.Was
		} else {
			c.SetResponse(t.Was)
		}
	},
	Status: func(t adapter.Tracked) int {
		response, known := t.Response.(*echo.Response)
		status := t.Begun()
		if status == 0 && known && response.Committed {
			return response.Status
		}
		return status
	},
	Tee: func(c *echo.Context, wrap func(http.ResponseWriter) http.ResponseWriter) {
		if response, err := echo.UnwrapResponse(c.Response()); err == nil {
			response.ResponseWriter = wrap(response.ResponseWriter)
		} else {
			c.SetResponse(wrap(c.Response()))
		}
	},
	Answer: func(c *echo.Context, err error) { c.Echo().HTTPErrorHandler(c, err) },
	Error:  func(p *httplock.Problem) error { return p },
}

// routing says how far the router is with a request. What is in doubt matched.
func routing(c *echo.Context) adapter.Routing {
	switch route := c.RouteInfo(); {
	case route.Name == echo.NotFoundRouteName, route.Name == echo.MethodNotAllowedRouteName, route.Method == echo.RouteNotFound:
		return adapter.Unmatched
	case c.Path() == "" && route.Name == "" && route.Method == "":
		return adapter.Unrouted
	}
	return adapter.Matched
}
