package echolock

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock/internal/adapter"
	"github.com/perkey-go/perkey/httplock"
)

// Config configures PerKeyWithConfig and ToMiddleware.
type Config struct {
	// Skipper lets a request pass without the key if it returns true. It must be safe for
	// concurrent use. Nil: no request passes.
	Skipper func(c echo.Context) bool
	// Guard decides which requests wait, are parked or are refused. Required.
	Guard *core.Guard
	// Key returns the key of a request. Required.
	Key KeyFunc
	// Options are httplock's.
	Options []httplock.Option
	// ReturnErrors makes the middleware return an error where it would write a problem
	// document: an *echo.HTTPError with the status, the document as its Message, and an
	// *httplock.Problem inside, for errors.As. Retry-After and Cache-Control are set
	// then. The default HTTPErrorHandler of echo writes the document as application/json.
	// A 202 is always written, and what an option of Options handles is not returned as
	// an error.
	ReturnErrors bool
}

// ToMiddleware returns the middleware. Its error wraps core.ErrInvalidOption.
func (config Config) ToMiddleware() (echo.MiddlewareFunc, error) {
	handler, err := version.PerKey(adapter.Config[echo.Context](config))
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
func Lease(c echo.Context) (*core.Lease, bool) { return core.LeaseFrom(c.Request().Context()) }

// WithPrincipal is httplock.WithPrincipal in echo's terms: f returns who sends a request, from what
// earlier middleware left in c. It is for this package's middleware only.
func WithPrincipal(f func(c echo.Context) (string, error)) httplock.Option {
	return version.WithPrincipal(f)
}

// guarded is the middleware of PerKey, and configured that of FromConfig.
type (
	guarded struct {
		handler adapter.Handler[echo.Context]
	}
	configured struct{ guarded }
)

func (g guarded) wrap(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error { return g.handler(c, next) }
}

func (f configured) wrap(next echo.HandlerFunc) echo.HandlerFunc { return f.guarded.wrap(next) }

// version is what is peculiar to echo v4.
var version = &adapter.Echo[echo.Context]{
	Package: "echolock",
	Routing: new(router).routing,
	Params: func(c echo.Context, yield func(name, value string) bool) {
		values := c.ParamValues()
		for i, name := range c.ParamNames() {
			if !yield(name, values[i]) {
				return
			}
		}
	},
	Writer: func(c echo.Context) http.ResponseWriter { return c.Response() },
	Track: func(c echo.Context) adapter.Tracked {
		response := c.Response()
		t := adapter.Tracked{Response: response, Was: response.Writer}
		response.Writer, t.Begun = httplock.Track(t.Was, c.Request())
		return t
	},
	Untrack: func(_ echo.Context, t adapter.Tracked) { t.Response.(*echo.Response).Writer = t.Was },
	Status: func(t adapter.Tracked) int {
		response, status := t.Response.(*echo.Response), t.Begun()
		if status == 0 && response.Committed {
			return response.Status
		}
		return status
	},
	Tee: func(c echo.Context, wrap func(http.ResponseWriter) http.ResponseWriter) {
		c.Response().Writer = wrap(c.Response().Writer)
	},
	Answer: func(c echo.Context, err error) { c.Error(err) },
	Error: func(p *httplock.Problem) error {
		return &echo.HTTPError{Code: p.Status, Message: p, Internal: p}
	},
}
