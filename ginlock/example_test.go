package ginlock_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/internal/embedded"
)

// One payment at a time per order. Payments for other orders are not held up.
func ExamplePerKey() {
	server, err := embedded.Start() // a Redis inside this process
	if err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()

	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()

	r := gin.New()
	r.POST("/orders/:id/pay", ginlock.PerKey(core.NewGuard(locker, nil), ginlock.Param("order:", "id")), func(c *gin.Context) {
		c.String(http.StatusOK, "paid")
	})
	pay := func(order string) {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/"+order+"/pay", nil))
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
