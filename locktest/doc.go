// Package locktest is for tests of services that use perkey. It has a Redis, and
// another holder of keys: what is rare in production happens at a line that
// the test chooses.
//
//	func TestABusyOrderIsRefused(t *testing.T) {
//		redis := locktest.New(t)                       // a Redis in this process, until the test ends
//		router := newRouter(redis.Locker(t))           // your service
//		release := redis.Hold(t, "order:42")           // another replica works on the order
//		require.Equal(t, 409, post(router, "/orders/42/pay"))
//		release()
//		require.Equal(t, 200, post(router, "/orders/42/pay"))
//		redis.RequireFree(t, "order:42")               // the service released it
//	}
//
// # What can happen to a key
//
//	Hold         another replica holds it                   a call for it meets a conflict
//	Steal        it is taken from its holder                the holder's ctx ends with core.ErrLeaseLost
//	Expire       its leases expire, as a dead holder's do    a call that waits gets it; a living holder learns by its next renewal
//	Down         Redis cannot be reached                    calls fail with core.ErrUnavailable; leases end in time
//	FastForward  the clock of Redis is set forward           leases, reservations, delays and records expire
//
// All of it works through Redis, as in production: [Redis.Steal], for example, is a [core.Locker.ForceRelease] and
// an Acquire by another Locker. So your code sees what it will see in production.
//
// [Redis.RequireHeld], [Redis.RequireFree], [Redis.RequireWaiting] and [RequireLost] wait for what they require, for
// ten seconds at most, since releases, grants and losses arrive as messages. With them a test can also wait
// until the service has reached some point, without a sleep.
//
// [RequireOneAtATime] sends requests for one thing whose id is written in several ways, such as 42 and 042, and fails the
// test if two of them run at once: a service that takes both for one order must make one key of them.
//
// [Policy] is a [core.ConflictPolicy] that returns given decisions, and records the conflicts.
//
// # Which Redis
//
// [New] starts miniredis in this process. It has scripts, pub/sub and its own clock, and
// needs nothing installed. [On] takes a client of your own Redis, for tests that need a real
// one: everything except Down and FastForward works there.
//
// The clock of miniredis moves every 10 ms, and a TTL that is set between two of these moves may end up to 20 ms
// early. Leases end before that, but a fence that is ahead of the clock after a ForceRelease may be forgotten.
package locktest
