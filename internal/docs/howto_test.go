package docs_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/locktest"
	"github.com/perkey-go/perkey/retry"
	"github.com/perkey-go/perkey/sqlfence"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	redistest.Main(m)
}

// The functions of this file are the programs of docs/howto. TestGo_Compiles finds their code here.

func cronJob(ctx context.Context, locker *core.Locker, makeReport func(context.Context) error) func() {
	hourly := func() { // give it to any cron library, in every replica; ctx ends when the service stops
		ran, err := locker.Once(ctx, "cron:report", time.Hour, makeReport)
		if err != nil {
			slog.ErrorContext(ctx, "the hourly report", "ran", ran, "error", err)
		}
	}
	return hourly
}

func TestHowto_ACronJobRunsOnOneReplica(t *testing.T) {
	t.Parallel()
	env := locktest.New(t)
	var reports atomic.Int32
	for range 3 {
		cronJob(t.Context(), env.Locker(t), func(context.Context) error { reports.Add(1); return nil })()
	}
	assert.EqualValues(t, 1, reports.Load())
}

func leader(ctx context.Context, locker *core.Locker, schedule func(context.Context) error) error {
	err := locker.Lead(ctx, "scheduler", func(ctx context.Context) error {
		return schedule(ctx) // until ctx ends: the lease was lost, or the service stops
	})
	return err
}

