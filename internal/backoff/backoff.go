// Package backoff computes exponential delays with jitter, after "Exponential
// Backoff And Jitter" (AWS Architecture Blog, 2015).
package backoff

import (
	"math/rand/v2"
	"time"
)

// Full returns a random delay in (0, min(most, initial * 2^(n-1))], n counting
// from 1.
func Full(n int, initial, most time.Duration) time.Duration {
	return upTo(Exponential(n, initial, most))
}

// Decorrelated returns a random delay in [initial, 3*last], at most most.
func Decorrelated(last, initial, most time.Duration) time.Duration {
	last = max(last, initial)
	return min(most, initial+upTo(min(3*last, most)-initial))
}

// Exponential returns min(most, initial * 2^(n-1)), n counting from 1.
func Exponential(n int, initial, most time.Duration) time.Duration {
	d := initial
	for range n - 1 {
		if d >= most/2 {
			return most
		}
		d *= 2
	}
	return min(d, most)
}

// Spread returns a random delay in [d*4/5, d].
func Spread(d time.Duration) time.Duration { return d - upTo(d/5) }

func upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return 1 + rand.N(d)
}
