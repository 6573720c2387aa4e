// Package show is what the examples have in common: the Redis that they use, and the
// requests that an order service is shown with.
package show

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
)

// Orders sends requests to an order service, while another replica works on the same
// things, and says what came of each.
func Orders(ctx context.Context, url string, rdb *redis.Client, out io.Writer) error {
	replica, err := core.New(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = replica.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	c := &client{url: url, out: out}

	c.send(ctx, http.MethodPost, "/orders/42/pay")

	busy, err := replica.AcquireAll(ctx, []string{"order:42", "cart:42"})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "another replica works on order 42 and cart 42:")
	c.send(ctx, http.MethodPost, "/orders/42/pay")
	c.send(ctx, http.MethodPost, "/orders/7/pay")
	ticket := c.send(ctx, http.MethodPost, "/orders/42/ship")
	go func() { // it is done as soon as somebody waits
		for waiting := false; !waiting; time.Sleep(10 * time.Millisecond) {
			info, err := replica.Inspect(ctx, "cart:42")
			waiting = err != nil || info.Waiting > 0
		}
		_ = busy.Release(ctx)
	}()
	c.send(ctx, http.MethodPut, "/carts/42") // waits

	fmt.Fprintln(out, "then it was done, and what was parked runs:")
	for done := false; c.err == nil && !done; time.Sleep(20 * time.Millisecond) {
		done = strings.HasSuffix(c.send(ctx, http.MethodGet, ticket), "/result")
	}
	return c.err
}

// client sends requests, and says what came of each, until the first error.
type client struct {
	url string
	out io.Writer
	err error
}

// send returns the Location of the answer, or where it was redirected to.
func (c *client) send(ctx context.Context, method, path string) string {
	if c.err != nil {
		return ""
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, http.NoBody)
	if err != nil {
		c.err = err
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.err = err
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	c.err = err
	at, says := resp.Request.URL.Path, strings.TrimSpace(string(body))
	switch resp.StatusCode {
	case http.StatusConflict:
		says = "Retry-After: " + resp.Header.Get("Retry-After")
	case http.StatusAccepted:
		at = resp.Header.Get("Location")
		says = "Location: " + at
	}
	fmt.Fprintf(c.out, "  %-4s %-15s %d  %s\n", method, path, resp.StatusCode, says)
	return at
}
