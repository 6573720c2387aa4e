package core_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// What docs/operations.md says of leases in an outage: one that was not renewed yet ends within
// its first lease whatever its TTL is, one that was lasts for about two thirds of the TTL at least.
func TestLease_AnOutageEndsAYoungLeaseWithinItsFirstLease(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const ttl = 9 * time.Second
	l := lockerOn(t, redistest.Client(t, &redis.Options{Addr: server.Addr}), "p", core.WithTTL(ttl), core.WithFirstLease(3*time.Second))
	old := testbed.Take(t, l, "old")
	time.Sleep(1500 * time.Millisecond) // it is renewed after a third of 3 s
	asked := time.Now()
	young := testbed.Take(t, l, "young")
	server.Pause()
	t.Cleanup(server.Resume)
	away := time.Now()

	<-young.Context().Done()
	require.ErrorIs(t, context.Cause(young.Context()), core.ErrLeaseLost)
	ended := time.Since(asked)
	require.Greater(t, ended, 2500*time.Millisecond)
	require.Less(t, ended, 4*time.Second)
	require.NoError(t, old.Context().Err())
	<-old.Context().Done()
	require.GreaterOrEqual(t, time.Since(away), ttl*3/5)
	t.Logf("the young lease ended %s after its grant, the old one %s after Redis went away", ended.Round(10*time.Millisecond), time.Since(away).Round(10*time.Millisecond))
}
