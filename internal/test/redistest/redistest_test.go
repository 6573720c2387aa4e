package redistest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestASentinelDeploymentKnowsItsPrimary(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	require.NoError(t, s.Client(t).Set(t.Context(), "k", "v", 0).Err())
	require.Equal(t, "v", redistest.Client(t, &redis.Options{Addr: s.Primary(t).Addr}).Get(t.Context(), "k").Val())
	require.Len(t, s.Replicas(t), 2)
	require.NotContains(t, s.Replicas(t), s.Primary(t))
}

func TestAClusterKnowsWhereItsKeysAre(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	rdb := c.Client(t)
	var primaries []*redistest.Server
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		require.NoError(t, rdb.Set(t.Context(), key, "v", 0).Err())
		node := c.NodeOf(t, key)
		require.Equal(t, "v", redistest.Client(t, &redis.Options{Addr: node.Addr}).Get(t.Context(), key).Val())
		require.NotSame(t, node, c.AnotherThan(t, key))
		require.Len(t, c.ReplicasOf(t, key), 1)
		if !slices.Contains(primaries, node) {
			primaries = append(primaries, node)
		}
	}
	require.Len(t, primaries, 3)
}

// Set back, a clock runs on from there; set forward, it ends what was to end meanwhile. Scripts read the same one.
func TestAClockThatIsSetRunsOn(t *testing.T) {
	t.Parallel()
	s := redistest.StartClocked(t)
	rdb := redistest.Client(t, &redis.Options{Addr: s.Addr})
	now := func() (ahead time.Duration) {
		micros, err := rdb.Eval(t.Context(), "local t = redis.call('TIME') return t[1] * 1000000 + t[2]", nil).Int64()
		require.NoError(t, err)
		return time.Until(time.UnixMicro(micros))
	}
	require.InDelta(t, 0, now().Hours(), 0.1)
	require.NoError(t, rdb.Set(t.Context(), "k", "v", time.Hour).Err())
	s.SetClock(t, -3*time.Hour)
	require.InDelta(t, -3, now().Hours(), 0.1)
	before := rdb.Time(t.Context()).Val()
	redistest.Eventually(t, func() bool { return rdb.Time(t.Context()).Val().After(before) }, "the clock runs")
	s.Kill()
	s.Restart(t)
	require.InDelta(t, -3, now().Hours(), 0.1)
	require.NoError(t, rdb.Set(t.Context(), "k", "v", time.Hour).Err())
	s.SetClock(t, 0)
	require.Zero(t, rdb.Exists(t.Context(), "k").Val())
}
