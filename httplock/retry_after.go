package httplock

import (
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/perkey-go/perkey/internal/backoff"
)

const (
	minRetryAfter = 100 * time.Millisecond
	maxRetryAfter = 30 * time.Second
	// What a client is told that would like to know how its parked request does.
	ticketRetryAfter = time.Second
)

// conflictRetryAfter is when the key may be free: at the end of the holder's
// lease, unless the holder renews it or comes back earlier. Clients that were
// refused together are spread out.
func conflictRetryAfter(remaining time.Duration) time.Duration {
	if remaining <= 0 {
		return soon()
	}
	return max(minRetryAfter, backoff.Spread(min(remaining, maxRetryAfter)))
}

// soon is when to try again what nobody knows the time of.
func soon() time.Duration { return time.Second + rand.N(2*time.Second) }

// seconds rounds up: Retry-After knows whole seconds, and 0 means at once.
func seconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// retryAfter reads Retry-After: seconds, or a date. Zero: it says nothing.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		return time.Duration(min(max(0, seconds), math.MaxInt64/int64(time.Second))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
