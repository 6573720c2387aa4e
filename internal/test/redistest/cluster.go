package redistest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Cluster is a Redis Cluster. Its methods are for one goroutine.
type Cluster struct {
	nodes []*Server
}

// clusterSlots is how many slots there are.
const clusterSlots = 16384

// StartCluster starts a Redis Cluster of primaries that share the slots equally, with as many replicas each, and
// returns when it serves and every replica has a copy. Its processes end with the test.
func StartCluster(t testing.TB, primaries, replicasEach int) *Cluster {
	t.Helper()
	RequireServer(t)
	c := &Cluster{nodes: planAll(t, primaries*(1+replicasEach), append([]string{
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000",
		// Nodes name a replica to clients only after something was replicated to it.
		"--repl-ping-replica-period", "1",
	}, promptCopy...)...)}
	startAll(t, c.nodes)

	ids := make([]string, len(c.nodes))
	for i, node := range c.nodes {
		rdb := node.client(t)
		ids[i] = nodeID(t, node)
		// Nodes that have an order from the start need not settle one.
		require.NoError(t, rdb.Do(t.Context(), "cluster", "set-config-epoch", i+1).Err())
		if i < primaries {
			var slots []int
			for slot := i * clusterSlots / primaries; slot < (i+1)*clusterSlots/primaries; slot++ {
				slots = append(slots, slot)
			}
			require.NoError(t, rdb.ClusterAddSlots(t.Context(), slots...).Err())
		}
		c.introduce(t, rdb, i)
	}
	for i, node := range c.nodes {
		rdb := node.client(t)
		met := time.Now()
		Eventually(t, func() bool {
			if time.Since(met) > 3*time.Second { // one that did not answer within a second was forgotten
				met = time.Now()
				c.introduce(t, rdb, len(c.nodes))
			}
			return knows(rdb, ids)
		}, "nodes that know each other")
		if i >= primaries {
			require.NoError(t, rdb.ClusterReplicate(t.Context(), ids[i%primaries]).Err())
		}
	}
	for i, node := range c.nodes {
		rdb := node.client(t)
		Eventually(t, func() bool {
			return serves(rdb, primaries, replicasEach) && (i >= primaries || copies(rdb) == replicasEach)
		}, "a cluster that serves")
	}
	return c
}

// Client returns a client that is closed with the test. It looks at the topology
// every second: go-redis's default of ten keeps it dialling a dead primary.
func (c *Cluster) Client(t testing.TB, options ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	t.Helper()
	opt := &redis.ClusterOptions{Addrs: addrs(c.nodes), ClusterStateReloadInterval: time.Second}
	for _, set := range options {
		set(opt)
	}
	rdb := redis.NewClusterClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// NodeOf is the primary that owns key, as the first node to answer sees it.
func (c *Cluster) NodeOf(t testing.TB, key string) *Server {
	t.Helper()
	return c.shardOf(t, key)[0]
}

// ReplicasOf are the replicas of the primary that owns key.
func (c *Cluster) ReplicasOf(t testing.TB, key string) []*Server {
	t.Helper()
	return c.shardOf(t, key)[1:]
}

// AnotherThan is a primary that does not own key.
func (c *Cluster) AnotherThan(t testing.TB, key string) *Server {
	t.Helper()
	owner := c.NodeOf(t, key)
	ranges, err := slotRanges(owner.client(t))
	require.NoError(t, err)
	for _, r := range ranges {
		if r.Nodes[0].Addr != owner.Addr {
			return byAddr(t, c.nodes, r.Nodes[0].Addr)
		}
	}
	require.Fail(t, "the cluster has one primary")
	return nil
}

func (c *Cluster) shardOf(t testing.TB, key string) []*Server {
	t.Helper()
	for _, node := range c.nodes {
		rdb := node.client(t)
		slot, err := rdb.ClusterKeySlot(t.Context(), key).Result()
		if err != nil {
			continue
		}
		ranges, err := slotRanges(rdb)
		require.NoError(t, err)
		for _, r := range ranges {
			if r.Start <= int(slot) && int(slot) <= r.End {
				shard := make([]*Server, len(r.Nodes))
				for i, n := range r.Nodes {
					shard[i] = byAddr(t, c.nodes, n.Addr)
				}
				return shard
			}
		}
		require.Fail(t, "nobody owns the slot of "+key)
	}
	require.Fail(t, "no node answers")
	return nil
}

// introduce tells a node of the first n. Gossip would, but takes its time.
func (c *Cluster) introduce(t testing.TB, rdb *redis.Client, n int) {
	t.Helper()
	for _, other := range c.nodes[:n] {
		require.NoError(t, rdb.ClusterMeet(t.Context(), loopback, other.port()).Err())
	}
}

// knows reports whether a node has met all of ids.
func knows(rdb *redis.Client, ids []string) bool {
	nodes, err := rdb.ClusterNodes(context.Background()).Result()
	return err == nil && !strings.Contains(nodes, "handshake") &&
		!slices.ContainsFunc(ids, func(id string) bool { return !strings.Contains(nodes, id) })
}

// serves reports whether a node takes commands, and sees every primary with its replicas.
func serves(rdb *redis.Client, primaries, replicasEach int) bool {
	info, err := rdb.ClusterInfo(context.Background()).Result()
	if err != nil || !strings.Contains(info, "cluster_state:ok") {
		return false
	}
	ranges, err := slotRanges(rdb)
	return err == nil && len(ranges) == primaries && !slices.ContainsFunc(ranges, func(r redis.ClusterSlot) bool {
		return len(r.Nodes) != 1+replicasEach
	})
}

// slotRanges asks as Redis 6 can be asked too.
func slotRanges(rdb *redis.Client) ([]redis.ClusterSlot, error) {
	cmd := redis.NewClusterSlotsCmd(context.Background(), "cluster", "slots")
	_ = rdb.Process(context.Background(), cmd)
	return cmd.Result()
}
