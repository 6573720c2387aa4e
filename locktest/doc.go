// Package locktest is for tests of services that use perkey. It has a Redis, and a rival that takes
// keys: what is rare in production happens at a line of the test's choice.
//
//	func TestABusyOrderIsRefused(t *testing.T) {
//		redis := locktest.New(t)                       // a Redis in this process, until the test ends
//		router := newRouter(redis.Locker(t))           // your service
//		release := redis.Hold(t, "order:42")           // another replica works on the order
//		require.Equal(t, 409, post(router, "/orders/42/pay"))
//		release()
//		require.Equal(t, 200, post(router, "/orders/42/pay"))
//		redis.RequireFree(t, "order:42")               // nothing was left behind
//	}
//
// # What can happen to a key
//
//	Hold         somebody else has it                       a call for it meets a conflict
//	Steal        it is taken from its holder                the holder's ctx ends with core.ErrLeaseLost
//	Expire       its leases run out, as a dead holder's do   who waits gets it; a living holder is told by its next renewal
//	Down         Redis cannot be reached                    calls fail with core.ErrUnavailable; leases end in time
//	FastForward  the clock of Redis is set forward           leases, reservations, delays and records run out
//
// All of it goes through Redis as in production: Steal is a core.Locker.ForceRelease and an Acquire
// by another Locker, so that your code sees what it will see in production.
//
// RequireHeld, RequireFree, RequireWaiting and RequireLost wait for what they require, for
// ten seconds at most, since releases, grants and losses arrive as messages. They also let
// a test wait until the service has reached some point, without a sleep.
//
// RequireOneAtATime sends requests for one thing with several spellings of its id, such as 42 and
// 042, and fails the test if two of them run at once: a service to which both are one order must
// make one key of them.
//
// RequireGuardWaits finds a time-out behind a route's guard, which lets its handler run on without its key.
//
// Policy is a core.ConflictPolicy that returns given decisions, and records the conflicts.
//
// # Which Redis
//
// New's is miniredis, in this process. It has scripts, pub/sub and a clock of its own, and
// needs nothing installed. On uses a Redis of yours, through its client, for tests against
// a real one: everything but Down and FastForward works there.
//
// The clock of New's Redis moves every 10 ms, and a key set between two of these moves may expire
// up to 20 ms early. Leases end before that, but a fence that is ahead of the clock after a
// ForceRelease may be forgotten.
package locktest
