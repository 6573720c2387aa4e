package store

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A copy may run for as long as go-redis waits, and as the quickest request was on its way; after a clock was set, as that of the first reply.
func TestBound_IsTheNearestThatRepliesTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = 3 * time.Second
		b := bound{clock: &serverClock{born: time.Now()}, wait: wait}
		ahead := time.Duration(0)
		// ask is how long after it was written a copy of a request may run, whose reply has the server's time.
		ask := func(there, back time.Duration) (within time.Duration) {
			time.Sleep(time.Second)
			text, err := b.MarshalBinary()
			require.NoError(t, err)
			until, err := strconv.ParseInt(string(text), 10, 64)
			require.NoError(t, err)
			if within = -1; until != 0 {
				within = time.UnixMilli(until).Sub(time.Now().Add(ahead))
			}
			time.Sleep(there)
			its := time.Now().Add(ahead).UnixMilli()
			time.Sleep(back)
			result{clock: b.clock, written: b.written}.said(its)
			return within
		}
		nearly := func(want time.Duration) {
			t.Helper()
			require.InDelta(t, want, ask(time.Millisecond, time.Millisecond), float64(2*time.Millisecond))
		}
		require.Negative(t, ask(500*time.Millisecond, 0), "nothing is known")
		nearly(wait + 500*time.Millisecond)
		nearly(wait)
		ask(1200*time.Millisecond, 1200*time.Millisecond)
		nearly(wait)
		ahead = time.Hour
		nearly(wait - time.Hour)
		nearly(wait)
		ahead = 0
		nearly(wait + time.Hour)
		nearly(wait)
	})
}
