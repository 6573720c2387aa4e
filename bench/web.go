package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
)

// framework is one that services are built with. Each way of guarding it has a handler
// that serves POST /orders/{id} behind the guard.
type framework struct {
	name   string
	byHand func(l lock, visit visitor) http.Handler // the middleware that a team writes around a lock
	perKey func(guard *core.Guard, visit visitor) (http.Handler, error)
	plain  func(visit visitor) http.Handler // without a guard
	// beside is a service whose configuration guards other routes.
	beside func(routes httplock.Routes, visit visitor) http.Handler
}

// visitor is what the route does, for an order.
type visitor func(id string) error

// others are guarded routes that nobody asks for.
type others struct{}

func (others) Route(string, string) (httplock.Route, bool) { return httplock.Route{}, false }

// web is the price of a guarded route as its clients see it, over loopback connections
// that stay open. No two requests at a time have the same key.
func web(b *bench) {
	for _, f := range []framework{netHTTP, ginFramework, echoFramework} {
		for _, connections := range []int{1, 32} {
			check(b.run(f.name, func(b *bench) { b.web(f, connections) }))
		}
	}
}

func (b *bench) web(f framework, connections int) {
	var entries []entry
	add := func(way string, guard func(visit visitor) (http.Handler, error)) {
		entries = append(entries, entry{f.name + way, b.service(connections, guard)})
	}
	for _, name := range []string{"raw", "group", "redislock"} {
		l := b.openLock(name, connections)
		add("+"+name, func(visit visitor) (http.Handler, error) { return f.byHand(l, visit), nil })
	}
	perkeyLock := b.openLock("perkey", connections).(perkeyLock)
	guard := perkeyLock.Guard(core.RejectConflicts)
	add("+perkey", func(visit visitor) (http.Handler, error) { return f.perKey(guard, visit) })
	add(" unguarded", func(visit visitor) (http.Handler, error) { return f.plain(visit), nil })
	add(" beside", func(visit visitor) (http.Handler, error) { return f.beside(others{}, visit), nil })

	title := fmt.Sprintf("%s, %d connections, distinct keys", f.name, connections)
	if connections == 1 {
		title = f.name + ", 1 connection"
	}
	all := b.measure(entries, sizes{connections, scale(b, 20, 3), max(20, 250/connections)})
	all.printOps(title, f.name+"+raw")
	perkey, raw := all.find(f.name+"+perkey"), all.find(f.name+"+raw")
	if connections == 1 {
		b.atMost(title+", p50 × "+raw.name, perkey.ratio(raw, p50), 1.2)
		return
	}
	beside, plain := all.find(f.name+" beside"), all.find(f.name+" unguarded")
	b.atLeast(title+", beside guarded routes, requests/s × unguarded", beside.ratio(plain, perSecond), 0.9)
	b.atLeast(title+", requests/s × "+raw.name, perkey.ratio(raw, perSecond), 1.25, rates(perkey, raw))
}

// service serves a route until the scenario ends, and returns the request that one of its clients makes.
func (b *bench) service(connections int, guard func(visit visitor) (http.Handler, error)) func(context.Context, int) error {
	orders := newGuarded(connections, "order")
	byID := map[string]*guarded{}
	for i := range orders {
		byID[fmt.Sprint(i)] = &orders[i]
	}
	srv := httptest.NewServer(must(guard(func(id string) error { return byID[id].visit() })))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	b.cleanup(func() {
		client.CloseIdleConnections()
		srv.Close()
	})
	urls := make([]string, connections)
	for i := range urls {
		urls[i] = fmt.Sprintf("%s/orders/%d", srv.URL, i)
	}
	return func(ctx context.Context, worker int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, urls[worker], http.NoBody)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("answered %s: %s", resp.Status, body)
		}
		return err
	}
}

// done is what each route answers.
const done = "paid"

var netHTTP = framework{
	name: "net/http",
	byHand: func(l lock, visit visitor) http.Handler {
		return mux(visit, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h, err := l.Acquire(r.Context(), "order:"+r.PathValue("id"))
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
	byHand: func(l lock, visit visitor) http.Handler {
		return ginEngine(visit, func(g *gin.Context) {
			h, err := l.Acquire(g.Request.Context(), "order:"+g.Param("id"))
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
	byHand: func(l lock, visit visitor) http.Handler {
		return echoEngine(visit, func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(e echo.Context) error {
				h, err := l.Acquire(e.Request().Context(), "order:"+e.Param("id"))
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
