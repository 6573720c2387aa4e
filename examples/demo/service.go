package main

import (
	"context"
	"errors"
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

// The three routes, by the names that gin gives them.
const (
	routePay  = "POST /orders/:id/pay"
	routeCart = "PUT /carts/:id"
	routeShip = "POST /orders/:id/ship"
)

const maxWork = 10 * time.Second

// service is what a user of perkey writes: a locker, a queue with its worker,
// a guard per policy, and a console for whoever operates it.
type service struct {
	router *gin.Engine
	locker *core.Locker
	queue  *delayqueue.Queue
	worker *delayqueue.Worker
	beacon *ops.Beacon
}

func newService(rdb *redis.Client, prefix string, board *scoreboard) (*service, error) {
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
	later := locker.Guard(retry.Policy{MaxWait: 20 * time.Millisecond, Then: delayqueue.Policy(queue)})

	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery())
	order, cart := ginlock.ParamInt("order:", "id"), ginlock.Param("cart:", "id")
	r.POST("/orders/:id/pay", ginlock.PerKey(reject, order), work(board, routePay, "order:", 6*time.Millisecond))
	r.PUT("/carts/:id", ginlock.PerKey(wait, cart), work(board, routeCart, "cart:", 3*time.Millisecond))
	r.POST("/orders/:id/ship", ginlock.PerKey(later, order, httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous()),
		work(board, routeShip, "order:", 6*time.Millisecond))

	anyone := func(*http.Request, delayqueue.Status) bool { return true } // a demo has no logins
	r.Any("/tickets/*path", gin.WrapH(httplock.TicketHandler(queue, anyone)))

	quiet := delayqueue.WithLogger(slog.New(slog.DiscardHandler))
	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(r), quiet)
	if err != nil {
		return nil, err
	}
	pages, err := console.New(console.Options{Locker: locker, Redis: rdb, Changes: true, Authorize: everybody})
	if err != nil {
		return nil, err
	}
	r.Any("/ops/*path", gin.WrapH(pages))
	if err := worker.Start(); err != nil {
		return nil, err
	}
	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithWorkers(worker), ops.WithService("demo"), ops.WithInterval(2*time.Second))
	return &service{router: r, locker: locker, queue: queue, worker: worker, beacon: beacon}, err
}

// everybody may do everything: a demo has no logins. A service says here who may do what.
func everybody(*http.Request, ops.Action) (string, error) { return "somebody", nil }

// work is a handler that takes about d, and counts who is inside its key.
func work(board *scoreboard, route, prefix string, d time.Duration) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer board.enter(prefix + c.Param("id"))()
		took := d/2 + rand.N(d)
		if asked := c.Query("work"); asked != "" {
			d, err := time.ParseDuration(asked)
			if err != nil || d < 0 || d > maxWork {
				c.String(http.StatusBadRequest, "work=%q: want a duration up to %s, such as 3s\n", asked, maxWork)
				return
			}
			took = d
		}
		select {
		case <-time.After(took):
		case <-c.Request.Context().Done():
			// The client left, or the lease was lost: stop.
			c.AbortWithStatus(http.StatusInternalServerError)
			return
		}
		_, replayed := httplock.Replayed(c.Request.Context())
		board.ran(route, replayed)
		lease, _ := core.LeaseFrom(c.Request.Context())
		c.String(http.StatusOK, "%s: order or cart %s, fence %d, took %s\n", route, c.Param("id"), lease.Fence(), took.Round(time.Millisecond))
	}
}

// await waits until every parked request was run, and returns how many were not.
func (s *service) await(ctx context.Context, tickets []string) (lost int) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, id := range tickets {
		for {
			status, err := s.queue.Status(ctx, id)
			if err == nil && status.State == delayqueue.StateDone {
				break
			}
			over := err == nil && status.State != delayqueue.StateQueued && status.State != delayqueue.StateRunning
			if over || errors.Is(err, delayqueue.ErrNotFound) || ctx.Err() != nil {
				lost++
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return lost
}

func (s *service) stop(ctx context.Context) error {
	return errors.Join(s.worker.Stop(ctx), s.beacon.Close(), s.locker.Shutdown(ctx))
}
