// Command config is an order service whose guards are chosen in a file, service.yaml, by
// route, and by type for its asynq tasks. It sends itself some requests, and changes the file while it runs.
//
//	go run ./examples/config                                    a Redis inside it
//	go run ./examples/config -redis redis://localhost:6379
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/hibiken/asynq"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/examples/internal/show"
	"github.com/perkey-go/perkey/httplock"
)

//go:embed service.yaml
var serviceYAML string

func main() {
	redisURL := flag.String("redis", "", "URL of a Redis to use; empty: one inside this process")
	flag.Parse()
	if err := run(context.Background(), *redisURL, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// newHandler is the service. None of its routes says how it is guarded: that is the file's
// business. gin and echo have a FromConfig too.
func newHandler(rt *config.Runtime) (http.Handler, error) {
	mux := http.NewServeMux()
	var patterns []string
	handle := func(pattern string, h http.Handler) {
		mux.Handle(pattern, h)
		patterns = append(patterns, pattern)
	}
	handle("POST /orders/{id}/pay", answer("paid"))
	handle("PUT /carts/{id}", answer("put"))
	handle("POST /orders/{id}/ship", answer("shipped"))

	anyone := func(*http.Request, delayqueue.Status) bool { return true } // compare Status.Principal with your user
	handle("/tickets/", httplock.TicketHandler(rt.Queue("ship"), anyone))

	h := httplock.FromConfig(rt)(mux)
	routes, err := httplock.MuxRoutes(h, patterns...)
	if err == nil {
		err = rt.CheckRoutes(routes, "/tickets/") // which are to have no guard
	}
	return h, err
}

func answer(what string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Work on a database claims there before it reads, sqlfence.Claim(ctx, db, lease), and writes in sqlfence.Write.
		lease, _ := core.LeaseFrom(r.Context()) // there is one: no GET comes here
		fmt.Fprintf(w, "%s %s, fence %d", r.PathValue("id"), what, lease.Fence())
	})
}

// newTasks is what runs the service's tasks. Nor do these say how they are guarded.
func newTasks(rt *config.Runtime, invoiced chan<- string) asynq.Handler {
	mux := asynq.NewServeMux()
	mux.Use(asynqlock.FromConfig(rt))
	mux.HandleFunc("order:invoice", func(ctx context.Context, task *asynq.Task) error {
		lease, _ := core.LeaseFrom(ctx)
		invoiced <- fmt.Sprintf("task %s %s, fence %d", task.Type(), task.Payload(), lease.Fence())
		return nil
	})
	return mux
}

func run(ctx context.Context, redisURL string, out io.Writer) (err error) {
	rdb, closeRedis, err := show.Connect(redisURL)
	if err != nil {
		return err
	}
	defer closeRedis()
	file, err := config.Parse("service.yaml", []byte(serviceYAML)) // or config.Load("service.yaml")
	if err != nil {
		return err
	}
	rt, err := config.Build(file, config.WithClient(rdb)) // without WithClient: the Redis of the file
	if err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		defer cancel()
		err = errors.Join(err, rt.Shutdown(stopCtx))
	}()
	handler, err := newHandler(rt)
	if err != nil {
		return err
	}
	worker, err := rt.Worker("ship", httplock.Replay(handler)) // runs what was parked
	if err != nil {
		return err
	}
	server, err := asynqlock.NewServer(rdb, asynq.Config{
		LogLevel: asynq.FatalLevel, // for the example's output alone
	})
	if err != nil {
		return err
	}
	defer server.Shutdown() // before rt
	invoiced := make(chan string, 1)
	if err := errors.Join(worker.Start(), server.Start(newTasks(rt, invoiced))); err != nil {
		return err
	}
	return demonstrate(ctx, rt, handler, invoiced, out)
}
