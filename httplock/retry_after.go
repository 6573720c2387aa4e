package httplock

import (
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/internal/backoff"
)

const (
	minRetryAfter = 100 * time.Millisecond
	maxRetryAfter = 30 * time.Second
	// Of clients that try again a few times only, against a holder that takes much longer than others.
	minUsualRetryAfter = time.Second
	// What a client is told that would like to know how its parked request does.
	ticketRetryAfter = time.Second
)

// conflictRetryAfter is when the key may be free: after the usual time for which the Middleware's requests hold their keys, and at the end
// of the holder's lease at the latest, unless the holder renews it. A usual of zero is not known. Clients that were refused together are
// spread out.
func conflictRetryAfter(remaining, usual time.Duration) time.Duration {
	if remaining <= 0 {
		return soon()
	}
	after := min(remaining, maxRetryAfter)
	if usual > 0 {
		after = min(after, max(usual, minUsualRetryAfter))
	}
	return max(minRetryAfter, backoff.Spread(after))
}

// recentHolds are for how long the latest requests of a Middleware held their keys. It is safe for concurrent use.
type recentHolds struct {
	minHold time.Duration // of the guard
	count   atomic.Uint64
	took    [32]atomic.Int64
}

// began counts the request that began then, and ends now.
func (h *recentHolds) began(then time.Time) {
	took := max(time.Since(then), h.minHold, 1)
	h.took[(h.count.Add(1)-1)%uint64(len(h.took))].Store(int64(took))
}

// usual is the time within which nine in ten of them ended; zero if none has ended yet.
func (h *recentHolds) usual() time.Duration {
	var all [len(h.took)]int64
	for i := range all {
		all[i] = h.took[i].Load()
	}
	slices.Sort(all[:])
	known := slices.IndexFunc(all[:], func(took int64) bool { return took > 0 })
	if known < 0 {
		return 0
	}
	n := len(all) - known
	return time.Duration(all[known+(9*n+9)/10-1])
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
