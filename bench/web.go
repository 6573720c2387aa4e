package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
)

// frameworks that services are built with. Each serves POST /orders/{id} behind a guard.
var frameworks = []struct {
	name  string
	serve func(g guard, visit func(order string)) http.Handler
}{
	{"net/http", serveNetHTTP},
	{"gin", serveGin},
	{"echo", serveEcho},
}

// guard is how the route is guarded. It has one of these, or none.
type guard struct {
	byHand lock            // in the middleware that a team writes
	perkey *core.Guard     // in perkey's
	routes httplock.Routes // perkey's configuration has others, and not this one
}

// around is what the middleware of a team does. Nobody else wants the key: an error ends the connection, and the run.
func (g guard) around(ctx context.Context, order string, handler func()) {
	h := must(g.byHand(ctx, "order:"+order))
	defer func() { check(h.Release(context.WithoutCancel(ctx))) }()
	handler()
}

// noRoutes has no route.
type noRoutes struct{}

func (noRoutes) Route(string, string) (httplock.Route, bool) { return httplock.Route{}, false }

// web is the price of a guarded route as its clients see it, over loopback connections
// that stay open. No two requests at a time have the same key.
func web(b *bench) {
	bars := map[int][]bar{
		1:  {atMost("perkey", p50.over("raw"), 1.2)},
		32: {atLeast("beside guarded routes", perSecond.over("unguarded"), 0.9), atLeast("perkey", perSecond.over("raw"), 1.25)},
	}
	for _, f := range frameworks {
		for _, connections := range []int{1, 32} {
			check(b.run(f.name, func(b *bench) {
				all := newTable("raw", "group", "redislock", "perkey", "unguarded", "beside guarded routes")
				for _, r := range all {
					var g guard
					switch r.name {
					case "unguarded":
					case "perkey":
						g.perkey = b.openPerkey().Guard(core.RejectConflicts)
					case "beside guarded routes":
						g.routes = noRoutes{}
					default:
						g.byHand = b.openLock(r.name, connections)
					}
					r.op = b.requests(connections, func(visit func(order string)) http.Handler { return f.serve(g, visit) })
				}
				b.compare(fmt.Sprintf("%s, distinct keys, connections: %d", f.name, connections), all, "raw",
					size{connections, scale(b, 20, 3), max(20, 250/connections)}, bars[connections]...)
			}))
		}
	}
}

// requests serves a route until the scenario ends, and returns the request that one of its clients makes.
func (b *bench) requests(connections int, serve func(visit func(order string)) http.Handler) func(context.Context, int) error {
	orders := newSections(connections, "order")
	srv := httptest.NewServer(serve(func(order string) { check(orders[must(strconv.Atoi(order))].visit()) }))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	b.cleanup(func() error {
		client.CloseIdleConnections()
		srv.Close()
		return nil
	})
	return func(ctx context.Context, worker int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/orders/%d", srv.URL, worker), http.NoBody)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil { // there is no answer if two were inside at once
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("answered %s: %s", resp.Status, body)
		}
		return err
	}
}

func serveNetHTTP(g guard, visit func(order string)) http.Handler {
	var route http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		visit(r.PathValue("id"))
		_, _ = w.Write([]byte("paid"))
	})
	switch handler := route; {
	case g.byHand != nil:
		route = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.around(r.Context(), r.PathValue("id"), func() { handler.ServeHTTP(w, r) })
		})
	case g.perkey != nil:
		route = httplock.PerKey(g.perkey, httplock.Param("order:", "id"))(handler)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", route)
	if g.routes != nil {
		return httplock.FromConfig(g.routes)(mux)
	}
	return mux
}

func serveGin(g guard, visit func(order string)) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	switch {
	case g.byHand != nil:
		engine.Use(func(c *gin.Context) { g.around(c.Request.Context(), c.Param("id"), c.Next) })
	case g.perkey != nil:
		engine.Use(ginlock.PerKey(g.perkey, ginlock.Param("order:", "id")))
	case g.routes != nil:
		engine.Use(ginlock.FromConfig(g.routes))
	}
	engine.POST("/orders/:id", func(c *gin.Context) {
		visit(c.Param("id"))
		c.String(http.StatusOK, "paid")
	})
	return engine
}

func serveEcho(g guard, visit func(order string)) http.Handler {
	engine := echo.New()
	switch {
	case g.byHand != nil:
		engine.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) (err error) {
				g.around(c.Request().Context(), c.Param("id"), func() { err = next(c) })
				return err
			}
		})
	case g.perkey != nil:
		engine.Use(echolock.PerKey(g.perkey, echolock.Param("order:", "id")))
	case g.routes != nil:
		engine.Use(echolock.FromConfig(g.routes))
	}
	engine.POST("/orders/:id", func(c echo.Context) error {
		visit(c.Param("id"))
		return c.String(http.StatusOK, "paid")
	})
	return engine
}
