package adapter_test

import (
	"errors"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	echo5 "github.com/labstack/echo/v5"
	middleware5 "github.com/labstack/echo/v5/middleware"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	echolock5 "github.com/perkey-go/perkey/echolock/v5"
	"github.com/perkey-go/perkey/httplock"
)

// seen is what a test's handler sees of either version.
type seen interface {
	Request() *http.Request
	Path() string
	Param(name string) string
	FormValue(name string) string
	String(status int, s string) error
	NoContent(status int) error
}

// exchange is a request behind the guard.
type exchange struct {
	seen
	w     http.ResponseWriter
	lease func() (*core.Lease, bool)
}

// service says what an Echo is to be.
type service struct {
	// guard is where the guard stands: "route", "group", "use" or "pre".
	at      string
	guard   *core.Guard
	key     httplock.KeyFunc
	options []httplock.Option
	skip    bool // a Skipper by X-Skip
	errors  bool // ReturnErrors
	routes  httplock.Routes
	// front is a middleware of echo's own that reads bodies, in front of the guard: CSRF, Decompress or BodyLimit.
	front string
	// around sees the request in front of the guard, and the error behind it.
	around func(c seen, next func() error) error
	// onError sees what reaches the error handler.
	onError func(error)
	handler func(x exchange) error
	more    []string // paths
}

// paths are the routes that have the handler, for all methods.
var paths = []string{"/orders/:id", "/orders/:id/pay", "/files/*", "/named/*rest"}

const base = "/api"

// version is one version of echo.
type version struct {
	name string
	// start returns an Echo with the paths under base.
	start func(s service) http.Handler
	// of is Func.
	of func(f func(seen) (string, error)) httplock.KeyFunc
	// principal is WithPrincipal.
	principal func(f func(seen) (string, error)) httplock.Option
	// failure is an error of the handler with a status.
	failure func(status int) error
	// status is the status of such an error, or 0.
	status func(error) int
	// keys are made by the package's own constructors, with the prefix "k:".
	keys map[string]httplock.KeyFunc
}

var versions = []version{
	{"v4", start4, func(f func(seen) (string, error)) httplock.KeyFunc {
		return echolock.Func(func(c echo.Context) (string, error) { return f(c) })
	}, func(f func(seen) (string, error)) httplock.Option {
		return echolock.WithPrincipal(func(c echo.Context) (string, error) { return f(c) })
	}, func(status int) error { return echo.NewHTTPError(status, "failed") }, func(err error) int {
		if coded, is := errors.AsType[*echo.HTTPError](err); is {
			return coded.Code
		}
		return 0
	}, map[string]httplock.KeyFunc{
		"param": echolock.Param("k:", "id"), "query": echolock.Query("k:", "id"), "header": echolock.Header("k:", "X-Id"), "json": echolock.JSONField("k:", "id"),
		"form": echolock.Form("k:", "f"), "int": echolock.ParamInt("k:", "id"), "uuid": echolock.ParamUUID("k:", "id"),
		"none": func(*http.Request) (string, error) { return "", echolock.NoKey },
	}},
	{"v5", start5, func(f func(seen) (string, error)) httplock.KeyFunc {
		return echolock5.Func(func(c *echo5.Context) (string, error) { return f(c) })
	}, func(f func(seen) (string, error)) httplock.Option {
		return echolock5.WithPrincipal(func(c *echo5.Context) (string, error) { return f(c) })
	}, func(status int) error { return echo5.NewHTTPError(status, "failed") }, echo5.StatusCode, map[string]httplock.KeyFunc{
		"param": echolock5.Param("k:", "id"), "query": echolock5.Query("k:", "id"), "header": echolock5.Header("k:", "X-Id"), "json": echolock5.JSONField("k:", "id"),
		"form": echolock5.Form("k:", "f"), "int": echolock5.ParamInt("k:", "id"), "uuid": echolock5.ParamUUID("k:", "id"),
		"none": func(*http.Request) (string, error) { return "", echolock5.NoKey },
	}},
}

