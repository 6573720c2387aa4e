package perkey_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/internal/test/embedded"
)

// One customer clicks "pay" twice, and the clicks reach two replicas.
func Example() {
	server, err := embedded.Start() // a Redis inside this process
	check(err)
	defer server.Close()

	click := func(replica http.Handler) int {
		w := httptest.NewRecorder()
		replica.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders/42/pay", nil))
		return w.Code
	}
	first, closeFirst := replica(server.Addr(), func(c *gin.Context) {
		second, closeSecond := replica(server.Addr(), func(*gin.Context) { panic("charged twice") })
		defer closeSecond()
		fmt.Println("second click:", click(second)) // while the first one is being worked on
		c.Status(http.StatusOK)
	})
	defer closeFirst()
	fmt.Println("first click:", click(first))
	// Output:
	// second click: 409
	// first click: 200
}

func replica(addr string, pay gin.HandlerFunc) (http.Handler, func()) {
	gin.SetMode(gin.ReleaseMode)
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	locker, err := core.New(rdb)
	check(err)
	order := ginlock.ParamInt("order:", "id") // 42 and 042 are one order
	router := gin.New()
	r := router.Group("/orders/:id")
	r.Use(ginlock.PerKey(locker.Guard(core.RejectConflicts), order))
	r.POST("/pay", pay)
	return router, func() {
		check(locker.Close())
		check(rdb.Close())
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
