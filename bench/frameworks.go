package main

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
)

// done is what each route answers.
const done = "paid"

var netHTTP = framework{
	name: "net/http",
	byHand: func(c contestant, visit visitor) http.Handler {
		return mux(visit, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h, err := c.Acquire(r.Context(), "order:"+r.PathValue("id"))
				if err != nil {
					w.WriteHeader(http.StatusConflict)
					return
				}
				defer func() { _ = h.Release(context.WithoutCancel(r.Context())) }()
				next.ServeHTTP(w, r)
			})
		})
	},
	perKey: func(guard *core.Guard, visit visitor) (http.Handler, error) {
		m, err := httplock.New(guard)
		return mux(visit, func(next http.Handler) http.Handler { return m.Handler(httplock.Param("order:", "id"), next) }), err
	},
	plain: func(visit visitor) http.Handler {
		return mux(visit, func(next http.Handler) http.Handler { return next })
	},
	beside: func(routes httplock.Routes, visit visitor) http.Handler {
		return httplock.FromConfig(routes)(mux(visit, func(next http.Handler) http.Handler { return next }))
	},
}

func mux(visit visitor, guard func(http.Handler) http.Handler) *http.ServeMux {
	m := http.NewServeMux()
	m.Handle("POST /orders/{id}", guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := visit(r.PathValue("id")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(done))
	})))
	return m
}

var ginFramework = framework{
	name: "gin",
	byHand: func(c contestant, visit visitor) http.Handler {
		return ginEngine(visit, func(g *gin.Context) {
			h, err := c.Acquire(g.Request.Context(), "order:"+g.Param("id"))
			if err != nil {
				g.AbortWithStatus(http.StatusConflict)
				return
			}
			defer func() { _ = h.Release(context.WithoutCancel(g.Request.Context())) }()
			g.Next()
		})
	},
	perKey: func(guard *core.Guard, visit visitor) (http.Handler, error) {
		h, err := ginlock.New(guard, ginlock.Param("order:", "id"))
		return ginEngine(visit, h), err
	},
	plain: func(visit visitor) http.Handler { return ginEngine(visit) },
	beside: func(routes httplock.Routes, visit visitor) http.Handler {
		return ginEngine(visit, ginlock.FromConfig(routes))
	},
}

func ginEngine(visit visitor, guard ...gin.HandlerFunc) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.Use(guard...)
	engine.POST("/orders/:id", func(c *gin.Context) {
		if err := visit(c.Param("id")); err != nil {
			c.String(http.StatusInternalServerError, err.Error())
			return
		}
		c.String(http.StatusOK, done)
	})
	return engine
}

var echoFramework = framework{
	name: "echo",
	byHand: func(c contestant, visit visitor) http.Handler {
		return echoEngine(visit, func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(e echo.Context) error {
				h, err := c.Acquire(e.Request().Context(), "order:"+e.Param("id"))
				if err != nil {
					return e.NoContent(http.StatusConflict)
				}
				defer func() { _ = h.Release(context.WithoutCancel(e.Request().Context())) }()
				return next(e)
			}
		})
	},
	perKey: func(guard *core.Guard, visit visitor) (http.Handler, error) {
		h, err := echolock.Config{Guard: guard, Key: echolock.Param("order:", "id")}.ToMiddleware()
		return echoEngine(visit, h), err
	},
	plain: func(visit visitor) http.Handler { return echoEngine(visit) },
	beside: func(routes httplock.Routes, visit visitor) http.Handler {
		return echoEngine(visit, echolock.FromConfig(routes))
	},
}

func echoEngine(visit visitor, guard ...echo.MiddlewareFunc) http.Handler {
	engine := echo.New()
	engine.Use(guard...)
	engine.POST("/orders/:id", func(c echo.Context) error {
		if err := visit(c.Param("id")); err != nil {
			return c.String(http.StatusInternalServerError, err.Error())
		}
		return c.String(http.StatusOK, done)
	})
	return engine
}
