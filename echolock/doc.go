// Package echolock runs one request at a time per key in a service on echo v4. For echo v5 there is
// package echolock/v5, with the same API.
//
// PerKey is echo middleware over a core.Guard, for a route, a group or the whole
// service:
//
//	e.POST("/orders/:id/pay", pay, echolock.PerKey(guard, echolock.Param("order:", "id")))
//
// The guard's policy says what happens to a request whose key is held, and package
// httplock, over which this one is a thin layer, says what the client sees. Options are
// httplock's. Config has a Skipper, and PerKeyWithConfig and ToMiddleware take it; New
// and ToMiddleware report mistakes.
//
// # Under echo
//
// The handlers behind PerKey run inside it, on the request's goroutine, with a
// c.Request() whose context is the lease's: hand c.Request().Context() to what they
// call. It ends when the client leaves or the lease is lost, and core.LeaseFrom
// finds the fencing token in it. When they return c.Request() is what it was before,
// and the key is released.
//
// A handler's error goes to echo unchanged, after the key was released: echo's
// HTTPErrorHandler writes its response without the key. What the guard answers itself is a
// response, not an error, unless Config.ReturnErrors is set. If the lease was lost and
// nothing was written, the guard answers before the handler's error is returned, and echo
// keeps that response. With httplock.WithIdempotency, the error of a request with an
// Idempotency-Key is answered by echo's HTTPErrorHandler before the key is released, since
// that answer is stored. It is not returned then, as echo would answer it a second time:
// middleware in front finds the status in the response.
//
// A panic releases the key and goes on, to echo's Recover or to the server. With
// Recover in front of PerKey the key is free before the 500 is written; with Recover
// behind it, after that.
//
// A guard of a whole service, e.Use(echolock.PerKey(guard, key)), is also in front of routes that
// need no key: for these the key function returns NoKey as its error.
//
// Requests that match no route pass without a key, also in a group: echo answers them
// with 404 or 405. That holds even if something of yours answers them, such as a handler
// of e.RouteNotFound, or echo's Proxy in a group without routes: to guard it, give it a
// route, such as g.Any("/*", handler).
//
// OPTIONS passes as well, and so do GET and HEAD, unless httplock.WithLockedSafeMethods or
// WithSharedSafeMethods is given. A guard does not work in e.Pre, which runs before the
// route is known: requests that will match a route are refused there with 500, and the log
// says why.
//
// To run parked requests, hand the Echo itself to httplock.Replay, with its routes:
//
//	registered := func() (routes []string) {
//		for _, route := range e.Routes() {
//			routes = append(routes, route.Method+" "+route.Path)
//		}
//		return routes
//	}
//	replay := httplock.Replay(e, httplock.WithRoutes(registered, nil), httplock.WithReplayReauthorize(mayStill))
//
// A route that parks, or that has httplock.WithIdempotency, needs WithPrincipal, which says who sends its requests, or
// httplock.WithAnonymous, if that does not matter. httplock.WithReauthorize says whether a principal may still have a
// parked request run; without httplock.WithReplayReauthorize, or a configuration as the second argument of WithRoutes,
// requests of principals expire. Middleware in front that asks for credentials lets replays pass (httplock.Replayed),
// and a header that makes the key is stored with the request (httplock.WithAllowedHeaders). Clients read their state
// at e.Any("/tickets/*", echo.WrapHandler(handler)), where handler is httplock.TicketHandler's.
package echolock
