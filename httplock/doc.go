// Package httplock runs one HTTP request at a time per key, under net/http and
// under any framework that ends in an http.ResponseWriter and an *http.Request.
//
// # Model
//
// A Middleware is a core.Guard with HTTP around it. For each request it asks a
// key function for the key, calls Guard.Do, and runs the rest of the chain
// inside. The request that the chain sees carries the lease's context: it ends
// when the client goes away and when the lease is lost, and core.LeaseFrom finds
// the fencing token in it. The key is given back when the chain returns, also by
// a panic, and not before: a response that streams keeps its key while it
// streams, and so does a handler that is deaf to its context.
//
// What happens to a request whose key is held is the guard's policy's business.
// This package turns the outcome into a response:
//
//	key held, or waiting did not help    409, Retry-After
//	parked on a delay queue              202, Location and Link to its status
//	queue full, for one key or as a whole 429 or 503, Retry-After
//	body too large to be parked          413
//	not to be run for its principal      403
//	redis unavailable, locker closed     503, Retry-After
//	lease lost, nothing written yet      500, outcome unknown
//	no usable key in the request         400
//	body too large to hold the key       413
//	a key function that failed           500
//
// Errors are problem documents (RFC 9457), each described in docs/problems.md.
// No response repeats the key. A request that was refused never ran: whatever
// goes wrong, the handler runs under its key or not at all. A Middleware that
// could not be built refuses everything, safe methods included.
//
// GET, HEAD and OPTIONS pass without a key unless LockSafeMethods is given, or
// SharedForSafeMethods: then they share the key, and exclude only other methods.
//
// # Keys
//
// A KeyFunc makes the key of a request, under every framework the same one: Param,
// Query, Header, JSONField and Value take it from one place, Join and Hash combine,
// and Template reads it from a line of a file. Credentials make no keys. What the
// client left out is its fault, 400; what the route does not have is ours, 500, and
// the log says what to do.
//
// # Which routes
//
// PerKey goes around a handler that is registered with a pattern, with http.ServeMux
// or behind chi's r.With and r.Group: around a router it does not know the path
// parameters. FromConfig goes around a whole ServeMux, and asks a Routes for each
// request which guard and which key its route has. NormalizePattern makes the patterns
// of all frameworks alike, so that one configuration is good for all.
//
// # Answers of your own
//
// Problem documents can be replaced: WithConflictHandler and WithErrorHandler hand each
// Problem to a function, which writes what the service's clients are used to.
//
// # Waiting
//
// net/http notices that a client left only once the request's body was read. So
// before a request waits, its body is read into memory, up to the cap of
// WithMaxBody. A longer one waits with its body unread: it works, but a client
// that leaves is noticed only when its handler reads.
//
// # Parking and replay
//
// A parked request is its method, its target as the client sent it, an
// allow-list of headers and the body. Replay runs it in this process through a
// handler of yours, which should be the one that the server serves, so that the
// stored target finds the route that it found before. Replayed tells a replay, by a
// mark in the context that nothing outside the process can set.
//
// A parked request is done when its handler ran and answered with less than 500.
// What answers in front of every guard, and a guard that refuses, leave it undone:
// the queue tries again, and keeps it as a dead letter when no attempt is left.
// So a route that parks and takes its key from a header gives that header to
// AllowHeaders.
//
// A replay runs under the key that the queue's worker holds, so its own guard
// lets it through. When it meets a conflict in another guard, it does not wait
// and is not parked again: Replay returns an error that matches core.ErrConflict
// and the queue tries later. The queue delivers at least once. What ran before
// such a conflict runs again, and so does a replay whose process died: the
// ticket's id, which Replayed returns, stays the same and tells.
//
// # Results
//
// The response of a replay that is done is kept for as long as its ticket: the
// status, an allow-list of headers and the beginning of the body. TicketHandler
// shows it, tells the state of a ticket before that, and lets the client cancel
// what is queued. Replay's options say how much is kept.
//
// # Principals
//
// Credentials are not stored, neither a request's nor a response's. A route whose
// requests carry them has to choose, or such requests are not parked: with
// WithPrincipal the id of who sent a request is stored with it, and a hook of yours
// says at its replay whether that one may still have it run; with ParkAnonymously
// it is replayed on nobody's behalf. A request carries credentials if it has
// Authorization, Proxy-Authorization, Cookie or a TLS client's certificate.
// Middleware that asks for these must let a replay pass, and can load the user that
// Replayed names.
//
// What else lets somebody in is not recognised. The target and the body are stored
// as they are, a token in the query included, and so are the headers given to
// AllowHeaders and AllowResponseHeaders, and a response's body.
//
// # Adapters
//
// An adapter hands each request to Middleware.Serve as an Exchange, whose Key is
// Match.Key with what the framework's router found, and stops its framework's chain
// when Serve reports false. It runs the rest of the chain in Exchange.Next, on the same
// goroutine, with the request that Next is given, and puts back in a defer the one
// that was there before. Panics, and the errors of handlers, pass through it as they
// are. Exchange.Written tells whether a response was begun, by Flush and Hijack too.
//
// Packages ginlock and echolock are such. All adapters pass one suite,
// internal/conformance, which says what more there is to it.
package httplock
