package echolock_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	echolock "github.com/perkey-go/perkey/echolock/v5"
	"github.com/perkey-go/perkey/internal/test/conformance"
	"github.com/perkey-go/perkey/internal/test/redistest"
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
