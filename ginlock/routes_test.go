package ginlock_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// routeTable is httplock.Routes by method and normal pattern.
type routeTable map[string]httplock.Route

func (t routeTable) Route(method, pattern string) (httplock.Route, bool) {
	route, has := t[method+" "+httplock.NormalizePattern(pattern)]
	return route, has
}

func TestFromConfig_GuardsWhatHasARoute(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		b.Hold(t)
		m, err := httplock.New(b.Locker.Guard(core.RejectConflicts))
		require.NoError(t, err)
		r := gin.New()
		r.Use(ginlock.FromConfig(routeTable{
			"POST /orders/{id}":       {Middleware: m, Key: ginlock.Param("order:", "id")},
			"POST /v1/orders/{id}":    {Middleware: m, Key: ginlock.Param("order:", "id")},
			"POST /files/{path...}":   {Middleware: m, Key: ginlock.Param("", "path")},
			"POST /broken/guard":      {Key: ginlock.Param("order:", "id")},
			"POST /broken/key":        {Middleware: m},
			"POST /nowhere/{id}/here": {Middleware: m, Key: ginlock.Param("order:", "id")},
		}))
		leased := func(c *gin.Context) {
			lease, held := ginlock.Lease(c)
			if assert.True(t, held) {
				c.String(http.StatusOK, lease.Key())
			}
		}
		r.POST("/orders/:id", leased)
		r.PUT("/orders/:id", func(c *gin.Context) {
			_, held := ginlock.Lease(c)
			assert.False(t, held)
			ok(c)
		})
		r.Group("/v1").POST("/orders/:id", leased)
		r.POST("/files/*path", leased)
		r.POST("/broken/guard", mustNotRun(t))
		r.POST("/broken/key", mustNotRun(t))

		for _, target := range []string{testbed.OrderPath, "/v1" + testbed.OrderPath} {
			testbed.RequireProblem(t, testbed.Call(t, r, http.MethodPost, target, ""), http.StatusConflict, "conflict", true)
		}
		require.Equal(t, "order:42", testbed.Call(t, r, http.MethodPost, "/orders/42", "").Body)
		require.Equal(t, "order:42", testbed.Call(t, r, http.MethodPost, "/v1/orders/42", "").Body)
		require.Equal(t, "/a/b", testbed.Call(t, r, http.MethodPost, "/files/a/b", "").Body)
		require.Equal(t, "ok", testbed.Call(t, r, http.MethodPut, testbed.OrderPath, "").Body, "no entry for the method")
		require.Equal(t, http.StatusNotFound, testbed.Call(t, r, http.MethodPost, "/nowhere/1/here", "").Status)
		testbed.RequireProblem(t, testbed.Call(t, r, http.MethodPost, "/broken/guard", ""), http.StatusInternalServerError, "misconfigured", false)
		testbed.RequireProblem(t, testbed.Call(t, r, http.MethodPost, "/broken/key", ""), http.StatusInternalServerError, "internal", false)
		require.Panics(t, func() { ginlock.FromConfig(nil) })
	})
}

