// Package perkey is the front door of a toolkit that lets a Go service run one request, or one job,
// at a time per key, across all its replicas. It has no code of its own: a service imports the
// packages below.
//
// A customer clicks "pay" twice, and the clicks reach two replicas. With a guard on the route the
// second click is refused with 409, waits, or runs later, as its policy says:
//
//	r := router.Group("/orders/:id")
//	r.Use(ginlock.PerKey(locker.Guard(core.RejectConflicts), ginlock.ParamInt("order:", "id")))
//	r.POST("/pay", pay)
//
// # Policies
//
//	core.RejectConflicts                     409 with Retry-After
//	retry.Policy{MaxWait: 2 * time.Second}   waits; the release wakes it
//	delayqueue.Policy(queue)                 202 with a ticket; runs later in this service
//
// # Packages
//
//   - [github.com/perkey-go/perkey/core]: the lock engine: lockers, leases, guards, policies
//   - [github.com/perkey-go/perkey/ginlock], [github.com/perkey-go/perkey/echolock],
//     [github.com/perkey-go/perkey/httplock], [github.com/perkey-go/perkey/asynqlock]: middleware for
//     gin, echo, net/http and asynq
//   - [github.com/perkey-go/perkey/retry], [github.com/perkey-go/perkey/delayqueue]: policies that wait,
//     and that store a call to run it later
//   - [github.com/perkey-go/perkey/idempotency]: the responses of requests with an Idempotency-Key
//   - [github.com/perkey-go/perkey/config]: guards, routes and queues from a YAML file
//   - [github.com/perkey-go/perkey/sqlfence]: fences that a database compares
//   - [github.com/perkey-go/perkey/ops], [github.com/perkey-go/perkey/locktest],
//     [github.com/perkey-go/perkey/lockclient]: for operators, for tests of services, for clients
//
// # Limits
//
// One Redis primary gives at most one unexpired lease per key, and a lease's context ends before the
// key can be another's. A failover that loses writes, or a handler that ignores its context, can
// overlap with the next holder: each grant has a fence, by which a store refuses the earlier one. Parked work
// runs at least once. docs/guarantees.md has the assumptions, and the test that shows each promise.
package perkey
