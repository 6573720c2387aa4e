package ginlock_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/embedded"
)

// One payment at a time per order. Payments for other orders are not held up.
func ExamplePerKey() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()

	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()

	r := gin.New()
	r.POST("/orders/:id/pay", ginlock.PerKey(locker.Guard(core.RejectConflicts), ginlock.Param("order:", "id")), func(c *gin.Context) {
		c.String(http.StatusOK, "paid")
	})
	pay := func(order string) {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/orders/"+order+"/pay", nil))
		fmt.Println("order", order, "→", w.Code, w.Header().Get("Content-Type"))
	}

	pay("42")
	// Somebody works on order 42: another request, or a job in another process.
	_ = locker.Do(context.Background(), "order:42", func(context.Context) error {
		pay("42")
		pay("43")
		return nil
	})
	pay("42")
	// Output:
	// order 42 → 200 text/plain; charset=utf-8
	// order 42 → 409 application/problem+json
	// order 43 → 200 text/plain; charset=utf-8
	// order 42 → 200 text/plain; charset=utf-8
}

// A request for a busy order is put on a queue, answered with 202, and run when
// its turn comes.
func ExamplePerKey_parked() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()

	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()
	queue, err := delayqueue.New(rdb, "ship")
	if err != nil {
		panic(err)
	}
	later := locker.Guard(delayqueue.Policy(queue))

	r := gin.New()
	shipped := make(chan struct{})
	r.POST("/orders/:id/ship",
		ginlock.PerKey(later, ginlock.Param("order:", "id"), httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous()),
		func(c *gin.Context) {
			_, replayed := httplock.Replayed(c.Request.Context())
			fmt.Println("order", c.Param("id"), "shipped, replayed:", replayed)
			c.Status(http.StatusNoContent)
			close(shipped)
		})
	// The id of a ticket cannot be guessed: here, whoever has it may ask.
	r.Any("/tickets/*path", gin.WrapH(httplock.TicketHandler(queue, func(*http.Request, delayqueue.Status) bool { return true })))

	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(r))
	if err != nil {
		panic(err)
	}
	if err := worker.Start(); err != nil {
		panic(err)
	}
	defer func() { _ = worker.Stop(context.Background()) }()

	// Somebody works on order 42.
	_ = locker.Do(context.Background(), "order:42", func(context.Context) error {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/orders/42/ship", nil))
		fmt.Println("answered with", w.Code)

		at := w.Header().Get("Location")
		w = httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, at, nil))
		fmt.Println("its ticket is answered with", w.Code)
		return nil
	})
	<-shipped
	// Output:
	// answered with 202
	// its ticket is answered with 200
	// order 42 shipped, replayed: true
}

// One guard stands in front of a whole engine. What is not about an order needs no key.
func ExampleNoKey() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()
	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()

	order := ginlock.ParamInt("order:", "order")
	key := func(r *http.Request) (string, error) {
		if r.PathValue("order") == "" {
			return "", ginlock.NoKey
		}
		return order(r)
	}
	r := gin.New()
	r.Use(ginlock.PerKey(locker.Guard(core.RejectConflicts), key))
	tell := func(c *gin.Context) {
		if lease, held := ginlock.Lease(c); held {
			fmt.Println(c.Request.URL.Path, "runs under", lease.Key())
			return
		}
		fmt.Println(c.Request.URL.Path, "needs no key")
	}
	r.POST("/login", tell)
	r.POST("/orders/:order/pay", tell)
	for _, path := range []string{"/login", "/orders/42/pay", "/orders/+042/pay"} {
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(context.Background(), http.MethodPost, path, nil))
	}
	// Output:
	// /login needs no key
	// /orders/42/pay runs under order:42
	// /orders/+042/pay runs under order:42
}
