package echolock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v5"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock/v5"
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

	e := echo.New()
	e.POST("/orders/:id/pay", func(c *echo.Context) error {
		return c.String(http.StatusOK, "paid")
	}, echolock.PerKey(locker.Guard(core.RejectConflicts), echolock.Param("order:", "id")))
	pay := func(order string) {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/orders/"+order+"/pay", nil))
		fmt.Println("order", order, "→", w.Code, w.Header().Get("Content-Type"))
	}

	pay("42")
	// Somebody works on order 42: another request, or a job in another process.
	_ = locker.Do(context.Background(), "order:42", func(context.Context) error {
		pay("42")
		pay("43")
		return nil
	})
	// Output:
	// order 42 → 200 text/plain; charset=UTF-8
	// order 42 → 409 application/problem+json
	// order 43 → 200 text/plain; charset=UTF-8
}

// A whole service behind one guard, by user, with health checks let through and errors
// in the service's own form.
func ExampleConfig_ToMiddleware() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()
	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()

	perUser, err := echolock.Config{
		Skipper:      func(c *echo.Context) bool { return c.Path() == "/ping" },
		Guard:        locker.Guard(core.RejectConflicts),
		Key:          echolock.Header("user:", "X-User"),
		ReturnErrors: true,
	}.ToMiddleware()
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.HTTPErrorHandler = func(c *echo.Context, err error) {
		switch response, _ := echo.UnwrapResponse(c.Response()); {
		case response != nil && response.Committed:
		case errors.Is(err, core.ErrConflict):
			_ = c.String(http.StatusConflict, "one thing at a time")
		default:
			echo.DefaultHTTPErrorHandler(false)(c, err)
		}
	}
	e.Use(perUser)
	done := func(c *echo.Context) error { return c.String(http.StatusOK, "done") }
	e.POST("/orders", done)
	e.POST("/ping", done)
	post := func(path string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, path, nil)
		r.Header.Set("X-User", "ann")
		e.ServeHTTP(w, r)
		fmt.Println(path, w.Code, w.Body)
	}

	post("/orders")
	_ = locker.Do(context.Background(), "user:ann", func(context.Context) error {
		post("/orders")
		post("/ping")
		return nil
	})
	// Output:
	// /orders 200 done
	// /orders 409 one thing at a time
	// /ping 200 done
}
