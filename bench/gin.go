package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

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
	{"gin+raw", handWritten(newRaw)},
	{"gin+group", handWritten(newGroup)},
	{"gin+redislock", handWritten(newRedislock)},
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
		perkey, raw := find(results, "gin+perkey"), find(results, "gin+raw")
		if connections == 1 {
			b.out.bar(bar{what: title + ", p50 × gin+raw", got: perkey.ratio(raw, p50), want: 1.3})
			continue
		}
		b.out.bar(bar{
			what: title + ", requests/s × gin+raw", got: perkey.ratio(raw, perSecond), want: 1.2, atLeast: true,
			figure: fmt.Sprintf("%.0f/s, gin+raw %.0f/s", perkey.median(perSecond), raw.median(perSecond)),
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
	return b.measure(entries, sizes{workers: connections, turns: b.scale(20, 3), ops: max(20, 250/connections)})
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
func handWritten(open func(target) (contestant, error)) func(*bench) (gin.HandlerFunc, io.Closer, error) {
	return func(b *bench) (gin.HandlerFunc, io.Closer, error) {
		c, err := open(target{addr: b.server.addr, lease: leaseTime})
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
}

// perKey is what replaces it.
func (b *bench) perKey() (gin.HandlerFunc, io.Closer, error) {
	rdb := target{addr: b.server.addr}.client()
	locker, err := core.New(rdb, core.WithTTL(leaseTime))
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	h, err := ginlock.New(core.NewGuard(locker, nil), ginlock.Param("order:", "id"))
	return h, ownClient{perkey{locker}, rdb}, err
}
