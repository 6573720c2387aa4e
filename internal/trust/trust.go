// Package trust computes until when a lease that Redis granted can be relied on.
package trust

import "time"

// Until returns until when a lease can be relied on that was requested at sent and lasts ttl on the
// server's clock. Redis counts from when the command ran, which is after sent. Until subtracts a
// hundredth for clocks that run at different speeds, and a margin for this process to notice the
// end in time.
func Until(sent time.Time, ttl time.Duration) time.Time {
	margin := min(max(ttl/20, 5*time.Millisecond), 250*time.Millisecond)
	return sent.Add(ttl - ttl/100 - margin)
}

// Passed reports whether deadline is over on the monotonic clock or on the wall clock: the
// monotonic clock stands still while a machine is suspended.
func Passed(deadline, now time.Time) bool {
	return !now.Before(deadline) || now.Round(0).After(deadline.Round(0))
}