func start4(s service) http.Handler {
	config := echolock.Config{Guard: s.guard, Key: s.key, Options: s.options, ReturnErrors: s.errors}
	if s.skip {
		config.Skipper = func(c echo.Context) bool { return c.Request().Header.Get("X-Skip") != "" }
	}
	var guard echo.MiddlewareFunc
	if s.routes != nil {
		guard = echolock.FromConfig(s.routes)
	} else {
		guard = echolock.PerKeyWithConfig(config)
	}
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if s.onError != nil {
			s.onError(err)
		}
		e.DefaultHTTPErrorHandler(err, c)
	}
	switch s.front {
	case "CSRF":
		e.Use(middleware.CSRFWithConfig(middleware.CSRFConfig{
			TokenLookup: "form:csrf", // which a replay has no cookie for
			Skipper:     func(c echo.Context) bool { _, replayed := httplock.Replayed(c.Request().Context()); return replayed },
		}))
	case "Decompress":
		e.Use(middleware.Decompress())
	case "BodyLimit":
		e.Use(middleware.BodyLimit("10B"))
	}
	if s.around != nil {
		e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error { return s.around(c, func() error { return next(c) }) }
		})
	}
	var group *echo.Group
	var ofRoute []echo.MiddlewareFunc
	switch s.at {
	case "pre":
		e.Pre(guard)
		group = e.Group(base)
	case "use":
		e.Use(guard)
		group = e.Group(base)
	case "group":
		group = e.Group(base, guard)
	default:
		group, ofRoute = e.Group(base), append(ofRoute, guard)
	}
	for _, path := range slices.Concat(paths, s.more) {
		group.Match([]string{"GET", "HEAD", "POST", "PUT"}, path, func(c echo.Context) error {
			return s.handler(exchange{c, c.Response(), func() (*core.Lease, bool) { return echolock.Lease(c) }})
		}, ofRoute...)
	}
	return e
}

func start5(s service) http.Handler {
	config := echolock5.Config{Guard: s.guard, Key: s.key, Options: s.options, ReturnErrors: s.errors}
	if s.skip {
		config.Skipper = func(c *echo5.Context) bool { return c.Request().Header.Get("X-Skip") != "" }
	}
	var guard echo5.MiddlewareFunc
	if s.routes != nil {
		guard = echolock5.FromConfig(s.routes)
	} else {
		guard = echolock5.PerKeyWithConfig(config)
	}
	e := echo5.NewWithConfig(echo5.Config{Router: echo5.NewRouter(echo5.RouterConfig{AutoHandleHEAD: true})})
	plain := e.HTTPErrorHandler
	e.HTTPErrorHandler = func(c *echo5.Context, err error) {
		if s.onError != nil {
			s.onError(err)
		}
		plain(c, err)
	}
	switch s.front {
	case "CSRF":
		e.Use(middleware5.CSRFWithConfig(middleware5.CSRFConfig{
			TokenLookup: "form:csrf", // which a replay has no cookie for
			Skipper:     func(c *echo5.Context) bool { _, replayed := httplock.Replayed(c.Request().Context()); return replayed },
		}))
	case "Decompress":
		e.Use(middleware5.Decompress())
	case "BodyLimit":
		e.Use(middleware5.BodyLimit(10))
	}
	if s.around != nil {
		e.Use(func(next echo5.HandlerFunc) echo5.HandlerFunc {
			return func(c *echo5.Context) error { return s.around(c, func() error { return next(c) }) }
		})
	}
	var group *echo5.Group
	var ofRoute []echo5.MiddlewareFunc
	switch s.at {
	case "pre":
		e.Pre(guard)
		group = e.Group(base)
	case "use":
		e.Use(guard)
		group = e.Group(base)
	case "group":
		group = e.Group(base, guard)
	default:
		group, ofRoute = e.Group(base), append(ofRoute, guard)
	}
	for _, path := range slices.Concat(paths, s.more) {
		for _, method := range []string{"GET", "POST", "PUT"} { // GET has HEAD with it
			group.Add(method, path, func(c *echo5.Context) error {
				return s.handler(exchange{c, c.Response(), func() (*core.Lease, bool) { return echolock5.Lease(c) }})
			}, ofRoute...)
		}
	}
	return e
}
