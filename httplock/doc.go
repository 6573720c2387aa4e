// Package httplock runs one HTTP request at a time per key, under net/http and
// under any framework that ends in an http.ResponseWriter and an *http.Request.
//
// # Model
//
// A Middleware is a core.Guard with HTTP around it. For each request it asks a
// key function for the key, calls Guard.Do, and runs the rest of the chain
// inside. The request that the chain sees carries the lease's context: it ends
// when the client goes away and when the lease is lost, and core.LeaseFrom finds
// the fencing token in it. The key is released when the chain returns, also by
// a panic, and not before: a response that streams keeps its key while it
// streams, and so does a handler that ignores its context. The response ends after
// the release, so that a client that sends one request after the other does not meet
// its own key. For this the last 2 KiB of an HTTP/1.1 response with a Content-Length
// are kept back, for 100 ms at most, unless the response is flushed, or the writer of
// middleware in front has no Unwrap.
//
// What happens to a request whose key is held is the guard's policy's business.
// This package turns the outcome into a response:
//
//	key held, or waiting did not help    409, Retry-After
//	parked on a delay queue              202, Location and Link to its status
//	queue full, for one key or as a whole 429 or 503, Retry-After
//	too many bytes or requests wait      503, 429 for one principal, Retry-After
//	body too large to be parked          413
//	body that does not come in time      408
//	not to be run for its principal      403
//	redis unavailable, locker closed     503, Retry-After
//	lease lost, nothing written yet      500, outcome unknown
//	no usable key in the request         400
//	Idempotency-Key missing, malformed   400
//	Idempotency-Key of another request   422
//	body too large to hold the key       413
//	a key function that failed           500
//	it would wait for its own sender     508, with Transport
//	over its time, with Timeout          503
//
// Errors are problem documents (RFC 9457), each described in docs/problems.md.
// No response repeats the key. A request that was refused never ran: whatever
// goes wrong, the handler runs under its key or not at all.
//
// Safe methods, GET, HEAD, QUERY (RFC 10008), PROPFIND, REPORT and SEARCH, pass without a key unless WithLockedSafeMethods is
// given, or WithSharedSafeMethods: then they share the key, and exclude only other methods. OPTIONS always passes.
//
// # Keys
//
// A KeyFunc makes the key of a request, under every framework the same one: Param, Query, Header, JSONField, Form and
// Value take it from one place, Join and Hash combine, and package config reads it from a line of a file. Credentials
// are never a key. A part that the client left out is its fault: 400. A part that the route does not have is ours:
// 500, and the log says what to do. NoKey says that a request needs no key.
//
// Values that a service treats as one thing must make one key: 42, 042 and +42 are one order to a handler that uses
// strconv.Atoi. ParamInt, ParamUUID and Canonical write a value in one way; a test with locktest.RequireOneAtATime
// shows whether other spellings are left.
//
// # Which routes
//
// PerKey goes around a handler that is registered with a pattern, with http.ServeMux
// or behind chi's r.With and r.Group: around a router it does not know the path
// parameters. FromConfig goes around a whole ServeMux, and asks a Routes for each
// request which guard and which key its route has. NormalizePattern makes the patterns
// of all frameworks alike, so that one configuration is good for all.
//
// CheckRoutes reports at start the registered POST, PUT, PATCH and DELETE that have no guard.
//
// # Answers of your own
//
// Problem documents can be replaced: WithConflictHandler and WithErrorHandler hand each
// Problem to a function, which writes the response.
//
// # Bodies
//
// A request's body is read into memory before it joins a queue or takes its key, so that a client
// that sends slowly keeps no other waiting: up to the cap of WithMaxBody where the guard's policy
// may have the request wait or be parked, and up to that of WithReadAhead where it is
// core.RejectConflicts. A body that does not arrive within WithBodyTimeout is answered with 408.
// The rest of a longer body is read by the handler, under the key: its reads may wait as long
// again in total, and then fail. Routes that stream have WithStreamBody.
//
// A client with Expect: 100-continue learns of a held key before it sends its body, if the guard
// only rejects. This costs one more round trip to Redis. Over HTTP/2 net/http does not show the header:
// there, bodies longer than WithReadAhead are treated as if they had it. With a Locker of core.NewQuorum,
// which cannot look at keys, the body is read first.
//
// WithMaxWaitingBytes bounds the memory of these bodies for the process, and
// WithMaxWaitersPerPrincipal, times the longest body that is read before the key, for one principal. What a client has sent counts, not what it
// has announced. Once a request has its key, its body is not counted any more.
//
// A read that waits is ended by the read deadline of the connection, or of the HTTP/2
// stream. Where the writer has no deadlines, as in tests, the time is checked between two
// reads. Over HTTP/1.1 net/http itself reads some of a long body that the handler did not
// read, before it writes the response: that is bounded too, unless middleware in front
// has replaced the body.
//
// net/http notices that a client left only once the request's body was read. A body above
// the cap of WithMaxBody waits, all but its first 64 KiB (WithReadAhead) unread: it works, but
// a client that leaves is noticed only when its handler reads.
//
// # The client's choice
//
// By WithPrefer a client says with Prefer (RFC 7240) how long it would wait, and that it
// would rather be parked than wait. This chooses among what the guard's policy does
// anyway, and never adds to it.
//
// # Requests made twice
//
// With WithIdempotency a client that does not know whether its request arrived sends it again under
// the same Idempotency-Key (draft-ietf-httpapi-idempotency-key-header). It gets the first request's
// response, byte for byte, with "Idempotent-Replayed: true":
//
//	the first one is in progress         as the guard's policy says: 409, or it waits, or 202
//	it was carried out                   its response
//	it is parked, or about to be         202 with the same ticket, until that expires
//	the payload is another one           422
//
// The ticket's status resource has its state: it may have been cancelled since, or be a dead
// letter. Once the key is free, a request that is sent again runs, whatever tickets there are. A
// request whose ticket is superseded (delayqueue.Coalesce) runs again too: after the one that
// replaced it, whose change it overwrites, unless the client says by If-Match which version it
// changes, or reads its ticket first.
//
// A payload is method, target, Content-Type, Content-Encoding, body and the lock's key; only
// hashes of it are stored. Some differences do not count: a media type means the same
// whatever its case and the order of its parameters, and with "charset=utf-8" or without if
// it is JSON's or a form's; a form, urlencoded or multipart/form-data, is its values and its
// files with their names and headers, each name's in their order; any other multipart body is
// its parts in their order, with their headers, whatever the boundary. One that is encoded or cut
// short or not escaped as by net/url, and a part that is itself multipart, are compared byte by byte. Of a form that middleware
// in front has read, what it parsed is compared; where a body is gone, or begun, the answer is 500.
// IdempotencyPayload compares something else in
// place of Content-Type, Content-Encoding and body, such as a body without its timestamp. The
// body is read before anything else, and a body above the cap of WithMaxBody is answered with
// 413. A key belongs to its route (Exchange.Name, or method and path if that is empty) and to
// its principal.
//
// The guard's own key is the lock: requests of one payload have the same, which is why no
// other lock is needed. If a request that holds the lock finds its Idempotency-Key in use
// and not answered, the earlier holder died or lost its lease: the request runs again. The
// response of a handler whose lease was lost is not stored, and its fence keeps it from
// overwriting a later one. A route with nothing else to lock takes IdempotencyKey as its
// key function. Idempotency costs one script before the handler and one after it, which go along
// with the lock's where the Store has the Locker's client, of one server. A stored response costs
// one script, and is returned even while the key is held.
//
// Responses of 2xx, 3xx and 4xx of a handler that returned are stored, whether or not its client
// was still there: the status, the headers that Replay would store and those of
// KeepResponseHeaders, and the body. The handler is run again for the same request after
//
//	5xx, a panic                            it may be tried again
//	401, 407, 408, 425, 429, and any 4xx
//	that has Retry-After                    they ask for the same request again
//	a refusal by a guard further in         it did not reach its work
//	4xx, a stream or nothing at all, when
//	its ctx had ended                       it was interrupted
//	a lost lease, a hijacked connection     nobody knows what came of it
//	a store that could not be reached       the client of the first one has its response
//
// so a handler runs at least once, and what must not be done twice whatever happens needs
// a fence that is claimed before the read (package sqlfence) or a key in the database. A
// response whose body is longer than KeepResponseBody says, that was flushed, that was cut
// short of its Content-Length, or that has trailers is not stored. Its request is
// remembered as carried out: sent again, it is refused with 409 and does not run.
//
// # Parking and replay
//
// A parked request is its method, its target as the client sent it, an allow-list of
// headers and the body. Replay runs it in this process through a handler of yours, which
// should be the one that the server serves, so that the stored target finds the route
// that it found before. The client's host is not stored: a replay has the host of the
// route's own pattern, or that of WithReplayHost. Replayed recognizes a replay, by a mark
// in the context that nothing outside the process can set.
//
//	queue, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix("shop"), delayqueue.WithService("shop"))
//	worker, err := delayqueue.NewWorker(queue, locker, httplock.Replay(mux))
//
// A parked request is done when its handler has answered, 4xx and 5xx alike. After 429, 503 and
// what the route's WithRetryStatuses names it is tried again until it is too old, and then a dead
// letter. A panic, even if middleware in front of the guard recovers it, and a lost lease are
// failed attempts, whose number the queue bounds. The table is in docs/guarantees.md, What is
// tried again.
//
// The worker acquires the key of what it runs, with options of its own: a guard's core.MinHold,
// core.MaxHold or core.WaitReplicas holds for its parked requests only if the worker has the same,
// by delayqueue.WithAcquireOptions. Parked requests of a guard with core.Counted run one at a time.
//
// A request whose route this process does not have, whose route has lost its guard, that its guard
// refuses, or that a later release has stored, is left to other processes, and expires if none of
// them runs it; the log says so, once per route. This lets releases be rolled out one replica at a
// time. A route that parks and takes its key from a header gives that header to
// WithAllowedHeaders; requests of a route that was renamed find it by WithTargetRewrite. Of two
// services with the same prefix and queue name the second is refused, if both have a name
// (delayqueue.WithService). Without names they run each other's requests where both have the
// route.
//
// A replay runs under the key that the queue's worker holds, so its own guard lets it
// through. When it meets a conflict in another guard, it does not wait and is not parked
// again: Replay returns an error that matches core.ErrConflict and the queue tries later.
// The queue delivers at least once. What ran before such a conflict runs again, and so
// does a replay whose process died: the ticket's id, which Replayed returns, stays the
// same, so a handler can recognize a second run.
//
// # Results
//
// The response of a replay that is done is stored for as long as its ticket: the status, an
// allow-list of headers and the beginning of the body. TicketHandler serves it. Before that it
// serves the ticket's state, at once or, with "Prefer: wait=N", when the ticket has ended; and it
// lets the client cancel what is queued. Replay's options say how much is stored.
//
// # Principals
//
// Credentials are not stored, neither a request's nor a response's. So a guard whose policy may
// park requests, or that has WithIdempotency, must say who sends them; otherwise New returns an
// error:
//
//	WithPrincipal(user), WithReauthorize(mayStill)   a user's id is stored with a request; mayStill says at its
//	                                                 replay whether that one may still have it run
//	WithPrincipal(user)                              enough for WithIdempotency alone: each user has their own keys
//	WithAnonymous()                                  a request runs on nobody's behalf, and all clients share their Idempotency-Keys
//
// Where Replay cannot read that a route has a guard, as under gin and echo, give it mayStill too, with WithReplayReauthorize: otherwise
// requests of principals are handed back, and expire. Middleware that asks for credentials must let a replay pass, and can
// load the user that Replayed names.
//
// A request carries credentials if it has Authorization, Cookie, X-Api-Key or another header of the list to which
// WithCredentialHeaders adds, or a TLS client's certificate. If WithPrincipal's function returns no principal for
// such a request, which may be a mistake, the request is not parked, and it is refused if it has an
// Idempotency-Key. The same list decides what WithAllowedHeaders refuses.
//
// Other credentials are not recognized. The target and the body are stored as they are, a
// token in the query included, and so are the headers given to WithAllowedHeaders and
// WithAllowedResponseHeaders, and a response's body.
//
// # Observers
//
// An Observer, set by WithObserver, gets one Outcome for each request that reached the guard, under
// every framework: it ran, passed without a key, was refused for one of a few reasons, was parked,
// or was answered with a stored response. The Outcome has the route, the status, and whether it was
// a replay. A panic of the Observer breaks no request.
//
// # Adapters
//
// This section is for authors of adapters, and so are [Exchange], [Middleware.Serve], [Match],
// [Track] and [FrameworkFrom].
//
// An adapter hands each request to Middleware.Serve as an Exchange, whose Key is
// Match.Key with what the framework's router found, and stops its framework's chain when
// Serve reports false. It runs the rest of the chain in Exchange.Next, on the same
// goroutine, with the request that Next is given, and puts back in a defer the one that
// was there before. Panics, and the errors of handlers, pass through it as they are.
// Exchange.Written tells whether a response was begun, by Flush and Hijack too, and
// Exchange.Status its status. An adapter without Exchange.Tee cannot show what a handler
// answers: on routes of WithIdempotency it refuses requests that have an Idempotency-Key
// with 500.
//
// Packages ginlock and echolock are adapters. All adapters pass one suite,
// internal/test/conformance, which has the rest of the contract.
package httplock
