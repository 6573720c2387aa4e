package ginlock_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
	r.Use(ginlock.FromConfig(noRoutes{}))
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

// noRoutes is a configuration without routes.
type noRoutes struct{}

func (noRoutes) Route(string, string) (httplock.Route, bool) { return httplock.Route{}, false }

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
