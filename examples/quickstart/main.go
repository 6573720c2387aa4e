// Command quickstart is the service of the README: three routes, one for each
// conflict policy, on the Redis at localhost:6379.
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/retry"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	r, worker, locker := service(rdb)
	server := &http.Server{Addr: "localhost:8080", Handler: r, ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	served := make(chan error, 1)
	go func() {
		served <- server.ListenAndServe()
		stop()
	}()
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	// Requests first, then parked ones, then the locks of both.
	err := errors.Join(server.Shutdown(ctx), worker.Stop(ctx), locker.Shutdown(ctx), rdb.Close())
	if why := <-served; !errors.Is(why, http.ErrServerClosed) {
		err = errors.Join(why, err)
	}
	check(err)
}

// service is what the README shows.
func service(rdb redis.UniversalClient) (*gin.Engine, *delayqueue.Worker, *core.Locker) {
	// README
	const prefix = "shop" // of one service: those that share a prefix also share keys, and run what the others have parked
	locker, err := core.New(rdb, core.WithPrefix(prefix), core.WithTTL(15*time.Second))
	check(err)
	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix(prefix), delayqueue.WithService("shop"))
	check(err)

	r := gin.Default()
	wait, later := retry.Policy{MaxWait: 2 * time.Second}, delayqueue.Policy(queue)
	order := ginlock.ParamInt("order:", "id")                                                          // 42 and 042 are one order
	r.POST("/orders/:id/pay", ginlock.PerKey(locker.Guard(core.RejectConflicts), order), pay)          // 409
	r.PUT("/carts/:id", ginlock.PerKey(locker.Guard(wait), ginlock.Param("cart:", "id")), put)         // waits
	r.POST("/orders/:id/ship", ginlock.PerKey(locker.Guard(later), order, httplock.Anonymous()), ship) // 202, whoever sends it

	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(r))
	check(err)
	check(worker.Start()) // runs what was parked
	// README
	return r, worker, locker
}

func pay(c *gin.Context)  { c.String(http.StatusOK, "paid") }
func put(c *gin.Context)  { c.String(http.StatusOK, "put") }
func ship(c *gin.Context) { c.String(http.StatusOK, "shipped") }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
