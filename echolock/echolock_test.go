package echolock_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/conformance"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Adapter{Name: "echo", Error: func(status int) error { return echo.NewHTTPError(status) }, New: func(app conformance.App) http.Handler {
		e := echo.New()
		e.Logger.SetOutput(io.Discard) // stacks of panics that are meant
		e.Use(chain(app.Use)...)
		for _, r := range app.Routes {
			e.Add(r.Method, r.Colon(), func(c echo.Context) error { return r.Handler(c.Response(), c.Request()) }, chain(r.Chain)...)
		}
		return e
	}})
}

func chain(steps []conformance.Step) []echo.MiddlewareFunc {
	return conformance.Chain(steps, func(l conformance.Lock) echo.MiddlewareFunc {
		return echolock.PerKey(l.Guard, l.Key, l.Options...)
	}, middleware.Recover(), func(mw conformance.Middleware) echo.MiddlewareFunc {
		return func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				return mw(conformance.Context{
					Writer:  func() http.ResponseWriter { return c.Response() },
					Request: c.Request,
					Next:    func() error { return next(c) },
				})
			}
		}
	})
}

func TestMain(m *testing.M) { redistest.Main(m) }

func newGuard(t *testing.T) *core.Guard {
	t.Helper()
	return testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts)
}

func TestNew_ReturnsMistakes(t *testing.T) {
	guard := newGuard(t)
	for _, key := range []echolock.KeyFunc{nil, echolock.Func(nil)} {
		mw, err := echolock.New(guard, key)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		require.Nil(t, mw)
	}
	require.Panics(t, func() { echolock.FromConfig(nil) })
}

// noRoutes is a configuration without routes.
type noRoutes struct{}

func (noRoutes) Route(string, string) (httplock.Route, bool) { return httplock.Route{}, false }

// A guard of e.Use counts for all routes, and one of a group's Use for those after it, as for echo.
func TestWatchRoutes_ReadsWhichRoutesHaveAGuard(t *testing.T) {
	guard := echolock.PerKey(newGuard(t), echolock.Param("order:", "id"))
	handler := func(echo.Context) error {
		t.Error("a handler ran")
		return nil
	}
	own := func(next echo.HandlerFunc) echo.HandlerFunc { return next }

	e := echo.New()
	registered := echolock.WatchRoutes(e)
	e.Use(own)
	e.POST("/orders/:id", handler)
	e.POST("/orders/:id/pay", handler, own, guard)
	g := e.Group("/g")
	g.POST("/a", handler)
	g.Use(guard)
	g.PUT("/a", handler)
	g.Group("/deep").DELETE("/b/*", handler, own)
	e.Host("shop.example").POST("/hosted", handler)
	want := []httplock.RegisteredRoute{
		{Method: "POST", Pattern: "/orders/:id"},
		{Method: "POST", Pattern: "/orders/:id/pay", PerKey: true},
		{Method: "POST", Pattern: "/g/a"},
		{Method: "PUT", Pattern: "/g/a", PerKey: true},
		{Method: "DELETE", Pattern: "/g/deep/b/*", PerKey: true},
		{Method: "POST", Pattern: "shop.example/hosted"},
	}
	routes, err := registered()
	require.NoError(t, err)
	require.ElementsMatch(t, want, routes)
	var problems *httplock.RoutesError
	require.ErrorAs(t, httplock.CheckRoutes(routes, nil), &problems)
	require.Len(t, problems.Problems, 3)

	e.Use(echolock.FromConfig(noRoutes{}))
	for i := range want {
		want[i].FromConfig = true
	}
	routes, err = registered()
	require.NoError(t, err)
	require.ElementsMatch(t, want, routes)
}

func TestWatchRoutes_ComesFirst(t *testing.T) {
	e := echo.New()
	e.POST("/early", func(echo.Context) error { return nil })
	_, err := echolock.WatchRoutes(e)()
	require.ErrorContains(t, err, "POST /early was registered before WatchRoutes was called")
}
