// Command nethttp is an order service on net/http, with a route for each conflict policy.
//
//	go run ./examples/nethttp                                a Redis inside it; sends itself some requests, and ends
//	go run ./examples/nethttp -listen localhost:8080         goes on to serve, for curl
//	go run ./examples/nethttp -redis redis://localhost:6379
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

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/examples/internal/show"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/retry"
)

// newRouter is the service: what it does to an order or a cart, it does one request at a
// time, whichever replica they come to.
func newRouter(locker *core.Locker, queue *delayqueue.Queue) *http.ServeMux {
	order, cart := httplock.ParamInt("order:", "id"), httplock.Param("cart:", "id")
	refuse := httplock.PerKey(locker.Guard(core.RejectConflicts), order)
	wait := httplock.PerKey(locker.Guard(retry.Policy{MaxWait: 2 * time.Second}), cart)
	later := httplock.PerKey(locker.Guard(delayqueue.Policy(queue)), order, httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous())

	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", refuse(answer("paid")))
	mux.Handle("PUT /carts/{id}", wait(answer("put")))
	mux.Handle("POST /orders/{id}/ship", later(answer("shipped")))

	anyone := func(*http.Request, delayqueue.Status) bool { return true } // compare Status.Principal with your user
	mux.Handle("/tickets/", httplock.TicketHandler(queue, anyone))
	return mux
}

func answer(what string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Work on a database claims there before it reads, sqlfence.Claim(ctx, db, lease), and writes in sqlfence.Write.
		lease, _ := core.LeaseFrom(r.Context()) // there is one: no GET comes here
		fmt.Fprintf(w, "%s %s, fence %d", r.PathValue("id"), what, lease.Fence())
	})
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
