package echolock_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	echolock "github.com/perkey-go/perkey/echolock/v5"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/conformance"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Adapter{Name: "echo v5", Error: func(status int) error { return echo.NewHTTPError(status, "no") }, New: func(app conformance.App) http.Handler {
		e := echo.New()
		e.Logger = slog.New(slog.DiscardHandler) // errors that are meant
		e.Use(chain(app.Use)...)
		for _, r := range app.Routes {
			e.Add(r.Method, r.Colon(), func(c *echo.Context) error { return r.Handler(c.Response(), c.Request()) }, chain(r.Chain)...)
		}
		return e
	}})
}

func chain(steps []conformance.Step) []echo.MiddlewareFunc {
	return conformance.Chain(steps, func(l conformance.Lock) echo.MiddlewareFunc {
		return echolock.PerKey(l.Guard, l.Key, l.Options...)
	}, middleware.Recover(), func(mw conformance.Middleware) echo.MiddlewareFunc {
		return func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c *echo.Context) error {
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
	handler := func(*echo.Context) error {
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
	e.Any("/any", handler)
	want := []httplock.RegisteredRoute{
		{Method: "POST", Pattern: "/orders/:id"},
		{Method: "POST", Pattern: "/orders/:id/pay", PerKey: true},
		{Method: "POST", Pattern: "/g/a"},
		{Method: "PUT", Pattern: "/g/a", PerKey: true},
		{Method: "DELETE", Pattern: "/g/deep/b/*", PerKey: true},
		{Pattern: "/any"},
	}
	routes, err := registered()
	require.NoError(t, err)
	require.ElementsMatch(t, want, routes)
	var problems *httplock.RoutesError
	require.ErrorAs(t, httplock.CheckRoutes(routes, nil), &problems)
	require.Len(t, problems.Problems, 6)

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
	e.POST("/early", func(*echo.Context) error { return nil })
	_, err := echolock.WatchRoutes(e)()
	require.ErrorContains(t, err, "POST /early was registered before WatchRoutes was called")
}

// However a client writes a path, and echo is told to read it, a value has one key.
func TestPathParams_AreDecodedOnce(t *testing.T) {
	guard := newGuard(t)
	for name, router := range map[string]echo.RouterConfig{
		"default":             {},
		"unescaped":           {UnescapePathParamValues: true},
		"matched as it reads": {UseEscapedPathForMatching: true},
	} {
		e := echo.NewWithConfig(echo.Config{Router: echo.NewRouter(router)})
		for _, pattern := range []string{"/o/:id", "/t/:tenant/o/:id", "/rest/*id"} {
			e.POST(pattern, func(c *echo.Context) error {
				lease, _ := echolock.Lease(c)
				return c.String(http.StatusOK, lease.Key())
			}, echolock.PerKey(guard, echolock.Param("", "id")))
		}
		for path, want := range map[string]string{
			"/o/%34%32": "42", "/o/a%20b": "a b", "/o/%34%32%2525": "42%25", "/o/%34%32%25": "42%",
			"/t/%34%32/o/%2534%2532": "%34%32", "/t/%2534%2532/o/%34%32": "42", "/rest/a/%34%2525": "a/4%25",
		} {
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
			require.Equal(t, want, w.Body.String(), "%s: %s", name, path)
		}
	}
}
