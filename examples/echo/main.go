// Command echo is an order service on echo, with a route for each conflict policy.
//
//	go run ./examples/echo                                   a Redis inside it; sends itself some requests, and ends
//	go run ./examples/echo -listen localhost:8080            goes on to serve, for curl
//	go run ./examples/echo -redis redis://localhost:6379
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/examples/internal/show"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/retry"
)

// newRouter is the service: what it does to an order or a cart, it does one request at a
// time, whichever replica they come to.
func newRouter(locker *core.Locker, queue *delayqueue.Queue) *echo.Echo {
	refuse := locker.Guard(core.RejectConflicts)
	wait := locker.Guard(retry.Policy{MaxWait: 2 * time.Second})
	later := locker.Guard(delayqueue.Policy(queue))
	order, cart := echolock.ParamInt("order:", "id"), echolock.Param("cart:", "id")

	e := echo.New()
	e.Use(middleware.Recover())
	e.POST("/orders/:id/pay", answer("paid"), echolock.PerKey(refuse, order))
	e.PUT("/carts/:id", answer("put"), echolock.PerKey(wait, cart))
	e.POST("/orders/:id/ship", answer("shipped"), echolock.PerKey(later, order, httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous()))

	anyone := func(*http.Request, delayqueue.Status) bool { return true } // compare Status.Principal with your user
	e.Any("/tickets/*", echo.WrapHandler(httplock.TicketHandler(queue, anyone)))
	return e
}

func answer(what string) echo.HandlerFunc {
	return func(c echo.Context) error {
		// Work on a database claims there before it reads, sqlfence.Claim(ctx, db, lease), and writes in sqlfence.Write.
		lease, _ := echolock.Lease(c) // there is one: no GET comes here
		return c.String(http.StatusOK, fmt.Sprintf("%s %s, fence %d", c.Param("id"), what, lease.Fence()))
	}
}

func main() {
	redisURL := flag.String("redis", "", "URL of a Redis to use; empty: one inside this process")
	listen := flag.String("listen", "", "address to go on serving at; empty: ends after the requests of its own")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *redisURL, *listen, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, redisURL, listen string, out io.Writer) error {
	rdb, closeRedis, err := show.Connect(redisURL)
	if err != nil {
		return err
	}
	defer closeRedis()
	locker, err := core.New(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = locker.Close() }()
	queue, err := delayqueue.New(rdb, "ship")
	if err != nil {
		return err
	}
	router := newRouter(locker, queue)
	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(router)) // runs what was parked
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cmp.Or(listen, "127.0.0.1:0"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: router, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute}
	go func() { _ = server.Serve(listener) }()

	url := "http://" + listener.Addr().String()
	err = errors.Join(worker.Start(), show.Orders(ctx, url, rdb, out))
	if err == nil && listen != "" {
		fmt.Fprintln(out, "serving at", url)
		<-ctx.Done()
	}
	// Requests first, then parked ones, then the locks of both.
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	return errors.Join(err, server.Shutdown(stopCtx), worker.Stop(stopCtx), locker.Shutdown(stopCtx))
}
