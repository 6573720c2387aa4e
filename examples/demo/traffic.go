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

// ids is how many orders and carts the clients fight over.
const ids = 6

// drive sends cfg.requests requests from cfg.clients clients, and returns the
// tickets of those that were parked.
func drive(ctx context.Context, url string, cfg config, board *scoreboard) (tickets []string) {
	transport := &http.Transport{MaxIdleConnsPerHost: cfg.clients}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}

	var mu sync.Mutex
	var sent atomic.Int64
	var clients sync.WaitGroup
	for range cfg.clients {
		clients.Go(func() {
			for sent.Add(1) <= int64(cfg.requests) && ctx.Err() == nil {
				route := []string{routePay, routeCart, routeShip}[rand.N(3)]
				ticket, err := send(ctx, client, url, route, board)
				if err != nil {
					board.failed(route, err)
				}
				if ticket != "" {
					mu.Lock()
					tickets = append(tickets, ticket)
					mu.Unlock()
				}
			}
		})
	}
	clients.Wait()
	return tickets
}

// send sends one request to route and counts the answer.
func send(ctx context.Context, client *http.Client, url, route string, board *scoreboard) (ticket string, err error) {
	method, path, _ := strings.Cut(route, " ")
	path = strings.ReplaceAll(path, ":id", fmt.Sprint(1+rand.N(ids)))
	req, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(`{"note":"from the demo"}`))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	board.requested(route)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return "", nil
	case http.StatusConflict:
		board.rejected(route)
		return "", nil
	case http.StatusAccepted:
		var parked struct{ ID string }
		if err := json.Unmarshal(body, &parked); err != nil || parked.ID == "" {
			return "", fmt.Errorf("a 202 without a ticket: %s", body)
		}
		board.parked(route)
		return parked.ID, nil
	default:
		return "", fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
}
