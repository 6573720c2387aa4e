package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
)

// demonstrate sends requests and enqueues a task while another replica works on the same things, under the file as
// it is, under one that was changed, and under one that is wrong.
func demonstrate(ctx context.Context, rt *config.Runtime, handler http.Handler, invoiced <-chan string, out io.Writer) error {
	replica, err := core.New(rt.Redis(), core.WithPrefix("shop"))
	if err != nil {
		return err
	}
	defer func() { _ = replica.Close() }()
	c := &client{handler: handler, out: out}

	busy, err := replica.AcquireAll(ctx, []string{"order:42", "cart:42"})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "another replica works on order 42 and cart 42:")
	c.send(ctx, http.MethodPost, "/orders/42/pay")
	ticket := c.send(ctx, http.MethodPost, "/orders/42/ship")
	if err := enqueueInvoice(ctx, rt, replica); err != nil {
		return err
	}
	go releaseWhenAwaited(ctx, replica, "cart:42", busy.Release)
	c.send(ctx, http.MethodPut, "/carts/42") // waits
	if _, err := rt.Queue("ship").Wait(ctx, strings.TrimPrefix(ticket, "/tickets/")); err != nil {
		return err
	}
	c.send(ctx, http.MethodGet, ticket+"/result")
	select {
	case invoice := <-invoiced: // it waited for order 42 too
		fmt.Fprintln(out, " ", invoice)
	case <-ctx.Done():
		return ctx.Err()
	}

	// In production config.Runtime.Watch does this whenever the file changes.
	fmt.Fprintln(out, "pay waits too, from now on:")
	if err := reload(rt, "on_conflict: reject", "on_conflict: {policy: retry, max_wait: 5s}"); err != nil {
		return err
	}
	lease, err := replica.Acquire(ctx, "order:42")
	if err != nil {
		return err
	}
	go releaseWhenAwaited(ctx, replica, "order:42", lease.Release)
	c.send(ctx, http.MethodPost, "/orders/42/pay") // waits

	fmt.Fprintln(out, "a file with mistakes is refused, and the last one stays in force:")
	fmt.Fprintln(out, reload(rt, "max_wait: 2s", "max_wait: two seconds", "queue: ship", "queue: shop"))
	c.send(ctx, http.MethodPost, "/orders/42/pay")
	return nil
}

// enqueueInvoice enqueues a task for order 42, and waits until it was refused the key.
func enqueueInvoice(ctx context.Context, rt *config.Runtime, locker *core.Locker) error {
	client := asynq.NewClientFromRedisClient(rt.Redis())
	if _, err := client.EnqueueContext(ctx, asynq.NewTask("order:invoice", []byte(`{"order": 42}`))); err != nil {
		return err
	}
	for {
		_, waiting, err := asynqlock.Waiting(ctx, rt.Redis(), locker, "order:42", 1)
		if err != nil || waiting > 0 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// reload puts the file into force with some words replaced.
func reload(rt *config.Runtime, oldnew ...string) error {
	file, err := config.Parse("service.yaml", []byte(strings.NewReplacer(oldnew...).Replace(serviceYAML)))
	if err != nil {
		return err
	}
	return rt.Reload(file)
}

// releaseWhenAwaited lets the other replica be done as soon as somebody waits for the key.
func releaseWhenAwaited(ctx context.Context, replica *core.Locker, key string, release func(context.Context) error) {
	for waiting := false; !waiting; time.Sleep(10 * time.Millisecond) {
		info, err := replica.Inspect(ctx, key)
		waiting = err != nil || info.Waiting > 0
	}
	_ = release(ctx)
}

// client sends requests, and says what came of each.
type client struct {
	handler http.Handler
	out     io.Writer
}

// send returns the Location of the answer.
func (c *client) send(ctx context.Context, method, path string) string {
	w := httptest.NewRecorder()
	c.handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, http.NoBody))
	at := w.Header().Get("Location")
	says := w.Body.String()
	if w.Code == http.StatusConflict || w.Code == http.StatusAccepted {
		says = cmp.Or(at, "Retry-After: "+w.Header().Get("Retry-After"))
	}
	fmt.Fprintf(c.out, "  %-4s %-15s %d  %s\n", method, path, w.Code, says)
	return at
}
