package trust_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/trust"
)

func TestTrust_EndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	sent := time.Now()
	for ttl, margin := range map[time.Duration]time.Duration{
		100 * time.Millisecond: 6 * time.Millisecond,
		3 * time.Second:        180 * time.Millisecond,
		15 * time.Second:       400 * time.Millisecond,
		time.Hour:              36*time.Second + 250*time.Millisecond,
	} {
		require.Equal(t, sent.Add(ttl-margin), trust.Until(sent, ttl), ttl)
	}
}

func TestTrust_EitherClockEndsIt(t *testing.T) {
	t.Parallel()
	now := time.Now()
	require.False(t, trust.Passed(now.Add(time.Second), now))
	require.True(t, trust.Passed(now, now))
	require.True(t, trust.Passed(now.Add(-time.Second), now), "monotonic")
	// A suspended machine: the wall clock went on, the monotonic one did not.
	require.True(t, trust.Passed(now.Round(0).Add(-time.Second), now), "wall")
}
