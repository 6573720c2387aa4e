package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// traffic is what the clients have in common.
type traffic struct {
	ctx    context.Context // until it ends, clients begin something new
	client *http.Client
	url    string
	config
	board  *scoreboard
	sent   atomic.Int64
	orders atomic.Int64
}

// drive has cfg.clients clients send cfg.requests requests, or without that as many as they
// can until ctx ends. It returns when each has its answer, and what was parked was run.
func drive(ctx context.Context, transport http.RoundTripper, url string, cfg config, board *scoreboard) {
	t := &traffic{ctx: ctx, client: &http.Client{Transport: transport, Timeout: 40 * time.Second}, url: url, config: cfg, board: board}
	defer t.client.CloseIdleConnections()
	t.orders.Store(1000)
	var clients sync.WaitGroup
	for i := range cfg.clients {
		clients.Go(func() {
			for ctx.Err() == nil && (t.requests == 0 || t.sent.Load() < int64(t.requests)) {
				[]func(int){t.pay, t.save, t.ship}[i%3](i / 3)
			}
		})
	}
	clients.Wait()
}

func (t *traffic) pause(from, to time.Duration) {
	select {
	case <-time.After(from + rand.N(to-from)):
	case <-t.ctx.Done():
	}
}

// pay pays a new order. Some customers click twice.
func (t *traffic) pay(int) {
	order := t.orders.Add(1)
	var clicks sync.WaitGroup
	clicks.Go(func() { t.send(routePay, order) })
	if rand.N(4) == 0 {
		time.Sleep(t.beat / 2)
		t.send(routePay, order)
	}
	clicks.Wait()
	t.pause(4*t.beat, 10*t.beat)
}

// save saves one of three carts. Each is open in several tabs.
func (t *traffic) save(tab int) {
	t.send(routeCart, int64(1+tab%3))
	t.pause(t.beat, 4*t.beat)
}

// ship has a new order shipped in several steps, and follows the tickets of those that were parked: the
// steps must have run in the order in which they were sent.
func (t *traffic) ship(int) {
	order := t.orders.Add(1)
	var first sync.WaitGroup
	first.Go(func() { t.send(routeShip, order) })
	time.Sleep(t.beat / 2)
	var steps []answer
	for range 2 + rand.N(3) {
		steps = append(steps, t.send(routeShip, order))
	}
	var last int
	for _, step := range steps {
		if step.status == http.StatusAccepted {
			step = t.follow(step.ticket)
		}
		if step.status != http.StatusOK {
			continue // not sent, or counted as failed or lost
		}
		if step.Run <= last {
			t.board.update(func(v *view) { v.violations++ })
		}
		last = step.Run
	}
	first.Wait()
	t.pause(6*t.beat, 16*t.beat)
}

// send sends a request, if there are any left to send. What is not an answer of the service is counted as failed.
func (t *traffic) send(route string, id int64) answer {
	if n := t.sent.Add(1); t.requests > 0 && n > int64(t.requests) {
		return answer{}
	}
	method, path, _ := strings.Cut(route, " ")
	got, err := t.ask(method, strings.ReplaceAll(path, ":id", fmt.Sprint(id)))
	if err != nil {
		t.board.failed(route, err)
	}
	return got
}

// follow waits for the result of a parked request.
func (t *traffic) follow(ticket string) answer {
	for range 3 {
		if got, err := t.ask(http.MethodGet, ticket); err == nil && got.Run > 0 {
			return got
		}
	}
	t.board.update(func(v *view) { v.lost++ })
	return answer{}
}

// answer is what came back: of a handler the number of its run, of a parked request its ticket.
type answer struct {
	status int
	ticket string
	Run    int
	Detail string // of a problem
}

// ask sends a request that no end of the context breaks off. A ticket is answered when its request has run.
func (t *traffic) ask(method, path string) (got answer, err error) {
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.ctx), method, t.url+path, http.NoBody)
	if err != nil {
		return got, err
	}
	req.Header.Set("Prefer", "wait=30")
	resp, err := t.client.Do(req)
	if err != nil {
		return got, err
	}
	defer func() { _ = resp.Body.Close() }()
	err = json.NewDecoder(resp.Body).Decode(&got)
	got.status, got.ticket = resp.StatusCode, resp.Header.Get("Location")
	switch {
	case got.status == http.StatusOK, got.status == http.StatusConflict, got.status == http.StatusAccepted && got.ticket != "":
		return got, err
	default:
		return got, errors.Join(fmt.Errorf("status %d: %s", got.status, got.Detail), err)
	}
}
