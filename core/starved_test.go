package core_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// renewed tells of each batch of renewals that Redis answered.
type renewed struct {
	core.NopObserver
	batches chan core.Renewed
}

func (r renewed) OnRenewed(_ context.Context, e core.Renewed) {
	if e.Err == nil {
		select {
		case r.batches <- e:
		default:
		}
	}
}

// Renewals have connections of their own: a service that uses up the pool keeps its keys.
func TestRenewal_RenewalsDoNotWaitForTheUsersPool(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := redistest.Client(t, redistest.OnePool(&redis.Options{Addr: env.Addr, PoolSize: 1, MaxActiveConns: 1, PoolTimeout: 5 * time.Second}))
		seen := renewed{batches: make(chan core.Renewed, 1)}
		l := lockerOn(t, rdb, env.Prefix, core.WithTTL(6*time.Second), core.WithObserver(seen))
		lease := testbed.Take(t, l, "k")

		all := rdb.Conn()
		require.NoError(t, all.Ping(t.Context()).Err())
		require.EqualValues(t, 0, rdb.PoolStats().IdleConns, "none is left")
		for range 4 { // longer than a TTL
			select {
			case <-seen.batches:
			case <-lease.Context().Done():
				require.NoError(t, context.Cause(lease.Context()))
			}
		}
		require.NoError(t, lease.Context().Err())
		require.NoError(t, all.Close())
		require.NoError(t, lease.Release(t.Context()))
	})
}

// A node that hangs loses its own keys, and delays no renewal of the others.
func TestRenewal_ANodeThatHangsCostsTheOthersNoLease(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	c := redistest.StartCluster(t, 3, 0)
	rdb := c.Client(t)
	require.NoError(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return node.ConfigSet(ctx, "cluster-require-full-coverage", "no").Err() // or all refuse when one is gone
	}))
	seen := renewed{batches: make(chan core.Renewed, 1000)}
	l := lockerOn(t, rdb, "p", core.WithTTL(ttl), core.WithObserver(seen))
	hangs := c.NodeOf(t, core.RecordName("p", "0"))
	var sick, well []*core.Lease
	for i := range 60 {
		key := fmt.Sprint(i)
		lease := testbed.Take(t, l, key)
		if c.NodeOf(t, core.RecordName("p", key)).Addr == hangs.Addr {
			sick = append(sick, lease)
		} else {
			well = append(well, lease)
		}
	}
	require.NotEmpty(t, well)
	hangs.Pause()
	defer hangs.Resume()
	for _, lease := range sick {
		endsLost(t, lease)
	}
	for len(seen.batches) > 0 {
		<-seen.batches
	}
	for renewals := 0; renewals < 4*len(well); { // go-redis's time-outs would have added up
		select {
		case batch := <-seen.batches:
			renewals += batch.Leases
		case <-well[0].Context().Done():
			require.NoError(t, context.Cause(well[0].Context()))
		}
	}
	for _, lease := range well {
		require.NoError(t, context.Cause(lease.Context()), lease.Key())
	}
}
