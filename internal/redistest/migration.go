package redistest

import (
	"testing"
	"time"

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
	rdb := m.from.client(t)
	keys, err := rdb.ClusterGetKeysInSlot(t.Context(), int(m.slot), 1000).Result()
	require.NoError(t, err)
	for _, key := range keys {
		require.NoError(t, rdb.Migrate(t.Context(), loopback, m.to.port(), key, 0, time.Second).Err())
	}
}

// Finish gives the slot to the new primary (MOVED).
func (m *Migration) Finish(t testing.TB) {
	t.Helper()
	owner := nodeID(t, m.to)
	for _, node := range []*Server{m.to, m.from} {
		require.NoError(t, node.client(t).Do(t.Context(), "cluster", "setslot", m.slot, "node", owner).Err())
	}
}

func nodeID(t testing.TB, node *Server) string {
	t.Helper()
	id, err := node.client(t).Do(t.Context(), "cluster", "myid").Text()
	require.NoError(t, err)
	return id
}
