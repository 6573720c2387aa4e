package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/lockclient"
)

// While somebody else works on the order, the service parks a request with 202. Its client has the response of the replay.
func ExampleNew() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()
	url, locker, stop := shipping(rdb)
	defer stop()

	transport, err := lockclient.New(nil)
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	other, err := locker.Acquire(ctx, "order:42")
	if err != nil {
		panic(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = other.Release(ctx) })

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/orders/42/ship", strings.NewReader("by train"))
	if err != nil {
		panic(err)
	}
	resp, err := client.Do(req)
	var lost *lockclient.TicketError
	switch {
	case errors.As(err, &lost):
		fmt.Println("parked, and no response yet:", lost.URL, lost.State)
	case err != nil:
		fmt.Println("not sent:", err)
	default:
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		fmt.Println(resp.StatusCode, string(body))
	}
	// Output: 201 order 42 goes by train
}

// shipping is a service that ships one order at a time, and parks the requests that meet another one.
func shipping(rdb *redis.Client) (url string, locker *core.Locker, stop func()) {
	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	queue, err := delayqueue.New(rdb, "ship")
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	later := httplock.PerKey(locker.Guard(delayqueue.Policy(queue)), httplock.ParamInt("order:", "id"),
		httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous())
	mux.Handle("POST /orders/{id}/ship", later(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		how, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "order %s goes %s", r.PathValue("id"), how)
	})))
	anyone := func(*http.Request, delayqueue.Status) bool { return true } // compare Status.Principal with your user
	mux.Handle("/tickets/", httplock.TicketHandler(queue, anyone))

	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(mux))
	if err != nil {
		panic(err)
	}
	if err := worker.Start(); err != nil {
		panic(err)
	}
	service := httptest.NewServer(mux)
	return service.URL, locker, func() {
		service.Close()
		_ = worker.Stop(context.Background())
		_ = locker.Close()
	}
}
