//go:build soak

package core_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// acquireVariants are the ways of taking a key under which a primary is killed.
// An option that changes what a failover can lose is added here, and nowhere else.
var acquireVariants = []acquireVariant{
	{name: "as it comes"},
	{name: "on a replica", opts: []core.AcquireOption{core.WaitReplicas(1, 500*time.Millisecond)}, heard: true},
}

type acquireVariant struct {
	name string
	opts []core.AcquireOption
	// A grant was heard of by a replica, or there is none.
	heard bool
}

func TestFailover_APrimaryKilledUnderLoadLosesNoWrite(t *testing.T) {
	t.Parallel()
	for _, variant := range acquireVariants {
		t.Run(variant.name, func(t *testing.T) {
			t.Parallel()
			eachDeployment(t, func(t *testing.T, d deployment) { newLoad(t, d, variant).run(t, end{}) })
		})
		t.Run(variant.name+", replicas behind", func(t *testing.T) {
			t.Parallel()
			eachDeployment(t, func(t *testing.T, d deployment) {
				newLoad(t, d, variant).run(t, end{behind: 100 * time.Millisecond})
			})
		})
	}
}

func TestFailover_APrimaryThatComesBackUnderLoadLosesNoWrite(t *testing.T) {
	t.Parallel()
	for _, variant := range acquireVariants {
		t.Run(variant.name, func(t *testing.T) {
			t.Parallel()
			eachDeployment(t, func(t *testing.T, d deployment) { newLoad(t, d, variant).run(t, end{back: true}) })
		})
	}
}

func TestFailover_AGrantThatNoReplicaHeardOfIsRefused(t *testing.T) {
	t.Parallel()
	eachDeployment(t, func(t *testing.T, d deployment) {
		ctx, record := t.Context(), core.RecordName("p", "k")
		var seen grantCounter
		l := lockerOn(t, d.client(t, resp3), "p", core.WithObserver(&seen))
		other := lockerOn(t, d.client(t, resp3), "p")
		warm(t, l)
		warm(t, other)
		seen.grants.Store(0)
		heard := core.WaitReplicas(1, 200*time.Millisecond)
		primary := d.primary(t, record)
		reconnect := cutReplication(t, primary, d.replicas(t, record))
		for range 2 {
			_, err := l.TryAcquire(ctx, "k", heard)
			requireNotReplicated(t, err)
		}
		requireNotReplicated(t, l.Guard(untilWoken, heard).Do(ctx, core.Call{Key: "k"}, func(context.Context) error {
			t.Error("it runs without the key")
			return nil
		}))
		lease, err := other.TryAcquire(ctx, "k")
		require.NoError(t, err, "nobody has it")
		require.NoError(t, lease.Release(ctx))
		primary.Kill()
		reconnect()
		lease, err = acquireInTheEnd(ctx, other, "k")
		require.NoError(t, err)
		require.NoError(t, lease.Release(ctx))
		require.Zero(t, seen.grants.Load())
		require.Zero(t, seen.lost.Load(), "nobody had it to lose")
	})
}

// grantCounter counts leases as an observer sees them.
type grantCounter struct {
	core.NopObserver
	grants, lost atomic.Int64
}

func (o *grantCounter) OnOutcome(_ context.Context, e core.Outcome) { o.grants.Add(int64(e.Leases)) }

func (o *grantCounter) OnLost(context.Context, core.Lost) { o.lost.Add(1) }

// cutReplication keeps what the primary does from here on from its replicas. They
// run again, and find the link gone, after the returned func.
func cutReplication(t *testing.T, primary *redistest.Server, replicas []*redistest.Server) (resume func()) {
	t.Helper()
	for _, r := range replicas {
		r.Pause() // or they would be back at once
	}
	rdb := redistest.Client(t, &redis.Options{Addr: primary.Addr})
	cut, err := rdb.ClientKillByFilter(t.Context(), "TYPE", "replica").Result()
	require.NoError(t, err)
	require.EqualValues(t, len(replicas), cut)
	return func() {
		for _, r := range replicas {
			r.Resume()
		}
	}
}
