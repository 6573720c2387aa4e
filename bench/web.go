package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
)

// framework is one that services are built with. Each way of guarding it has a handler
// that serves POST /orders/{id} behind the guard.
type framework struct {
	name   string
	byHand func(c contestant, visit visitor) http.Handler // the middleware that a team writes around a lock
	perKey func(guard *core.Guard, visit visitor) (http.Handler, error)
	plain  func(visit visitor) http.Handler // without a guard
	// beside is a service whose configuration guards other routes.
	beside func(routes httplock.Routes, visit visitor) http.Handler
}

// visitor is what the route does, for an order.
type visitor func(id string) error

var frameworks = []framework{netHTTP, ginFramework, echoFramework}

// web is the price of a guarded route as its clients see it, over loopback connections
// that stay open. No two requests at a time have the same key.
func web(b *bench) error {
	for _, f := range frameworks {
		for _, connections := range []int{1, 32} {
			if err := b.web(f, connections); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) web(f framework, connections int) error {
	results, err := b.requests(f, connections)
	if err != nil {
		return err
	}
	title := fmt.Sprintf("%s, %d connections, distinct keys", f.name, connections)
	if connections == 1 {
		title = f.name + ", 1 connection"
	}
	floor := f.name + "+raw"
	b.out.table(title, floor, results)
	perkey, raw := find(results, f.name+"+perkey"), find(results, floor)
	if connections == 1 {
		b.out.bar(bar{what: title + ", p50 × " + floor, got: perkey.ratio(raw, p50), want: 1.2})
		return nil
	}
	beside, plain := find(results, f.name+" beside"), find(results, f.name+" unguarded")
	b.out.bar(bar{
		what: title + ", beside guarded routes, requests/s × unguarded", got: beside.ratio(plain, perSecond), want: 0.9, atLeast: true,
	})
	b.out.bar(bar{
		what: title + ", requests/s × " + floor, got: perkey.ratio(raw, perSecond), want: 1.25, atLeast: true,
		figure: fmt.Sprintf("%.0f/s, %s %.0f/s", perkey.median(perSecond), floor, raw.median(perSecond)),
	})
	return nil
}

// routes are the ways in which the framework's route is guarded, in the order in which
// they take turns.
func (b *bench) routes(f framework) []route {
	byHand := func(name string, open func(target) (contestant, error)) route {
		return route{name, func(visit visitor) (http.Handler, io.Closer, error) {
			c, err := open(target{addr: b.server.addr, lease: leaseTime})
			if err != nil {
				return nil, nil, err
			}
			return f.byHand(c, visit), c, nil
		}}
	}
	return []route{
		byHand(f.name+"+raw", newRaw),
		byHand(f.name+"+group", newGroup),
		byHand(f.name+"+redislock", newRedislock),
		{f.name + "+perkey", func(visit visitor) (http.Handler, io.Closer, error) {
			rdb := target{addr: b.server.addr}.client()
			locker, err := core.New(rdb, core.WithTTL(leaseTime))
			if err != nil {
				return nil, nil, errors.Join(err, rdb.Close())
			}
			h, err := f.perKey(locker.Guard(core.RejectConflicts), visit)
			return h, ownClient{perkey{locker}, rdb}, err
		}},
		{f.name + " unguarded", func(visit visitor) (http.Handler, io.Closer, error) {
			return f.plain(visit), io.NopCloser(nil), nil
		}},
		{f.name + " beside", func(visit visitor) (http.Handler, io.Closer, error) {
			return f.beside(others{}, visit), io.NopCloser(nil), nil
		}},
	}
}

// others are guarded routes that nobody asks for.
type others struct{}

func (others) Route(string, string) (httplock.Route, bool) { return httplock.Route{}, false }

// route is one way to guard a route.
type route struct {
	name string
	// open returns the handler, and what to close after it.
	open func(visit visitor) (http.Handler, io.Closer, error)
}

func (b *bench) requests(f framework, connections int) ([]result, error) {
	var services []*service
	defer func() {
		for _, s := range services {
			s.close()
		}
	}()
	var entries []entry
	for _, r := range b.routes(f) {
		s, err := serve(r, connections)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		services = append(services, s)
		entries = append(entries, entry{r.name, s.request})
	}
	return b.measure(entries, sizes{workers: connections, turns: b.scale(20, 3), ops: max(20, 250/connections)})
}

// service has one route, and its clients.
type service struct {
	guard  io.Closer
	http   *http.Server
	client *http.Client
	urls   []string // each worker's
}

func serve(r route, connections int) (*service, error) {
	slots := newSlots(connections, "order")
	byID := map[string]*slot{}
	for i := range slots {
		byID[fmt.Sprint(i)] = &slots[i]
	}
	handler, guard, err := r.open(func(id string) error { return byID[id].visit() })
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, guard.Close())
	}
	s := &service{
		guard:  guard,
		http:   &http.Server{Handler: handler},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}},
	}
	for i := range slots {
		s.urls = append(s.urls, fmt.Sprintf("http://%s/orders/%d", ln.Addr(), i))
	}
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
