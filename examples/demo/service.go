package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/ops"
	"github.com/perkey-go/perkey/ops/console"
	"github.com/perkey-go/perkey/retry"
)

// The three routes, by the names that gin and perkey give them.
const (
	routePay  = "POST /orders/:id/pay"
	routeCart = "PUT /carts/:id"
	routeShip = "POST /orders/:id/ship"
)

// service is what a user of perkey writes: a locker, a queue with its worker,
// a guard per policy, and a console for whoever operates it.
type service struct {
	router *gin.Engine
	locker *core.Locker
	worker *delayqueue.Worker
	beacon *ops.Beacon
}

// newService makes the service. Its handlers take about a beat.
func newService(rdb *redis.Client, prefix string, beat time.Duration, board *scoreboard) (*service, error) {
	recorder := ops.NewRecorder()
	locker, err := core.New(rdb, core.WithPrefix(prefix), core.WithObserver(recorder.Locks(board)))
	if err != nil {
		return nil, err
	}
	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix(prefix), delayqueue.WithMaxAge(5*time.Minute),
		delayqueue.WithQueueObserver(recorder.Queues(nil)))
	if err != nil {
		return nil, err
	}

	reject := locker.Guard(core.RejectConflicts)
	wait := locker.Guard(retry.Policy{MaxWait: 2 * time.Second})
	later := locker.Guard(retry.Policy{MaxWait: max(beat/5, time.Millisecond), Then: delayqueue.Policy(queue)})
	order, cart := ginlock.ParamInt("order:", "id"), ginlock.Param("cart:", "id")

	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery(), board.counted)
	r.POST("/orders/:id/pay", ginlock.PerKey(reject, order), board.work(beat))
	r.PUT("/carts/:id", ginlock.PerKey(wait, cart), board.work(beat/2))
	r.POST("/orders/:id/ship", ginlock.PerKey(later, order, httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous()), board.work(2*beat))

	anyone := func(*http.Request, delayqueue.Status) bool { return true } // a demo has no logins
	r.Any("/tickets/*path", gin.WrapH(httplock.TicketHandler(queue, anyone)))

	quiet, local := slog.New(slog.DiscardHandler), board.view().place.local
	access := console.Options{Locker: locker, Redis: rdb, Log: quiet}
	if local { // whoever is at this machine may do everything; a service says here who may do what
		access.Changes = true
		access.Authorize = func(*http.Request, ops.Action) (string, error) { return "somebody", nil }
	}
	pages, err := console.New(access)
	if err != nil {
		return nil, err
	}
	if local {
		pages = console.LocalOnly(pages)
	}
	r.Any("/ops/*path", gin.WrapH(pages))
	r.GET("/", func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/ops/") })

	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(r), delayqueue.WithLogger(quiet))
	if err != nil {
		return nil, err
	}
	if err := worker.Start(); err != nil { // runs what was parked
		return nil, err
	}
	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithWorkers(worker), ops.WithService("demo"), ops.WithInterval(2*time.Second), ops.WithLogger(quiet))
	return &service{router: r, locker: locker, worker: worker, beacon: beacon}, err
}

// stop stops what newService has started, when the requests have ended.
func (s *service) stop(ctx context.Context) error {
	return errors.Join(s.worker.Stop(ctx), s.beacon.Close(), s.locker.Shutdown(ctx))
}

// routeOf is the route of a request, as perkey names it too.
func routeOf(c *gin.Context) string { return c.Request.Method + " " + c.FullPath() }

// counted is middleware that counts what became of a request.
func (b *scoreboard) counted(c *gin.Context) {
	c.Next()
	_, again := httplock.Replayed(c.Request.Context())
	switch status := c.Writer.Status(); {
	case status == http.StatusOK && again:
		b.count(routeOf(c), replayed)
	case status == http.StatusOK:
		b.count(routeOf(c), requests, ran)
	case status == http.StatusConflict, status == http.StatusAccepted: // the locker's observer knows which
		b.count(routeOf(c), requests)
	case status >= http.StatusInternalServerError && c.Request.Context().Err() == nil: // its client has not left
		b.failed(routeOf(c), fmt.Errorf("status %d", status))
	}
}

// work is a handler that takes about as long as it is told to. The board sees that somebody is inside the key.
func (b *scoreboard) work(takes time.Duration) gin.HandlerFunc {
	return func(c *gin.Context) {
		lease, _ := ginlock.Lease(c)
		_, replayed := httplock.Replayed(c.Request.Context())
		run, leave := b.enter(routeOf(c), lease.Key(), replayed)
		defer leave()

		took, err := time.ParseDuration(c.DefaultQuery("work", (takes + rand.N(takes)).String()))
		if err != nil || took < 0 || took > 10*time.Second {
			c.String(http.StatusBadRequest, "work=%q: want a duration up to 10s, such as 3s\n", c.Query("work"))
			return
		}
		select {
		case <-time.After(took):
			c.JSON(http.StatusOK, gin.H{"route": routeOf(c), "key": lease.Key(), "fence": lease.Fence(), "run": run, "took_ms": took.Milliseconds()})
		case <-c.Request.Context().Done(): // the client left, or the lease was lost: stop
			c.AbortWithStatus(http.StatusInternalServerError)
		}
	}
}
