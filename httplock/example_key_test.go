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
	"github.com/perkey-go/perkey/internal/test/embedded"
)

// printKey serves a request at POST /orders/{id}, and prints its key.
func printKey(key httplock.KeyFunc, target, body string) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", func(_ http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Tenant", "7")
		k, err := key(r)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(k)
	})
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, target, strings.NewReader(body)))
}

// A key of several values: no two pairs of values make the same.
func ExampleJoin() {
	key := httplock.Join(httplock.Header("tenant:", "X-Tenant"), httplock.Param("order:", "id"))
	printKey(key, "/orders/42", "")
	printKey(key, "/orders/4%7C2", "") // a | in the value
	// Output:
	// tenant:7|order:42
	// tenant:7|order:4%7C2
}

// However a number is written, it makes one key.
func ExampleJSONField() {
	key := httplock.JSONField("user:", "user.id")
	printKey(key, "/orders/1", `{"user": {"id": 42}}`)
	printKey(key, "/orders/1", `{"user": {"id": 4.2e1}}`)
	printKey(key, "/orders/1", `{"user": {"id": 42, "ID": 43}}`)
	// Output:
	// user:42
	// user:42
	// httplock: no usable key in the request: JSON field "user.id": given twice
}

// table is what a configuration may come to.
type table map[string]httplock.Route

func (t table) Route(method, pattern string) (httplock.Route, bool) {
	route, has := t[method+" "+httplock.NormalizePattern(pattern)]
	return route, has
}

// The guards of a whole service, chosen in one place.
func ExampleFromConfig() {
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
	reject, err := httplock.New(locker.Guard(core.RejectConflicts))
	if err != nil {
		panic(err)
	}

	mux := http.NewServeMux()
	done := func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "done") }
	mux.HandleFunc("POST /orders/{id}/pay", done)
	mux.HandleFunc("POST /orders/{id}/note", done)
	service := httplock.FromConfig(table{
		"POST /orders/{id}/pay": {Middleware: reject, Key: httplock.Param("order:", "id")},
	})(mux)

	_ = locker.Do(context.Background(), "order:42", func(context.Context) error { // somebody works on order 42
		for _, path := range []string{"/orders/42/pay", "/orders/43/pay", "/orders/42/note"} {
			w := httptest.NewRecorder()
			service.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
			fmt.Println(path, w.Code)
		}
		return nil
	})
	// Output:
	// /orders/42/pay 409
	// /orders/43/pay 200
	// /orders/42/note 200
}