func TestHowto_TheNextOneLeadsWhenTheServiceStops(t *testing.T) {
	t.Parallel()
	env := locktest.New(t)
	leads := make(chan int)
	candidate := func(ctx context.Context, n int) chan error {
		ended := make(chan error, 1)
		locker := env.Locker(t)
		go func() {
			ended <- leader(ctx, locker, func(ctx context.Context) error {
				leads <- n
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		return ended
	}
	first, stop := context.WithCancel(t.Context())
	firstEnded := candidate(first, 1)
	assert.Equal(t, 1, <-leads)
	second, stopSecond := context.WithCancel(t.Context())
	secondEnded := candidate(second, 2)
	env.RequireWaiting(t, "scheduler")
	stop()
	assert.Equal(t, 2, <-leads)
	require.ErrorIs(t, <-firstEnded, context.Canceled)
	stopSecond()
	require.ErrorIs(t, <-secondEnded, context.Canceled)
}

func payments(rdb redis.UniversalClient, locker *core.Locker, r *gin.Engine, pay gin.HandlerFunc, user func(*gin.Context) (string, error)) error {
	store, err := idempotency.New(rdb, idempotency.WithPrefix("shop"))
	if err != nil {
		return err
	}
	wait := locker.Guard(retry.Policy{MaxWait: 2 * time.Second}) // for the first of two equal requests, to have its response
	r.POST("/orders/:id/pay", ginlock.PerKey(wait, ginlock.ParamInt("order:", "id"),
		ginlock.WithPrincipal(user), // whose Idempotency-Key it is
		httplock.WithIdempotency(store, httplock.RequireIdempotencyKey())), pay)
	return nil
}

func fenced(db *sql.DB, status func(context.Context, *sql.DB, int64) (string, error), charge func(_ context.Context, idempotencyKey string) error, setPaid func(context.Context, *sql.Tx, int64) error) gin.HandlerFunc {
	payOrder := func(ctx context.Context, order int64) error {
		lease, _ := core.LeaseFrom(ctx)
		if err := sqlfence.Claim(ctx, db, lease); err != nil {
			return err // sqlfence.ErrStale: a newer holder has claimed
		}
		was, err := status(ctx, db, order)
		if err != nil || was == "paid" {
			return err
		}
		if err := charge(ctx, fmt.Sprint("order-", order)); err != nil { // the provider's own idempotency key: one for each order
			return err
		}
		return sqlfence.Write(ctx, db, lease, func(tx *sql.Tx) error { return setPaid(ctx, tx, order) })
	}
	pay := func(c *gin.Context) {
		order, err := strconv.ParseInt(c.Param("id"), 10, 64) // 42 and 042 are one order here too
		if err != nil {
			c.Status(http.StatusBadRequest)
			return
		}
		if err := payOrder(c.Request.Context(), order); err != nil { // the request's context has the lease, and ends with it
			slog.ErrorContext(c.Request.Context(), "payment", "order", order, "error", err)
			c.Status(http.StatusServiceUnavailable) // is not kept: sent again, it runs again
			return
		}
		c.String(http.StatusOK, "paid")
	}
	return pay
}

// Whether the fence holds is tested with databases in sqlfence/sqltest, and in examples/shop.
var _ = fenced

// TestHowto_APaymentThatIsMadeAgainRunsOnce is long since it is one story.
func TestHowto_APaymentThatIsMadeAgainRunsOnce(t *testing.T) {
	t.Parallel()
	env := locktest.New(t, locktest.WithPrefix("shop"))
	r := gin.New()
	ran, started, end := 0, make(chan struct{}), make(chan struct{})
	pay := func(c *gin.Context) {
		ran++
		if c.Query("slow") != "" {
			close(started)
			<-end
		}
		if c.Query("fail") != "" {
			c.Status(http.StatusServiceUnavailable) // as after sqlfence.ErrStale
			return
		}
		c.String(http.StatusOK, "paid")
	}
	user := func(c *gin.Context) (string, error) { return c.GetHeader("X-User"), nil }
	locker := env.Locker(t)
	require.NoError(t, payments(env.Client(), locker, r, pay, user))
	send := func(path, user, key, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		req.Header.Set("X-User", user)
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		r.ServeHTTP(w, req)
		return w
	}
	assert.Equal(t, http.StatusBadRequest, send("/orders/7/pay", "alice", "", "10").Code)

	assert.Equal(t, "paid", send("/orders/7/pay", "alice", `"a"`, "10").Body.String())
	again := send("/orders/7/pay", "alice", `"a"`, "10")
	assert.Equal(t, "paid", again.Body.String())
	assert.Equal(t, "true", again.Header().Get("Idempotent-Replayed"))
	assert.Equal(t, 1, ran)
	assert.Equal(t, http.StatusUnprocessableEntity, send("/orders/7/pay", "alice", `"a"`, "20").Code)
	assert.Equal(t, 1, ran)

	assert.Equal(t, http.StatusOK, send("/orders/7/pay", "bob", `"a"`, "20").Code)
	assert.Equal(t, 2, ran, "the principal keeps the clients' keys apart")

	assert.Equal(t, http.StatusServiceUnavailable, send("/orders/7/pay?fail=1", "alice", `"b"`, "").Code)
	assert.Equal(t, http.StatusServiceUnavailable, send("/orders/7/pay?fail=1", "alice", `"b"`, "").Code)
	assert.Equal(t, 4, ran, "a 503 is not kept")

	var first, second *httptest.ResponseRecorder
	var clients sync.WaitGroup
	clients.Go(func() { first = send("/orders/8/pay?slow=1", "alice", `"c"`, "") })
	<-started
	clients.Go(func() { second = send("/orders/8/pay?slow=1", "alice", `"c"`, "") })
	redistest.Eventually(t, func() bool {
		info, err := locker.Inspect(t.Context(), "order:8")
		return err == nil && info.Waiting == 1
	}, "the second waits")
	close(end)
	clients.Wait()
	assert.Equal(t, "paid", first.Body.String())
	assert.Equal(t, "paid", second.Body.String())
	assert.Equal(t, "true", second.Header().Get("Idempotent-Replayed"), "of two at once the second has the first one's response")
	assert.Equal(t, 5, ran)

	release := env.Hold(t, "order:7")
	assert.Equal(t, http.StatusConflict, send("/orders/7/pay", "alice", `"d"`, "").Code)
	release()
}

func open(rdb redis.UniversalClient, service string) (*core.Locker, *delayqueue.Queue, error) {
	locker, err := core.New(rdb, core.WithPrefix(service))
	if err != nil {
		return nil, nil, err
	}
	queue, err := delayqueue.New(rdb, "invoices", delayqueue.WithPrefix(service), delayqueue.WithService(service))
	return locker, queue, err
}

func TestHowto_ServicesOnOneRedisSeeNothingOfEachOther(t *testing.T) {
	t.Parallel()
	rdb := locktest.New(t).Client()
	job := delayqueue.Job{Name: "invoice", Key: "order:7"}
	for _, service := range []string{"billing", "shipping"} {
		locker, queue, err := open(rdb, service)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, locker.Close()) })
		_, err = locker.TryAcquire(t.Context(), "order:7")
		require.NoError(t, err, "both have it")
		_, err = queue.Enqueue(t.Context(), job)
		require.NoError(t, err)
		stats, err := queue.Stats(t.Context())
		require.NoError(t, err)
		assert.EqualValues(t, 1, stats.Queued, "its own")
	}
	others := testbed.NewQueue(t, rdb, "invoices", delayqueue.WithPrefix("billing"), delayqueue.WithService("shipping"))
	_, err := others.Enqueue(t.Context(), job)
	require.ErrorIs(t, err, delayqueue.ErrOtherService)
}
