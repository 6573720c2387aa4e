package ginlock_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/internal/test/conformance"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Adapter{
		Name: "gin",
		New: func(app conformance.App) http.Handler {
			r := gin.New()
			r.Use(chain(app.Use)...)
			for _, route := range app.Routes {
				r.Handle(route.Method, route.Colon(), append(chain(route.Chain), func(c *gin.Context) {
					_ = route.Handler(c.Writer, c.Request)
				})...)
			}
			return r
		},
		Lacks: map[conformance.Capability]string{conformance.HandlerErrors: "handlers return nothing"},
	})
}

func chain(steps []conformance.Step) []gin.HandlerFunc {
	return conformance.Chain(steps, func(l conformance.Lock) gin.HandlerFunc {
		return ginlock.PerKey(l.Guard, l.Key, l.Options...)
	}, gin.Recovery(), func(mw conformance.Middleware) gin.HandlerFunc {
		return func(c *gin.Context) {
			_ = mw(conformance.Context{
				Writer:  func() http.ResponseWriter { return c.Writer },
				Request: func() *http.Request { return c.Request },
				Next: func() error {
					c.Next()
					return nil
				},
			})
		}
	})
}
