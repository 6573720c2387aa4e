// Package ginlock runs one request at a time per key in a gin service.
//
// PerKey is gin middleware over a core.Guard, for a route, a group or the whole
// engine:
//
//	r.POST("/orders/:id/pay", ginlock.PerKey(guard, ginlock.Param("order:", "id")), pay)
//
// The guard's policy says what happens to a request whose key is held, and package httplock, over
// which this one is a thin layer, says what the client sees. Options are httplock's.
//
// # Under gin
//
// The handlers behind PerKey run inside it, on the request's goroutine, with a
// c.Request whose context is the lease's: hand c.Request.Context() to what they
// call. It ends when the client leaves or the lease is lost, and core.LeaseFrom
// finds the fencing token in it, as Lease(c) does. When they return c.Request is what it was
// before, and the key is released. After a refusal the chain is aborted.
//
// Do not pass on c itself as a ctx. It has the lease, so a call for the same key with c passes
// straight through, and core warns (core.WarnContext). But it does not end when the client leaves
// or the lease is lost, unless the engine's ContextWithFallback is set.
//
// A panic releases the key and goes on, to gin.Recovery or to the server. With
// gin.Recovery in front of PerKey the key is free before the 500 is written; with
// gin.Recovery behind it, after that.
//
// A guard of a whole engine, r.Use(ginlock.PerKey(guard, key)), is also in front of routes that
// need no key: for these the key function returns NoKey as its error.
//
//	order := ginlock.ParamInt("order:", "order")
//	key := func(r *http.Request) (string, error) {
//		if r.PathValue("order") == "" { // gin's, under any framework
//			return "", ginlock.NoKey
//		}
//		return order(r)
//	}
//
// Requests that match no route pass without a key: gin answers them with 404. That holds even for a
// guard among the handlers of r.NoRoute or r.NoMethod: to guard these, give them a route, such as
// r.Any("/*path", guard, handler).
//
// OPTIONS passes as well, and so do GET and HEAD, unless httplock.WithLockedSafeMethods or
// WithSharedSafeMethods is given.
//
// FromConfig guards a whole engine as a configuration says, route by route. A guard of
// the engine, of a group and of a route may be nested: the outer keys are taken first.
//
// What the guard answers in a handler's place is a problem document, unless WithConflictHandler or
// WithErrorHandler writes something else.
//
// A guard made with core.Counted(n) lets n requests per key run at the same time.
//
// To run parked requests, hand the engine itself to httplock.Replay, with its routes:
//
//	registered := func() (routes []string) {
//		for _, route := range r.Routes() {
//			routes = append(routes, route.Method+" "+route.Path)
//		}
//		return routes
//	}
//	replay := httplock.Replay(r, httplock.WithRoutes(registered, nil), httplock.WithReplayReauthorize(mayStill))
//
// A route that parks, or that has httplock.WithIdempotency, needs WithPrincipal, which says who sends its requests, or
// httplock.WithAnonymous, if that does not matter. httplock.WithReauthorize says whether a principal may still have a
// parked request run; without httplock.WithReplayReauthorize, or a configuration as the second argument of WithRoutes,
// requests of principals expire. Middleware in front that asks for credentials lets replays pass (httplock.Replayed),
// and a header that makes the key is stored with the request (httplock.WithAllowedHeaders). Clients read their state
// at r.Any("/tickets/*path", gin.WrapH(handler)), where handler is httplock.TicketHandler's.
package ginlock
