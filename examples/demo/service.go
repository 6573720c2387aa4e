package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
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

// short names a route where there is no room for its name.
func short(route string) string {
	return map[string]string{routePay: "pay", routeCart: "cart", routeShip: "ship"}[route]
}

const maxWork = 10 * time.Second

// service is what a user of perkey writes: a locker, a queue with its worker,
// a guard per policy, and a console for whoever operates it.
type service struct {
	router *gin.Engine
	locker *core.Locker
	worker *delayqueue.Worker
	beacon *ops.Beacon
}

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

	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.Use(gin.Recovery())
	order, cart := ginlock.ParamInt("order:", "id"), ginlock.Param("cart:", "id")
	pay, put, ship := handler{board, routePay, beat}, handler{board, routeCart, beat / 2}, handler{board, routeShip, 2 * beat}
	r.POST("/orders/:id/pay", pay.count, ginlock.PerKey(reject, order), pay.work)
	r.PUT("/carts/:id", put.count, ginlock.PerKey(wait, cart), put.work)
	r.POST("/orders/:id/ship", ship.count, ginlock.PerKey(later, order, httplock.WithStatusPath("/tickets/"), httplock.WithAnonymous()), ship.work)

	anyone := func(*http.Request, delayqueue.Status) bool { return true } // a demo has no logins
	r.Any("/tickets/*path", gin.WrapH(httplock.TicketHandler(queue, anyone)))

	quiet := slog.New(slog.DiscardHandler)
	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(r), delayqueue.WithLogger(quiet))
	if err != nil {
		return nil, err
	}
	access := console.Options{Locker: locker, Redis: rdb, Log: quiet}
	if board.place.local {
		access.Changes, access.Authorize = true, thisMachine
	}
	pages, err := console.New(access)
	if err != nil {
		return nil, err
	}
	r.Any("/ops/*path", gin.WrapH(pages))
	r.GET("/", func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/ops/") })
	if err := worker.Start(); err != nil {
		return nil, err
	}
	beacon, err := ops.StartBeacon(rdb, recorder, locker, ops.WithWorkers(worker), ops.WithService("demo"), ops.WithInterval(2*time.Second), ops.WithLogger(quiet))
	return &service{router: r, locker: locker, worker: worker, beacon: beacon}, err
}

// thisMachine lets everybody at this machine do everything: a demo has no logins. A service says here who may
// do what. A page of another site, which can point a host name of its own at this machine, is refused.
func thisMachine(r *http.Request, _ ops.Action) (string, error) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if ip := net.ParseIP(strings.Trim(host, "[]")); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", fmt.Errorf("host %q is not this machine", host)
	}
	return "somebody", nil
}

// handler is that of a route. It takes about as long as it is told to.
type handler struct {
	board *scoreboard
	route string
	takes time.Duration
}

// count counts what became of a request.
func (h handler) count(c *gin.Context) {
	c.Next()
	_, replayed := httplock.Replayed(c.Request.Context())
	switch status := c.Writer.Status(); {
	case status == http.StatusOK && replayed:
		h.board.count(h.route, func(r *row) { r.replayed++ })
	case status == http.StatusOK:
		h.board.count(h.route, func(r *row) { r.requests++; r.ran++ })
	case status == http.StatusConflict, status == http.StatusAccepted: // the locker's observer knows which
		h.board.count(h.route, func(r *row) { r.requests++ })
	case status >= http.StatusInternalServerError && c.Request.Context().Err() == nil: // its client has not left
		h.board.failed(h.route, fmt.Errorf("status %d", status))
	}
}

// work does the work, and tells the board that somebody is inside the key.
func (h handler) work(c *gin.Context) {
	key := "cart:" + c.Param("id")
	if h.route != routeCart {
		id, _ := strconv.Atoi(c.Param("id")) // the middleware has refused what is not a number
		key = fmt.Sprint("order:", id)
	}
	if _, replayed := httplock.Replayed(c.Request.Context()); replayed {
		h.board.replaying(h.route, key)
	}
	run, leave := h.board.enter(h.route, key)
	defer leave()

	took := h.takes + rand.N(h.takes)
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
	lease, _ := core.LeaseFrom(c.Request.Context())
	c.JSON(http.StatusOK, gin.H{"route": h.route, "key": key, "fence": lease.Fence(), "run": run, "took_ms": took.Milliseconds()})
}

func (s *service) stop(ctx context.Context) error {
	return errors.Join(s.worker.Stop(ctx), s.beacon.Close(), s.locker.Shutdown(ctx))
}
