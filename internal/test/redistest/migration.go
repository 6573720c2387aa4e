package redistest

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Migration is a slot on its way from one primary to another.
type Migration struct {
	cluster  *Cluster
	slot     int64
	from, to *Server
}

// Migrate begins to move the slot of key to another primary: from here on a name
// that the old one does not have is looked for at the new one (ASK).
func (c *Cluster) Migrate(t testing.TB, key string, to *Server) *Migration {
	t.Helper()
	from := c.NodeOf(t, key)
	slot, err := from.client(t).ClusterKeySlot(t.Context(), key).Result()
	require.NoError(t, err)
	m := &Migration{cluster: c, slot: slot, from: from, to: to}
	require.NoError(t, to.client(t).Do(t.Context(), "cluster", "setslot", slot, "importing", nodeID(t, from)).Err())
	require.NoError(t, from.client(t).Do(t.Context(), "cluster", "setslot", slot, "migrating", nodeID(t, to)).Err())
	return m
}

// MoveKeys moves what the slot holds.
func (m *Migration) MoveKeys(t testing.TB) {
	t.Helper()
	for moved := 1; moved > 0; {
		moved = m.MoveSome(t, 1000)
	}
}

// MoveSome moves up to n keys of the slot, and returns how many it moved.
func (m *Migration) MoveSome(t testing.TB, n int) int {
	t.Helper()
	rdb := m.from.client(t)
	keys, err := rdb.ClusterGetKeysInSlot(t.Context(), int(m.slot), n).Result()
	require.NoError(t, err)
	for _, key := range keys {
		require.NoError(t, rdb.Migrate(t.Context(), loopback, m.to.port(), key, 0, time.Minute).Err())
	}
	return len(keys)
}

// MoveTogether moves up to n keys of the slot in one step, as redis-cli does with ten, and returns how many it moved.
func (m *Migration) MoveTogether(t testing.TB, n int) int {
	t.Helper()
	rdb := m.from.client(t)
	keys, err := rdb.ClusterGetKeysInSlot(t.Context(), int(m.slot), n).Result()
	require.NoError(t, err)
	args := []any{"migrate", loopback, m.to.port(), "", 0, time.Minute.Milliseconds(), "keys"}
	for _, key := range keys {
		args = append(args, key)
	}
	if len(keys) > 0 {
		require.NoError(t, rdb.Do(t.Context(), args...).Err())
	}
	return len(keys)
}

// Keys is how many keys of the slot both primaries hold together.
func (m *Migration) Keys(t testing.TB) (n int64) {
	t.Helper()
	for _, node := range []*Server{m.from, m.to} {
		keys, err := node.client(t).ClusterCountKeysInSlot(t.Context(), int(m.slot)).Result()
		require.NoError(t, err)
		n += keys
	}
	return n
}

// Finish gives the slot to the new primary (MOVED), and returns when all nodes know.
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	owner := nodeID(t, m.to)
	for _, node := range []*Server{m.to, m.from} {
		require.NoError(t, node.client(t).Do(t.Context(), "cluster", "setslot", m.slot, "node", owner).Err())
	}
	for _, node := range m.cluster.nodes {
		rdb := node.client(t)
		Eventually(t, func() bool {
			ranges, err := slotRanges(rdb)
			return err == nil && slices.ContainsFunc(ranges, func(r redis.ClusterSlot) bool {
				return int64(r.Start) <= m.slot && m.slot <= int64(r.End) && r.Nodes[0].Addr == m.to.Addr
			})
		}, "nodes that know who has the slot")
	}
}

// Empty gives all slots of a primary, which must hold no keys, to another one: it serves none from then on.
func (c *Cluster) Empty(t testing.TB, from, to *Server) {
	t.Helper()
	rdb := to.client(t)
	ranges, err := slotRanges(rdb)
	require.NoError(t, err)
	require.NoError(t, rdb.Do(t.Context(), "cluster", "bumpepoch").Err()) // the others take its word
	pipe, owner := rdb.Pipeline(), nodeID(t, to)
	for _, r := range ranges {
		if r.Nodes[0].Addr == from.Addr {
			for slot := r.Start; slot <= r.End; slot++ {
				pipe.Do(t.Context(), "cluster", "setslot", slot, "node", owner)
			}
		}
	}
	_, err = pipe.Exec(t.Context())
	require.NoError(t, err)
	for _, node := range c.nodes {
		rdb := node.client(t)
		Eventually(t, func() bool {
			ranges, err := slotRanges(rdb)
			return err == nil && strings.Contains(rdb.ClusterInfo(t.Context()).Val(), "cluster_state:ok") &&
				!slices.ContainsFunc(ranges, func(r redis.ClusterSlot) bool { return r.Nodes[0].Addr == from.Addr })
		}, "a cluster that serves without it")
	}
}

// Reshard has redis-cli move the first slot of one primary to another, as operators do, with further options.
func (c *Cluster) Reshard(t testing.TB, from, to *Server, options ...string) {
	t.Helper()
	path, err := exec.LookPath("redis-cli")
	if err != nil && os.Getenv(RequireVar) == "1" {
		t.Fatalf("redistest: no redis-cli on PATH, and %s=1 asks for it", RequireVar)
	} else if err != nil {
		t.Skip("redistest: no redis-cli on PATH")
	}
	// It refuses to begin until all nodes have heard who owns what.
	Eventually(t, func() bool { return exec.Command(path, "--cluster", "check", from.Addr).Run() == nil }, "nodes that agree")
	out, err := exec.Command(path, append([]string{
		"--cluster", "reshard", from.Addr, "--cluster-from", nodeID(t, from), "--cluster-to", nodeID(t, to),
		"--cluster-slots", "1", "--cluster-yes",
	}, options...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func nodeID(t testing.TB, node *Server) string {
	t.Helper()
	id, err := node.client(t).Do(t.Context(), "cluster", "myid").Text()
	require.NoError(t, err)
	return id
}
