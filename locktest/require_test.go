package locktest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
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
	"github.com/perkey-go/perkey/retry"
)

// payments is a service that takes 42 and 042 for one order.
func payments(locker *core.Locker, policy core.ConflictPolicy, key httplock.KeyFunc, charge http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pay", httplock.PerKey(locker.Guard(policy), key)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := strconv.Atoi(r.PathValue("id")); err != nil {
			http.Error(w, "no such order", http.StatusNotFound)
			return
		}
		charge.ServeHTTP(w, r)
	})))
	return mux
}

func payment(id string) *http.Request {
	return httptest.NewRequest(http.MethodPost, "/orders/"+id+"/pay", nil)
}

func TestAliases_ThatRunAtOnceFail(t *testing.T) {
	waits := retry.Policy{MaxWait: time.Minute}
	for name, policy := range map[string]core.ConflictPolicy{"reject": core.RejectConflicts, "wait": waits} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, redis *locktest.Redis) {
				locker := redis.Locker(t)
				by := func(key httplock.KeyFunc) string {
					return failure(func(t locktest.TB) {
						locktest.RequireOneAtATime(t, func(work http.Handler) http.Handler { return payments(locker, policy, key, work) }, payment,
							locktest.IntAliases(42)...)
					})
				}
				require.Empty(t, by(httplock.ParamInt("order:", "id")))
				failed := by(httplock.Param("order:", "id"))
				require.Contains(t, failed, " 042 beside 42")
				require.Contains(t, failed, " 0042 beside 42")
				require.Regexp(t, `(\+|%2B)42 beside 42`, failed, "one of the two, which the router reads alike")
				require.NotContains(t, failed, "%34%32", "the router decodes it")
				require.NotContains(t, failed, "%20", "the handler refuses it")
				require.Contains(t, by(httplock.Query("order:", "id")), "the request for 42 did not run: it was answered with 400")
				redis.RequireFree(t, "order:42")
			})
		})
	}
	each(t, func(t *testing.T, redis *locktest.Redis) {
		type userKey struct{}
		byUser := httplock.Value("user:", "user", func(ctx context.Context) (string, bool) {
			user, is := ctx.Value(userKey{}).(string)
			return user, is
		})
		locktest.RequireOneAtATime(t, func(work http.Handler) http.Handler { return payments(redis.Locker(t), waits, byUser, work) },
			func(alias string) *http.Request {
				r := payment(alias)
				return r.WithContext(context.WithValue(r.Context(), userKey{}, "ann"))
			}, locktest.IntAliases(42)...)
	})
	require.Contains(t, failure(func(t locktest.TB) {
		locktest.RequireOneAtATime(t, func(work http.Handler) http.Handler { return work }, payment, "42")
	}), "want two aliases at least")
}

func TestAliases_AreOneID(t *testing.T) {
	for _, id := range []int{42, 0, -7} {
		aliases := locktest.IntAliases(id)
		require.Equal(t, strconv.Itoa(id), aliases[0])
		for _, alias := range aliases {
			n, err := strconv.Atoi(strings.TrimSpace(decoded(t, alias)))
			require.NoError(t, err, alias)
			require.Equal(t, id, n, alias)
		}
	}
	const id = "F81D4fae-7dec-11d0-a765-00a0c91e6bf6"
	aliases := locktest.UUIDAliases(id)
	require.Equal(t, strings.ToLower(id), aliases[0])
	for _, alias := range aliases {
		digits := strings.NewReplacer("-", "", "{", "", "}", "", "urn:uuid:", "", " ", "").Replace(strings.ToLower(decoded(t, alias)))
		require.Equal(t, strings.ReplaceAll(strings.ToLower(id), "-", ""), digits, alias)
	}
}

func decoded(t *testing.T, alias string) string {
	t.Helper()
	return strings.TrimSuffix(strings.TrimPrefix(payment(alias).URL.Path, "/orders/"), "/pay")
}

// A service takes 42 and 042 for one order, so they must have one key.
func ExampleRequireOneAtATime() {
	t := &exampleT{} // t *testing.T
	defer t.end()

	locker := locktest.New(t).Locker(t)
	guarded := func(charge http.Handler) http.Handler {
		pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := strconv.Atoi(r.PathValue("id")); err != nil {
				http.NotFound(w, r)
				return
			}
			charge.ServeHTTP(w, r)
		})
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{id}/pay", httplock.PerKey(locker.Guard(core.RejectConflicts), httplock.ParamInt("order:", "id"))(pay))
		return mux
	}
	request := func(id string) *http.Request { return httptest.NewRequest(http.MethodPost, "/orders/"+id+"/pay", nil) }

	aliases := locktest.IntAliases(42)
	locktest.RequireOneAtATime(t, guarded, request, aliases...)
	fmt.Println(aliases)
	// Output: [42 042 0042 %34%32 42%20 %2042 +42 %2B42]
}

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
