package console_test

import (
	"errors"
	"log"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
)

// The console is mounted below a path of the service, behind its own authentication. Here a proxy has checked who sends a
// request, and says so in a header that it takes from nobody else.
func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	locker, err := core.New(rdb, core.WithPrefix("shop"))
	if err != nil {
		log.Fatal(err)
	}
	operators := map[string]bool{"ada@example.com": true}
	pages, err := console.New(console.Options{
		Locker: locker, Redis: rdb, Changes: true,
		Authorize: func(r *http.Request, do ops.Action) (string, error) {
			who := r.Header.Get("X-Auth-Request-Email")
			if who == "" || do != console.View && !operators[who] {
				return "", errors.New("not an operator")
			}
			return who, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	http.Handle("/ops/", pages) // net/http

	r := gin.Default() // gin
	r.Any("/ops/*path", gin.WrapH(pages))

	e := echo.New() // echo
	e.Any("/ops/*", echo.WrapHandler(pages))
}