func TestRoutes_ProblemsAreHandedToGinsHandlers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env, core.WithTTL(time.Second))
		guard := b.Locker.Guard(core.RejectConflicts)
		answers := func(status int) func(*gin.Context, *httplock.Problem) {
			return func(c *gin.Context, p *httplock.Problem) {
				assert.Equal(t, "/orders/:id", c.FullPath())
				c.JSON(status, gin.H{"code": p.Status, "conflict": errors.Is(p, core.ErrConflict), "lost": errors.Is(p, core.ErrLeaseLost)})
			}
		}
		engine := func(key ginlock.KeyFunc, h gin.HandlerFunc) *gin.Engine {
			r := gin.New()
			r.Use(func(c *gin.Context) {
				c.Next()
				assert.True(t, c.Writer.Written())
			})
			r.POST("/orders/:id", ginlock.PerKey(guard, key,
				ginlock.WithConflictHandler(answers(http.StatusLocked)), ginlock.WithErrorHandler(answers(http.StatusTeapot))), h)
			return r
		}
		release := b.Hold(t)
		resp := testbed.Call(t, engine(orderKey, mustNotRun(t)), http.MethodPost, testbed.OrderPath, "")
		require.Equal(t, http.StatusLocked, resp.Status)
		require.JSONEq(t, `{"code":409,"conflict":true,"lost":false}`, resp.Body)
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		release()

		resp = testbed.Call(t, engine(ginlock.Query("", "q"), mustNotRun(t)), http.MethodPost, testbed.OrderPath, "")
		require.Equal(t, http.StatusTeapot, resp.Status)
		require.JSONEq(t, `{"code":400,"conflict":false,"lost":false}`, resp.Body)

		resp = testbed.Call(t, engine(orderKey, func(c *gin.Context) {
			names := redistest.Keys(t, b.Redis, b.Prefix+":lock")
			assert.NoError(t, b.Redis.Del(t.Context(), names...).Err())
			<-c.Request.Context().Done()
		}), http.MethodPost, testbed.OrderPath, "")
		require.Equal(t, http.StatusTeapot, resp.Status)
		require.JSONEq(t, `{"code":500,"conflict":false,"lost":true}`, resp.Body)
	})
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	guard := b.Locker.Guard(core.RejectConflicts)
	statusOnly := ginlock.WithErrorHandler(func(c *gin.Context, _ *httplock.Problem) { c.Status(http.StatusTeapot) })
	r := gin.New()
	r.POST("/orders/:id", ginlock.PerKey(guard, orderKey, statusOnly), mustNotRun(t))
	testbed.RequireProblem(t, testbed.Call(t, r, http.MethodPost, testbed.OrderPath, ""), http.StatusConflict, "conflict", true)

	// Under another framework the option is of no use, and does no harm.
	h := httplock.PerKey(guard, func(*http.Request) (string, error) { return testbed.OrderKey, nil }, statusOnly)(http.NotFoundHandler())
	testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, "/", ""), http.StatusConflict, "conflict", true)

	for _, opt := range []httplock.Option{ginlock.WithConflictHandler(nil), ginlock.WithErrorHandler(nil)} {
		_, err := ginlock.New(guard, orderKey, opt)
		require.ErrorIs(t, err, core.ErrInvalidOption)
	}
}

// A guard of r.Use counts for the routes after it, as for gin.
func TestRoutes_ReadsWhichRoutesHaveAGuard(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard, err := ginlock.New(b.Locker.Guard(core.RejectConflicts), orderKey)
	require.NoError(t, err)
	own := func(*gin.Context) {}
	mustNot := mustNotRun(t)

	r := gin.New()
	r.Use(own)
	r.POST("/early/:id", mustNot)
	r.POST("/orders/:id/pay", own, ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey), own, mustNot)
	r.POST("/orders/:id", mustNot)
	r.POST("/behind", mustNot, guard)
	r.Use(ginlock.FromConfig(routeTable{}))
	r.POST("/late/:id", mustNot)
	g := r.Group("/g")
	g.POST("/a", mustNot)
	g.Use(guard)
	g.PUT("/a", mustNot)
	g.GET("/files/*path", mustNot)
	r.Any("/any", mustNot)

	routes, err := ginlock.Routes(r)
	require.NoError(t, err)
	want := []httplock.RegisteredRoute{
		{Method: "POST", Pattern: "/early/:id"},
		{Method: "POST", Pattern: "/orders/:id/pay", PerKey: true},
		{Method: "POST", Pattern: "/orders/:id"},
		{Method: "POST", Pattern: "/behind"},
		{Method: "POST", Pattern: "/late/:id", FromConfig: true},
		{Method: "POST", Pattern: "/g/a", FromConfig: true},
		{Method: "PUT", Pattern: "/g/a", FromConfig: true, PerKey: true},
		{Method: "GET", Pattern: "/g/files/*path", FromConfig: true, PerKey: true},
	}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "HEAD", "OPTIONS", "DELETE", "CONNECT", "TRACE"} {
		want = append(want, httplock.RegisteredRoute{Method: method, Pattern: "/any", FromConfig: true})
	}
	require.ElementsMatch(t, want, routes)

	var e *httplock.RoutesError
	require.ErrorAs(t, httplock.CheckRoutes(routes, nil, "/any", "/late/:id", "/g/a"), &e)
	require.Len(t, e.Problems, 3)

	empty, err := ginlock.Routes(gin.New())
	require.NoError(t, err)
	require.Empty(t, empty)
}

// What Routes says of a guard is what a request meets.
func TestRoutes_AgreeWithWhatRequestsMeet(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	guard := b.Locker.Guard(core.RejectConflicts)
	r := gin.New()
	r.POST("/orders/:id", ok)
	r.Use(ginlock.PerKey(guard, orderKey))
	r.PUT("/orders/:id", ok)
	routes, err := ginlock.Routes(r)
	require.NoError(t, err)
	require.Len(t, routes, 2)
	for _, route := range routes {
		want := http.StatusOK
		if route.PerKey {
			want = http.StatusConflict
		}
		require.Equal(t, want, testbed.Call(t, r, route.Method, testbed.OrderPath, "").Status, route.Method)
	}
}
