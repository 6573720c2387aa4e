// Package trust says how long a lease can be relied on that Redis has granted.
package trust

import "time"

// Until is how long a lease can be relied on that was asked for at sent and
// lasts ttl on the server's clock. Redis counts from when the command ran, which
// is after sent. A hundredth is for clocks that run at different speeds, the
// margin for this process to notice the end in time.
func Until(sent time.Time, ttl time.Duration) time.Time {
	margin := min(max(ttl/20, 5*time.Millisecond), 250*time.Millisecond)
	return sent.Add(ttl - ttl/100 - margin)
}

// Passed reports whether deadline is over on the monotonic clock or on the wall
// clock: the monotonic clock stands still while a machine is suspended.
func Passed(deadline, now time.Time) bool {
	return !now.Before(deadline) || now.Round(0).After(deadline.Round(0))
}
