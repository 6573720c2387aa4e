package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
)

// frameworks that services are built with. Each serves POST /orders/{id}.
var frameworks = []struct {
	name  string
	serve func(route) http.Handler
}{
	{"net/http", serveNetHTTP},
	{"gin", serveGin},
	{"echo", serveEcho},
}

// route is what is served. A guard that a team writes by hand is in its handler.
type route struct {
	handle func(ctx context.Context, order string)
	guard  *core.Guard // perkey's
	more   []httplock.Option
	others httplock.Routes // perkey's configuration has others, and not this one
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
					orders := newSections(connections, r.name+":order")
					var byHand lock
					var served route
					switch r.name {
					case "unguarded":
					case "perkey":
						served.guard = b.openPerkey().Guard(core.RejectConflicts)
					case "beside guarded routes":
						served.others = noRoutes{}
					default:
						byHand = b.openLock(r.name, connections)
					}
					served.handle = func(ctx context.Context, order string) {
						s := &orders[must(strconv.Atoi(order))]
						if byHand == nil {
							check(s.visit())
						} else { // nobody else wants the key: an error ends the connection, and the run
							check(s.pass(ctx, byHand))
						}
					}
					r.op = b.requests(connections, f.serve(served), func(*http.Request) {})
				}
				b.compare(fmt.Sprintf("%s, distinct keys, connections: %d", f.name, connections), all, "raw",
					size{connections, scale(b, 20, 3), max(20, 250/connections)}, bars[connections]...)
			}))
		}
	}
}

// idempotent is the price of a new Idempotency-Key for each request.
func idempotent(b *bench) {
	bars := map[int]bar{1: atMost("with a key", p50.over("guarded"), 1.4), 32: atLeast("with a key", perSecond.over("guarded"), 1/1.4)}
	for _, connections := range []int{1, 32} {
		check(b.run("idempotent", func(b *bench) {
			all, n := newTable("guarded", "with a key"), atomic.Int64{}
			for _, r := range all {
				rdb, prepare := b.client(b.server.addr), func(*http.Request) {}
				served := route{handle: func(context.Context, string) {}, guard: b.locker(rdb, leaseTime).Guard(core.RejectConflicts)}
				if r.name == "with a key" {
					served.more = []httplock.Option{httplock.WithIdempotency(must(idempotency.New(rdb, idempotency.WithTTL(time.Minute)))), httplock.WithAnonymous()}
					prepare = func(req *http.Request) {
						req.Header.Set("Idempotency-Key", fmt.Sprintf("%d.%d", connections, n.Add(1)))
					}
				}
				r.op = b.requests(connections, serveNetHTTP(served), prepare)
			}
			b.compare(fmt.Sprintf("net/http, distinct keys, connections: %d", connections), all, "guarded",
				size{connections, scale(b, 20, 3), max(20, 250/connections)}, bars[connections])
		}))
	}
}

// requests serves until the scenario ends, and returns the request that one of the clients makes.
func (b *bench) requests(connections int, handler http.Handler, prepare func(*http.Request)) func(context.Context, int) error {
	srv := httptest.NewServer(handler)
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
		prepare(req)
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

func serveNetHTTP(r route) http.Handler {
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.handle(req.Context(), req.PathValue("id"))
		_, _ = w.Write([]byte("paid"))
	})
	if r.guard != nil {
		handler = httplock.PerKey(r.guard, httplock.Param("order:", "id"), r.more...)(handler)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", handler)
	if r.others != nil {
		return httplock.FromConfig(r.others)(mux)
	}
	return mux
}

func serveGin(r route) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	if r.guard != nil {
		engine.Use(ginlock.PerKey(r.guard, ginlock.Param("order:", "id")))
	}
	if r.others != nil {
		engine.Use(ginlock.FromConfig(r.others))
	}
	engine.POST("/orders/:id", func(c *gin.Context) {
		r.handle(c.Request.Context(), c.Param("id"))
		c.String(http.StatusOK, "paid")
	})
	return engine
}

func serveEcho(r route) http.Handler {
	engine := echo.New()
	if r.guard != nil {
		engine.Use(echolock.PerKey(r.guard, echolock.Param("order:", "id")))
	}
	if r.others != nil {
		engine.Use(echolock.FromConfig(r.others))
	}
	engine.POST("/orders/:id", func(c echo.Context) error {
		r.handle(c.Request().Context(), c.Param("id"))
		return c.String(http.StatusOK, "paid")
	})
	return engine
}
