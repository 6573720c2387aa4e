package core_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMigration_ALockThatIsHeldAndWaitedForMovesWithItsSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)

	t.Run("held while it moves", func(t *testing.T) {
		t.Parallel()
		m := newMigratingLock(t, c, 2)
		var slot *redistest.Migration
		m.handOver(func() {
			slot = c.Migrate(t, m.record, m.to)
			m.requireHeld("migrating, at its old place")
			slot.MoveKeys(t)
			m.requireHeld("at its new place, and asked for at its old one")
		})
		m.handOver(func() {
			slot.Finish(t)
			require.Same(t, m.to, c.NodeOf(t, m.record))
			m.requireHeld("at its new place")
		})
		require.NoError(t, m.lease.Release(t.Context()))
	})

	t.Run("freed while its slot moves", func(t *testing.T) {
		t.Parallel()
		m := newMigratingLock(t, c, resp3)
		slot := c.Migrate(t, m.record, m.to)
		require.NoError(t, m.lease.Release(t.Context()), "nobody waits: nothing is left at the old place")
		before := m.lease.Fence()
		var err error
		m.lease, err = m.holder.TryAcquire(t.Context(), m.lease.Key())
		require.NoError(t, err)
		require.Greater(t, m.lease.Fence(), before)
		m.handOver(func() { m.requireHeld("granted at the new place, and asked for at the old one") })
		m.handOver(func() { slot.Finish(t) })
		m.requireHeld("at the new place")
		require.NoError(t, m.lease.Release(t.Context()))
	})
}

// migratingLock is a lock that two lockers hand to each other.
type migratingLock struct {
	t               *testing.T
	holder, waiting *core.Locker
	lease           *core.Lease
	record          string
	to              *redistest.Server
	seen            renewed
}

func newMigratingLock(t *testing.T, c *redistest.Cluster, protocol int) *migratingLock {
	t.Helper()
	seen := renewed{batches: make(chan core.Renewed, 1000)}
	locker := func() *core.Locker {
		rdb := c.Client(t, func(o *redis.ClusterOptions) { o.Protocol = protocol })
		return lockerOn(t, rdb, "p", core.WithTTL(6*time.Second), core.WithObserver(seen))
	}
	record := core.RecordName("p", t.Name())
	m := &migratingLock{t: t, holder: locker(), waiting: locker(), record: record, to: c.AnotherThan(t, record), seen: seen}
	var err error
	m.lease, err = m.holder.TryAcquire(t.Context(), t.Name())
	require.NoError(t, err)
	return m
}

// handOver has the other locker wait while meanwhile runs, and get the key by the release.
func (m *migratingLock) handOver(meanwhile func()) {
	m.t.Helper()
	next := acquiring(m.t, m.waiting, m.lease.Key())
	meanwhile()
	before := m.lease
	require.NoError(m.t, before.Release(m.t.Context()))
	m.lease = granted(m.t, next)
	require.Greater(m.t, m.lease.Fence(), before.Fence())
	m.holder, m.waiting = m.waiting, m.holder
}

// requireHeld looks when the lease was renewed twice: the first renewal may have been under way.
func (m *migratingLock) requireHeld(when string) {
	m.t.Helper()
	for len(m.seen.batches) > 0 {
		<-m.seen.batches
	}
	for range 2 {
		select {
		case <-m.seen.batches:
		case <-m.lease.Context().Done():
		}
	}
	require.NoError(m.t, m.lease.Context().Err(), when)
	_, err := m.waiting.TryAcquire(m.t.Context(), m.lease.Key())
	require.ErrorIs(m.t, err, core.ErrConflict, when)
}
