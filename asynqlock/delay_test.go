package asynqlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
)

func TestDelay_FollowsTheHoldersLease(t *testing.T) {
	t.Parallel()
	bounds := asynqlock.WithDelay(2*time.Second, 20*time.Second)
	for _, c := range []struct{ remaining, least, most time.Duration }{
		{0, 2500 * time.Millisecond, 5 * time.Second}, // not known
		{time.Millisecond, 2 * time.Second, 2 * time.Second},
		{3 * time.Second, 2 * time.Second, 3 * time.Second},
		{10 * time.Second, 5 * time.Second, 10 * time.Second},
		{time.Hour, 10 * time.Second, 20 * time.Second},
	} {
		different := make(map[time.Duration]bool)
		for range 100 {
			d := asynqlock.Delay(c.remaining, bounds)
			require.GreaterOrEqual(t, d, c.least, c.remaining)
			require.LessOrEqual(t, d, c.most, c.remaining)
			different[d] = true
		}
		require.Equal(t, c.least != c.most, len(different) > 50, "tasks refused together are spread out")
	}
}
