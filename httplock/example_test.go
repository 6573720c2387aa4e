package httplock_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/embedded"
)

// One payment at a time per order, with net/http alone.
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

	order := func(r *http.Request) (string, error) { return "order:" + r.PathValue("id"), nil }
	perOrder := httplock.PerKey(core.NewGuard(locker, nil), order)
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", perOrder(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "paid")
	})))
	pay := func() {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
		fmt.Println(w.Code, w.Header().Get("Content-Type"))
	}

	pay()
	_ = locker.Do(context.Background(), "order:42", func(context.Context) error {
		pay() // somebody else works on order 42
		return nil
	})
	// Output:
	// 200 text/plain; charset=utf-8
	// 409 application/problem+json
}
