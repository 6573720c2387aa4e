package ginlock_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/internal/conformance"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Adapter{
		Name: "gin",
		New: func(app conformance.App) http.Handler {
			r := gin.New()
			r.Use(handlers(app.Use)...)
			for _, route := range app.Routes {
				r.Handle(route.Method, route.Colon(), append(handlers(route.Chain), func(c *gin.Context) {
					_ = route.Handler(c.Writer, c.Request)
				})...)
			}
			return r
		},
		Lacks: map[conformance.Capability]string{conformance.HandlerErrors: "handlers return nothing"},
	})
}

func handlers(steps []conformance.Step) (hs []gin.HandlerFunc) {
	for _, s := range steps {
		switch s := s.(type) {
		case conformance.Lock:
			hs = append(hs, ginlock.PerKey(s.Guard, s.Key, s.Options...))
		case conformance.Recovery:
			hs = append(hs, gin.Recovery())
		case conformance.Middleware:
			hs = append(hs, func(c *gin.Context) {
				_ = s(conformance.Context{
					Writer: c.Writer, Request: func() *http.Request { return c.Request },
					Next: func() error { c.Next(); return nil },
				})
			})
		}
	}
	return hs
}
