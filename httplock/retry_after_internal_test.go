package httplock

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetryAfter_IsTheUsualTimeWithinTheLease(t *testing.T) {
	for name, test := range map[string]struct{ remaining, usual, most time.Duration }{
		"nothing is known of the work":  {10 * time.Second, 0, 10 * time.Second},
		"a long lease":                  {time.Hour, 0, 30 * time.Second},
		"short work":                    {12 * time.Second, 50 * time.Millisecond, time.Second},
		"work of some seconds":          {12 * time.Second, 4 * time.Second, 4 * time.Second},
		"work for longer than a lease":  {12 * time.Second, time.Minute, 12 * time.Second},
		"a lease that ends soon":        {300 * time.Millisecond, 4 * time.Second, 300 * time.Millisecond},
		"a lease that is nearly over":   {time.Millisecond, 4 * time.Second, minRetryAfter},
		"long work under a long lease":  {time.Hour, time.Hour, 30 * time.Second},
		"no lease, as nobody is inside": {0, time.Hour, 3 * time.Second},
	} {
		for range 100 {
			got := conflictRetryAfter(test.remaining, test.usual)
			require.LessOrEqual(t, got, test.most, name)
			if test.remaining > 0 {
				require.GreaterOrEqual(t, got, test.most*4/5, name)
			}
		}
	}
}

func TestRecentHolds_NineInTenOfTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h recentHolds
		require.Zero(t, h.usual())
		took := func(d time.Duration) { h.began(time.Now().Add(-d)) }
		took(0)
		require.Equal(t, time.Duration(1), h.usual(), "at once, but known")
		took(7 * time.Second)
		require.Equal(t, 7*time.Second, h.usual())
		for range 8 {
			took(time.Second)
		}
		require.Equal(t, time.Second, h.usual(), "one in ten takes longer")
		took(6 * time.Second)
		require.Equal(t, 6*time.Second, h.usual(), "two of eleven take longer")
		for range len(h.took) {
			took(20 * time.Millisecond)
		}
		require.Equal(t, 20*time.Millisecond, h.usual(), "what was before is forgotten")

		h.minHold = 5 * time.Second
		for range len(h.took) {
			took(20 * time.Millisecond)
		}
		require.Equal(t, 5*time.Second, h.usual(), "the key stays held")
		h.count.Store(1<<64 - 1)
		took(9 * time.Second)
		took(9 * time.Second)
		require.Equal(t, 5*time.Second, h.usual())
	})
}

func TestRecentHolds_FromManyRequests(t *testing.T) {
	var h recentHolds
	var requests sync.WaitGroup
	for range 8 {
		requests.Go(func() {
			for range 1000 {
				h.began(time.Now().Add(-time.Minute))
				if d := h.usual(); d < time.Minute || d > 2*time.Minute {
					t.Error(d)
				}
			}
		})
	}
	requests.Wait()
}
