package ginlock_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/embedded"
)

// At its start a service checks that each POST, PUT, PATCH and DELETE has a guard, or is meant to have none.
func ExampleRoutes() {
	rdb, closeRedis := embedded.Connect() // to a Redis inside this process
	defer closeRedis()
	locker, err := core.New(rdb)
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Shutdown(context.Background()) }()

	handler := func(c *gin.Context) { c.Status(http.StatusNoContent) }
	r := gin.New()
	r.POST("/login", handler)
	r.POST("/orders/:id/refund", handler) // in front of r.Use, so that gin does not guard it
	r.Use(ginlock.PerKey(locker.Guard(core.RejectConflicts), ginlock.Param("order:", "id")))
	r.POST("/orders/:id/pay", handler)

	routes, err := ginlock.Routes(r)
	if err == nil {
		err = httplock.CheckRoutes(routes, nil, "POST /login")
	}
	fmt.Println(err)
	// Output:
	// httplock: the registered routes are not guarded as they should be:
	// 	POST /orders/:id/refund: no guard is in front of this route; with gin and a group of echo's, Use comes before the routes. If it needs none, say so in the list of unguarded routes
}
