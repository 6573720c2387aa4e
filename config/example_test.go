package config_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/embedded"
)

// The policy of each route is in the file; the code says only which handler it has.
func Example() {
	server, err := embedded.Start()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	file, err := config.Parse("perkey.yaml", []byte(`
redis: {url: "redis://`+server.Addr()+`"}
queues:
  ship: {max_age: 15m}
guards:
  pay: {key: "order:{param.id|int}", on_conflict: reject}
  ship: {key: "order:{param.id|int}", anonymous: true, on_conflict: [{policy: retry, max_wait: 10ms}, {policy: delay, queue: ship}]}
routes:
  POST /orders/:id/pay: pay
  POST /orders/:id/ship: ship
`))
	if err != nil {
		panic(err)
	}
	rt, err := config.Build(file)
	if err != nil {
		panic(err)
	}
	defer func() { _ = rt.Shutdown(context.Background()) }()

	mux := http.NewServeMux()
	handler := httplock.FromConfig(rt)(mux)
	post := func(path string) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		fmt.Println(path, w.Code)
	}
	mux.HandleFunc("POST /orders/{id}/ship", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /orders/{id}/pay", func(http.ResponseWriter, *http.Request) {
		// While this runs, the order is held.
		post("/orders/42/ship")
		post("/orders/43/ship")
	})
	post("/orders/42/pay")
	// Output:
	// /orders/42/ship 202
	// /orders/43/ship 200
	// /orders/42/pay 200
}

// All that is wrong is told at once.
func ExampleError() {
	_, err := config.Parse("perkey.yaml", []byte(`guards:
  pay: {key: "order:{param.id}", ttl: 15, on_conflict: {policy: rety}}
routes:
  POST /orders/:order/pay: pay
`))
	if problems, ok := errors.AsType[*config.Error](err); ok {
		for _, p := range problems.Problems {
			fmt.Println(p)
		}
	}
	// Output:
	// perkey.yaml:2:39: guards.pay.ttl: 15 has no unit; expected a duration such as 500ms, 15s or 1h30m
	// perkey.yaml:2:65: guards.pay.on_conflict.policy: unknown value "rety"; did you mean "retry"?
	// perkey.yaml:4:28: routes."POST /orders/:order/pay": the key of the guard "pay" reads {param.id}, which the pattern does not have; expected order
}

// Another file changes the policies while requests are served. One that lost its end takes no guard away.
func ExampleRuntime_Reload() {
	server, err := embedded.Start()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	parse := func(policy string) *config.File {
		f, err := config.Parse("perkey.yaml", []byte("redis: {url: 'redis://"+server.Addr()+"'}\n"+
			"routes:\n  PUT /carts/:id: {key: \"cart:{param.id}\", on_conflict: "+policy+"}\n"))
		if err != nil {
			panic(err)
		}
		return f
	}
	rt, err := config.Build(parse("reject"))
	if err != nil {
		panic(err)
	}
	defer func() { _ = rt.Close() }()

	fmt.Println(rt.Reload(parse("{policy: retry, max_wait: 2s}")))
	broken, err := config.Parse("perkey.yaml", []byte("redis: {url: 'redis://"+server.Addr()+"'}\n"))
	if err != nil {
		panic(err)
	}
	fmt.Println(rt.Reload(broken))
	_, ok := rt.Route("PUT", "/carts/{id}")
	fmt.Println(ok)
	// Output:
	// <nil>
	// config: perkey.yaml:1:1: routes."PUT /carts/:id": the new file has no guard for this route, so that what has one key would run at once; put it back or, if this is meant, add it to the file's list: unguard: ["PUT /carts/:id"]
	// true
}
