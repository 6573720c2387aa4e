// Command quickstart is a service with a login and three routes, one for each
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
	server := &http.Server{Addr: "localhost:8080", Handler: r, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute}
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

// service has the routes, and the worker that runs what was parked.
func service(rdb redis.UniversalClient) (*gin.Engine, *delayqueue.Worker, *core.Locker) {
	r := gin.Default()
	r.Use(login)

	locker, err := core.New(rdb, core.WithPrefix("shop"), core.WithObserver(core.SlogObserver(nil)))
	check(err)
	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix("shop"), delayqueue.WithService("shop"))
	check(err)

	reject, later := locker.Guard(core.RejectConflicts), locker.Guard(delayqueue.Policy(queue))
	wait := locker.Guard(retry.Policy{MaxWait: 2 * time.Second})
	order := ginlock.ParamInt("order:", "id") // 42 and 042 are one order
	sender := []httplock.Option{ginlock.WithPrincipal(user), httplock.WithReauthorize(mayStill)}

	r.POST("/orders/:id/pay", ginlock.PerKey(reject, order), pay)             // 409 while the order is busy
	r.PUT("/orders/:id", ginlock.PerKey(wait, order), edit)                   // waits, 2 s at most, and then 409
	r.POST("/orders/:id/ship", ginlock.PerKey(later, order, sender...), ship) // 202, and runs later on behalf of its sender

	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(r, httplock.WithReplayReauthorize(mayStill)))
	check(err)
	check(worker.Start()) // runs what was parked
	return r, worker, locker
}

// login stands for yours: a proxy in front has checked who it is. A request that was parked has no credentials, but its principal.
func login(c *gin.Context) {
	name := c.GetHeader("X-User")
	if parked, ok := httplock.Replayed(c.Request.Context()); ok {
		name = parked.Principal
	}
	if name == "" {
		c.AbortWithStatus(http.StatusUnauthorized)
		return
	}
	c.Set("user", name)
}

// user says on whose behalf a request is parked.
func user(c *gin.Context) (string, error) { return c.GetString("user"), nil }

// mayStill is asked before a parked request runs: ask your users' table.
func mayStill(_ *http.Request, user string) error {
	if user == "mallory" {
		return httplock.ErrForbidden
	}
	return nil
}

func pay(c *gin.Context)  { c.String(http.StatusOK, "paid") }
func edit(c *gin.Context) { c.String(http.StatusOK, "edited") }
func ship(c *gin.Context) { c.String(http.StatusOK, "shipped") }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
