package echolock

import (
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/perkey-go/perkey/echolock/internal/adapter"
)

// router finds out what echo v4 does not tell: whether a request matched a route. What
// is in doubt did.
type router struct {
	matched sync.Map // routeID: true
}

// routeID is a route. There are as many as are registered: a request whose method the
// path does not have is known by its Allow header.
type routeID struct {
	router       *echo.Router
	method, path string
}

func (r *router) routing(c echo.Context) adapter.Routing {
	switch {
	case c.Path() == "":
		if beforeRouting(c) {
			return adapter.Unrouted
		}
		return adapter.Unmatched
	case c.Get(echo.ContextKeyHeaderAllow) != nil:
		return adapter.Unmatched
	}
	// A group with middleware has routes for what it does not match, so that its
	// middleware sees that too.
	id := routeID{routerOf(c), c.Request().Method, c.Path()}
	if _, matched := r.matched.Load(id); matched {
		return adapter.Matched
	}
	catchesAll := false
	for _, route := range id.router.Routes() {
		if route.Path == id.path && route.Method == id.method {
			catchesAll = false
			break
		}
		catchesAll = catchesAll || route.Path == id.path && route.Method == echo.RouteNotFound
	}
	if catchesAll {
		return adapter.Unmatched
	}
	r.matched.Store(id, true)
	return adapter.Matched
}

// beforeRouting reports whether a request without a path will match a route: e.Pre's
// middleware runs before that.
func beforeRouting(c echo.Context) bool {
	e := c.Echo()
	probe := e.AcquireContext()
	defer e.ReleaseContext(probe)
	probe.Reset(c.Request(), c.Response().Writer)
	routerOf(c).Find(c.Request().Method, echo.GetPath(c.Request()), probe)
	return probe.Path() != ""
}

func routerOf(c echo.Context) *echo.Router {
	if r, has := c.Echo().Routers()[c.Request().Host]; has {
		return r
	}
	return c.Echo().Router()
}
