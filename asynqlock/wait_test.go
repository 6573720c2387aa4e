package asynqlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
)

func TestDelayFollowsTheHoldersLease(t *testing.T) {
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

func TestWaitIsReadFromTheLastErrorOnly(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 21, 12, 0, 0, 5e6, time.UTC)
	for text, want := range map[string]int{
		"asynqlock: not run: the key is held (refusal 17 since 2026-11-21T12:00:00.005Z)":              17,
		"mine: asynqlock: not run: the key is held (refusal 1 since 2026-11-21T12:00:00.005Z)":         1,
		"asynqlock: not run: the key is held (refusal 17 since 2026-11-21T12:00:00.005Z) and then":     17,
		"asynqlock: not run: the key is held (refusal 99999999999 since 2026-11-21T12:00:00.005Z)":     0,
		"asynqlock: not run: the key is held (refusal 17 since 2026-13-21T12:00:00.005Z)":              0,
		"asynqlock: not run: the key is held (asynqlock.Configure was not applied)":                    0,
		"asynqlock: task was deferred for too long: refused 3 times since 2026-11-21T12:00:00.005Z, x": 0,
		"(refusal 17 since 2026-11-21T12:00:00.005Z)":                                                  0,
		"": 0,
	} {
		refusals, at, ok := asynqlock.WaitIn(text)
		require.Equal(t, want > 0, ok, text)
		require.Equal(t, want, refusals, text)
		if ok {
			require.True(t, since.Equal(at), at)
		}
	}
}
