package locktest_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	echo5 "github.com/labstack/echo/v5"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/echolock"
	echolock5 "github.com/perkey-go/perkey/echolock/v5"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/locktest"
)

// ginTimeout runs what is behind it as gin-contrib/timeout does.
func ginTimeout(c *gin.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Next()
	}()
	select {
	case <-done:
	case <-time.After(time.Hour):
	}
}

func TestRequireGuardWaits_FindsTimeoutsBehindTheGuard(t *testing.T) {
	redis := locktest.New(t)
	guard := redis.Locker(t).Guard(core.RejectConflicts)
	wrapped := func(work http.Handler) http.Handler { // not next to the guard
		timed := http.TimeoutHandler(work, time.Hour, "")
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { timed.ServeHTTP(w, r) })
	}
	viaGin := func(behind ...gin.HandlerFunc) func(http.Handler) http.Handler {
		return func(work http.Handler) http.Handler {
			gin.SetMode(gin.ReleaseMode)
			e := gin.New()
			e.Use(ginlock.PerKey(guard, ginlock.Param("order:", "id")))
			e.Use(behind...)
			e.POST("/orders/:id/pay", gin.WrapH(work))
			return e
		}
	}
	viaEcho := func(behind ...echo.MiddlewareFunc) func(http.Handler) http.Handler {
		return func(work http.Handler) http.Handler {
			e := echo.New()
			e.POST("/orders/:id/pay", echo.WrapHandler(work), append([]echo.MiddlewareFunc{echolock.PerKey(guard, echolock.Param("order:", "id"))}, behind...)...)
			return e
		}
	}
	viaMux := func(wrap func(http.Handler) http.Handler) func(http.Handler) http.Handler {
		return func(work http.Handler) http.Handler {
			return payments(redis.Locker(t), core.RejectConflicts, httplock.Param("order:", "id"), wrap(work))
		}
	}
	viaEcho5 := func(wrap func(http.Handler) http.Handler) func(http.Handler) http.Handler {
		return func(work http.Handler) http.Handler {
			e := echo5.New()
			e.POST("/orders/:id/pay", echo5.WrapHandler(wrap(work)), echolock5.PerKey(guard, echolock5.Param("order:", "id")))
			return e
		}
	}
	plain := func(work http.Handler) http.Handler { return work }
	inFront := func(work http.Handler) http.Handler { return httplock.Timeout(time.Hour)(viaMux(plain)(work)) }
	for name, c := range map[string]struct {
		route func(http.Handler) http.Handler
		ok    bool
	}{
		"net/http":                      {viaMux(plain), true},
		"net/http, a time-out in front": {inFront, true},
		"net/http, a wrapped time-out":  {viaMux(wrapped), false},
		"gin":                           {viaGin(), true},
		"gin, a time-out":               {viaGin(ginTimeout), false},
		"echo":                          {viaEcho(), true},
		"echo, its Timeout":             {viaEcho(middleware.TimeoutWithConfig(middleware.TimeoutConfig{Timeout: time.Hour})), false},
		"echo v5":                       {viaEcho5(plain), true},
		"echo v5, a time-out":           {viaEcho5(wrapped), false},
		"no guard":                      {plain, false},
	} {
		t.Run(name, func(t *testing.T) {
			failed := failure(func(t locktest.TB) { locktest.RequireGuardWaits(t, c.route, payment("42")) })
			if c.ok {
				require.Empty(t, failed)
				return
			}
			require.Contains(t, failed, "does not run within its guard")
		})
	}
	refused := failure(func(t locktest.TB) {
		locktest.RequireGuardWaits(t, viaMux(plain), httptest.NewRequest(http.MethodPost, "/other", nil))
	})
	require.Contains(t, refused, "it was answered with 404")
}
