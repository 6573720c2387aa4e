package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// carts is how many carts there are. Each is open in several tabs.
const carts = 3

// traffic is what the clients have in common.
type traffic struct {
	ctx    context.Context // until it ends, clients begin something new
	client *http.Client
	url    string
	beat   time.Duration
	board  *scoreboard
	limit  int64
	sent   atomic.Int64
	orders atomic.Int64
}

// drive has cfg.clients clients send cfg.requests requests, or without that as many as they
// can until ctx ends. It returns when each has its answer, and what was parked was run.
func drive(ctx context.Context, url string, cfg config, board *scoreboard) {
	transport := &http.Transport{MaxIdleConnsPerHost: cfg.clients}
	defer transport.CloseIdleConnections()
	t := &traffic{
		ctx: ctx, client: &http.Client{Transport: transport, Timeout: 40 * time.Second}, url: url,
		beat: cfg.beat, board: board, limit: int64(cfg.requests),
	}
	t.orders.Store(1000)
	var clients sync.WaitGroup
	for i := range cfg.clients {
		clients.Go(func() {
			for t.more() {
				[]func(int){t.pay, t.save, t.ship}[i%3](i / 3 % carts)
			}
		})
	}
	clients.Wait()
}

func (t *traffic) more() bool {
	return t.ctx.Err() == nil && (t.limit == 0 || t.sent.Load() < t.limit)
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

// save saves a cart in one of its tabs.
func (t *traffic) save(cart int) {
	t.send(routeCart, int64(cart+1))
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
		if step.run <= last {
			t.board.swapped()
		}
		last = step.run
	}
	first.Wait()
	t.pause(6*t.beat, 16*t.beat)
}

// answer is what came back: of a handler the number of its run, of a parked request its ticket.
type answer struct {
	status int
	ticket string
	run    int
}

// send sends a request, if there are any left to send. What is not an answer of the service is counted as failed.
func (t *traffic) send(route string, id int64) answer {
	if n := t.sent.Add(1); t.limit > 0 && n > t.limit {
		return answer{}
	}
	method, path, _ := strings.Cut(route, " ")
	got, err := t.ask(method, strings.ReplaceAll(path, ":id", fmt.Sprint(id)), "")
	if err != nil {
		t.board.failed(route, err)
	}
	return got
}

// follow waits for the result of a parked request.
func (t *traffic) follow(ticket string) answer {
	for range 3 {
		got, err := t.ask(http.MethodGet, ticket, "wait=30")
		if err == nil && got.run > 0 {
			return got
		}
	}
	t.board.lost()
	return answer{}
}

// ask sends a request that no end of the context breaks off.
func (t *traffic) ask(method, path, prefer string) (answer, error) {
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.ctx), method, t.url+path, http.NoBody)
	if err != nil {
		return answer{}, err
	}
	if prefer != "" {
		req.Header.Set("Prefer", prefer)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	got := answer{status: resp.StatusCode, ticket: resp.Header.Get("Location")}
	switch got.status {
	case http.StatusOK:
		var said struct{ Run int }
		err = json.Unmarshal(body, &said)
		got.run = said.Run
	case http.StatusAccepted:
		if got.ticket == "" {
			err = fmt.Errorf("a 202 without a Location: %s", body)
		}
	case http.StatusConflict:
	default:
		err = fmt.Errorf("status %d: %s", got.status, body)
	}
	return got, err
}
