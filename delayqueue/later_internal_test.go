package delayqueue

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The defaults: 1, 2, 4, 8, 16 and then every 30 s, each up to a fifth shorter.
func TestLaterDelay_ServiceThatIsAwayForAMinute(t *testing.T) {
	const away, age = time.Minute, 15 * time.Minute
	for range 1_000 {
		now, tries := time.Duration(0), 0
		for now < away {
			tries++
			delay, inTime := laterDelay(tries, bounds{time.Second, time.Minute}, 0, age-now)
			require.True(t, inTime)
			require.LessOrEqual(t, delay, 30*time.Second)
			now += delay
		}
		require.Less(t, now, away+30*time.Second, "it is done by then")
		require.LessOrEqual(t, tries, 7)
		require.Greater(t, tries, 5, "more than attempts")
	}
}

func TestLaterDelay_TriesUntilTheAgeEnds(t *testing.T) {
	for range 200 {
		age := time.Duration(rand.N(int64(10 * time.Minute)))
		left, tries := age, 0
		for {
			tries++
			delay, inTime := laterDelay(tries, bounds{time.Second, time.Minute}, 0, left)
			if !inTime {
				break
			}
			require.GreaterOrEqual(t, delay, 800*time.Millisecond)
			require.Less(t, delay, left)
			left -= delay
		}
		require.LessOrEqual(t, left, min(age, time.Second), "no more than the shortest delay is left")
		require.LessOrEqual(t, tries, 40)
	}
}

func TestLaterDelay_IsNoShorterThanWhatTheOtherSideSays(t *testing.T) {
	delay, inTime := laterDelay(1, bounds{time.Second, time.Minute}, 5*time.Minute, 6*time.Minute)
	require.Equal(t, 5*time.Minute, delay, "though it is beyond 30 s and half of what is left")
	require.True(t, inTime)
	_, inTime = laterDelay(1, bounds{time.Second, time.Minute}, 5*time.Minute, 5*time.Minute)
	require.False(t, inTime)
	delay, _ = laterDelay(20, bounds{time.Second, time.Minute}, time.Millisecond, time.Hour)
	require.GreaterOrEqual(t, delay, 24*time.Second)
	delay, _ = laterDelay(1, bounds{time.Minute, time.Hour}, 0, time.Hour)
	require.LessOrEqual(t, delay, 30*time.Second)
}
