package core_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// What docs/operations.md says of first leases comes from this: which share of the requests that are under way when
// Redis goes away lose their lease. PERKEY_FIGURES=1 measures the whole table; without it one row is checked.
func TestFirstLease_WhatABlipEnds(t *testing.T) {
	t.Parallel()
	firsts, blips := []time.Duration{core.DefaultFirstLease}, []time.Duration{3 * time.Second}
	figures := os.Getenv("PERKEY_FIGURES") != ""
	if figures {
		firsts = []time.Duration{time.Second, 3 * time.Second, 5 * time.Second, 10 * time.Second, core.DefaultTTL}
		blips = []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 5 * time.Second}
	}
	for kind, away := range map[string]func(*fakeNode){"stopped": (*fakeNode).stop, "cut off": (*fakeNode).die} {
		for _, first := range firsts {
			for _, blip := range blips {
				onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
					short, long := blipLosses(t, nodes[0], first, func() {
						away(nodes[0])
						time.Sleep(blip)
						nodes[0].live()
					})
					t.Logf("Redis is %s for %s, first lease %s: lost %.0f %% of 200 ms, %.0f %% of 6 s", kind, blip, first, 100*short, 100*long)
					if !figures {
						assert.Zero(t, short, "%s: of 200 ms", kind)
						assert.Zero(t, long, "%s: of 6 s", kind)
					}
				})
			}
		}
	}
}

// blipLosses has requests of 200 ms and of 6 s run one after the other on keys of their own, and
// tells which share of those that were under way when Redis went away lost their lease.
func blipLosses(t *testing.T, n *fakeNode, first time.Duration, blip func()) (short, long float64) {
	t.Helper()
	const each = 20
	l := lockerOn(t, n.client(t), "p", core.WithFirstLease(first))
	var away atomic.Bool
	var met, lost [2]atomic.Int64
	var requests sync.WaitGroup
	for kind, work := range []time.Duration{200 * time.Millisecond, 6 * time.Second} {
		for i := range each {
			requests.Go(func() {
				time.Sleep(work * time.Duration(i) / each)
				for !away.Load() {
					underWay := false
					err := l.Do(t.Context(), fmt.Sprint(kind, i), func(ctx context.Context) error {
						began := !away.Load()
						select {
						case <-ctx.Done():
						case <-time.After(work):
						}
						underWay = began && away.Load()
						return context.Cause(ctx)
					})
					if underWay {
						met[kind].Add(1)
						if errors.Is(err, core.ErrLeaseLost) {
							lost[kind].Add(1)
						}
					}
				}
			})
		}
	}
	time.Sleep(8*time.Second + time.Millisecond)
	away.Store(true)
	blip()
	requests.Wait()
	assert.EqualValues(t, 2*each, met[0].Load()+met[1].Load())
	return float64(lost[0].Load()) / each, float64(lost[1].Load()) / each
}

// What docs/operations.md says of leases in an outage: one that was not renewed yet ends within
// its first lease whatever its TTL is, one that was lasts for about two thirds of the TTL at least.
func TestLease_AnOutageEndsAYoungLeaseWithinItsFirstLease(t *testing.T) {
	t.Parallel()
	onFakeNodes(t, 1, func(t *testing.T, nodes []*fakeNode) {
		const ttl = 9 * time.Second
		l := lockerOn(t, nodes[0].client(t), "p", core.WithTTL(ttl), core.WithFirstLease(3*time.Second))
		old := testbed.Take(t, l, "old")
		time.Sleep(1500 * time.Millisecond) // it is renewed after a third of 3 s
		young := testbed.Take(t, l, "young")
		nodes[0].stop()
		away := time.Now()

		endsLost(t, young)
		require.InDelta(t, 3*time.Second, time.Since(away), float64(500*time.Millisecond))
		require.NoError(t, old.Context().Err())
		<-old.Context().Done()
		require.GreaterOrEqual(t, time.Since(away), ttl*3/5)
		nodes[0].live()
	})
}
