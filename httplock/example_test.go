package httplock_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/embedded"
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
	perOrder := httplock.PerKey(locker.Guard(core.RejectConflicts), order)
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

// A client that does not know whether its payment arrived sends it again under the same
// Idempotency-Key. It is made once.
func ExampleWithIdempotency() {
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
	store, err := idempotency.New(rdb)
	if err != nil {
		panic(err)
	}

	order := func(r *http.Request) (string, error) { return "order:" + r.PathValue("id"), nil }
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil } // whom your authentication found
	perOrder := httplock.PerKey(locker.Guard(core.RejectConflicts), order,
		httplock.WithIdempotency(store, httplock.RequireIdempotencyKey()), httplock.WithPrincipal(user))
	payments := 0
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", perOrder(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, "payment ", payments)
	})))
	pay := func(key, amount string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/orders/42/pay", strings.NewReader(amount))
		r.Header.Set("X-User", "ann")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		mux.ServeHTTP(w, r)
		switch {
		case w.Code >= http.StatusBadRequest:
			fmt.Println(w.Code)
		case w.Header().Get("Idempotent-Replayed") == "true":
			fmt.Println(w.Code, w.Body, "again")
		default:
			fmt.Println(w.Code, w.Body)
		}
	}

	pay(`"a7f3"`, "10 EUR")
	pay(`"a7f3"`, "10 EUR")
	pay(`"a7f3"`, "20 EUR") // not what the key is for
	pay(`"b81c"`, "20 EUR")
	pay("", "20 EUR")
	// Output:
	// 201 payment 1
	// 201 payment 1 again
	// 422
	// 201 payment 2
	// 400
}
