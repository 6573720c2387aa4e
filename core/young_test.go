package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

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
