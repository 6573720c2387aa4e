package redistest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestASentinelDeploymentFailsOver(t *testing.T) {
	t.Parallel()
	start := time.Now()
	s := redistest.StartSentinel(t)
	t.Logf("started in %s", time.Since(start))
	rdb := s.Client(t)
	require.NoError(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	require.EqualValues(t, 2, rdb.Do(t.Context(), "wait", 2, 1000).Val())
	primary := s.Primary(t)
	require.Len(t, s.Replicas(t), 2)

	start = time.Now()
	primary.Kill()
	redistest.Eventually(t, func() bool { return rdb.Set(t.Context(), "k2", "v", 0).Err() == nil }, "a write")
	t.Logf("failed over in %s", time.Since(start))
	require.NotSame(t, primary, s.Primary(t))
	require.Equal(t, "v", rdb.Get(t.Context(), "k").Val())
}

func TestAClusterFailsOver(t *testing.T) {
	t.Parallel()
	start := time.Now()
	c := redistest.StartCluster(t, 3, 1)
	t.Logf("started in %s", time.Since(start))
	rdb := c.Client(t)
	require.NoError(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	primary := c.NodeOf(t, "k")
	replicas := c.ReplicasOf(t, "k")
	require.Len(t, replicas, 1)

	start = time.Now()
	primary.Kill()
	redistest.Eventually(t, func() bool { return rdb.Set(t.Context(), "k", "v2", 0).Err() == nil }, "a write")
	t.Logf("failed over in %s", time.Since(start))
	require.Same(t, replicas[0], c.NodeOf(t, "k"))
}
