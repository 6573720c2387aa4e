package store

import (
	"fmt"
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

func TestReadWhat_OfOtherVersionsAndClients(t *testing.T) {
	type read struct {
		name, id string
		ttl      time.Duration
	}
	for what, want := range map[string]read{
		"":                     {"", "", usualTTL},
		"name;id":              {"name", "id", usualTTL},
		"%3B;%3B;100":          {";", ";", 100 * time.Millisecond},
		"name;id;":             {"name", "id", 0},
		"name;id;9s":           {"name", "id", 0},
		"name;id;-1":           {"name", "id", 0},
		"name;id;100;more":     {"name", "id", 0},
		"name;id;100000000000": {"name", "id", 0},
	} {
		name, id, ttl := readWhat(what)
		require.Equal(t, want, read{name, id, ttl}, what)
	}
}

// As few nodes as keep the holders within the limit have to grant a token.
func TestQuorum_NeedsAsManyNodesAsTheLimitTakes(t *testing.T) {
	t.Parallel()
	for many := 3; many <= 9; many++ {
		q := &quorum{nodes: make([]*node, many)}
		require.Equal(t, many/2+1, q.needed("0:l.s"), "readers, against a writer")
		for n := 1; n <= 20; n++ {
			needed := q.needed(fmt.Sprint(n, ":l.s"))
			require.LessOrEqual(t, many*n/needed, n, "%d nodes with %d places each", many, n)
			require.Greater(t, many*n/(needed-1), n, "one node less would do")
		}
	}
}
