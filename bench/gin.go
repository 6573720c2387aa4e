package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
)

// route is one way to guard a route of a gin service.
type route struct {
	name string
	// open returns the middleware, and what to close after it. A nil middleware
	// guards nothing.
	open func(b *bench) (gin.HandlerFunc, io.Closer, error)
}

// routes in the order in which they take turns.
var routes = []route{
	{"gin+raw", func(b *bench) (gin.HandlerFunc, io.Closer, error) { return b.handWritten(newRaw) }},
	{"gin+perkey", (*bench).perKey},
	{"gin unguarded", func(*bench) (gin.HandlerFunc, io.Closer, error) { return nil, io.NopCloser(nil), nil }},
}

// ginMiddleware is the price of a guarded route as its clients see it, over
// loopback connections that stay open. No two requests at a time have the same key.
func ginMiddleware(b *bench) error {
	gin.SetMode(gin.ReleaseMode)
	for _, connections := range []int{1, 32} {
		results, err := b.requests(connections)
		if err != nil {
			return err
		}
		title := fmt.Sprintf("gin, %d connections, distinct keys", connections)
		if connections == 1 {
			title = "gin, 1 connection"
		}
		b.out.table(title, "gin+raw", results)
		b.out.bars = append(b.out.bars, bar{
			what: title + ", p50 × gin+raw",
			got:  find(results, "gin+perkey").ratio(find(results, "gin+raw"), p50), want: 1.3,
		})
	}
	return nil
}

func (b *bench) requests(connections int) ([]result, error) {
	var services []*service
	defer func() {
		for _, s := range services {
			s.close()
		}
	}()
	entries := make([]entry, len(routes))
	for i, r := range routes {
		s, err := b.serve(r, connections)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		services = append(services, s)
		entries[i] = entry{r.name, s.request}
	}
	return b.measure(entries, sizes{workers: connections, turns: b.scale(20, 5), ops: max(20, 250/connections)})
}

// service is a gin service with one route, and its clients.
type service struct {
	guard  io.Closer
	http   *http.Server
	client *http.Client
	urls   []string // each worker's
	slots  map[string]*slot
}

func (b *bench) serve(r route, connections int) (*service, error) {
	guard, closer, err := r.open(b)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, closer.Close())
	}
	s := &service{
		guard:  closer,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}},
		urls:   make([]string, connections),
		slots:  map[string]*slot{},
	}
	slots := newSlots(connections, "order")
	for i := range slots {
		id := fmt.Sprint(i)
		s.slots[id] = &slots[i]
		s.urls[i] = "http://" + ln.Addr().String() + "/orders/" + id
	}
	engine := gin.New()
	if guard != nil {
		engine.Use(guard)
	}
	engine.POST("/orders/:id", func(c *gin.Context) {
		if err := s.slots[c.Param("id")].visit(); err != nil {
			c.String(http.StatusInternalServerError, err.Error())
			return
		}
		c.String(http.StatusOK, "paid")
	})
	s.http = &http.Server{Handler: engine}
	go func() { _ = s.http.Serve(ln) }()
	return s, nil
}

func (s *service) request(ctx context.Context, worker int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.urls[worker], http.NoBody)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
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

func (s *service) close() {
	s.client.CloseIdleConnections()
	_ = s.http.Close()
	_ = s.guard.Close()
}

// handWritten is the middleware that a team writes around a lock.
func (b *bench) handWritten(open func(redis.UniversalClient) (contestant, error)) (gin.HandlerFunc, io.Closer, error) {
	c, err := b.open(open)
	if err != nil {
		return nil, nil, err
	}
	return func(g *gin.Context) {
		h, err := c.Acquire(g.Request.Context(), "order:"+g.Param("id"))
		if err != nil {
			g.AbortWithStatus(http.StatusConflict)
			return
		}
		defer func() { _ = h.Release(context.WithoutCancel(g.Request.Context())) }()
		g.Next()
	}, c, nil
}

// perKey is what replaces it.
func (b *bench) perKey() (gin.HandlerFunc, io.Closer, error) {
	rdb := b.client()
	locker, err := core.New(rdb, core.WithTTL(leaseTime))
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	h, err := ginlock.New(core.NewGuard(locker, nil), ginlock.Param("order:", "id"))
	return h, ownClient{perkey{locker}, rdb}, err
}
