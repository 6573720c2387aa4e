package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// Calls and renewals go on while Redis forgets its scripts again and again.
func TestRefusal_ScriptsFlushedUnderBatchesOfRenewalsLoseNoLease(t *testing.T) {
	t.Parallel()
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "p"}
	const ttl = 2 * time.Second
	l := newLocker(t, env, core.WithTTL(ttl))
	var leases []*core.Lease
	for _, key := range keyNames(300) { // more than go into one batch
		leases = append(leases, testbed.Take(t, l, key))
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*ttl)
	defer cancel()
	var flushing sync.WaitGroup
	flushing.Go(func() {
		for rdb := env.Client(t); ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			_ = rdb.ScriptFlush(ctx).Err()
		}
	})
	for i := range 3 {
		flushing.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(30 * time.Millisecond) {
				assert.NoError(t, l.Do(t.Context(), fmt.Sprint("call ", i), nothing))
			}
		})
	}
	flushing.Wait()
	for _, lease := range leases {
		require.NoError(t, lease.Context().Err())
		require.NoError(t, lease.Release(t.Context()))
	}
}

func TestRefusal_ALoadingRedisIsUnavailableAndWhatItLoadsIsStillHeld(t *testing.T) {
	t.Parallel()
	// While it loads Redis answers once in 2 MB of its file.
	env := &redistest.Env{Prefix: "p", Addr: redistest.Start(t, append(redistest.Debug(), "--rdbcompression", "no")...).Addr}
	rdb, l := env.Client(t), newLocker(t, env)
	for _, key := range keyNames(300) {
		require.NoError(t, rdb.Set(t.Context(), key, strings.Repeat("x", 80<<10), 0).Err())
	}
	lease := testbed.Take(t, l, "k")
	require.NoError(t, lease.Extend(t.Context(), time.Minute))
	require.NoError(t, rdb.ConfigSet(t.Context(), "key-load-delay", "5000").Err()) // µs

	for refused := false; !refused; { // on a busy machine it may be over before anybody was answered
		reloaded := make(chan error, 1)
		go func() { reloaded <- rdb.Do(context.WithoutCancel(t.Context()), "debug", "reload").Err() }()
		for len(reloaded) == 0 {
			if other, err := l.TryAcquire(t.Context(), fmt.Sprint(rand.Int())); err == nil {
				_ = other.Release(t.Context())
			} else {
				require.ErrorIs(t, err, core.ErrUnavailable)
				refused = refused || strings.Contains(err.Error(), "LOADING")
			}
		}
		require.NoError(t, <-reloaded)
	}

	require.NoError(t, lease.Extend(t.Context(), time.Minute))
	warm(t, l)
	refused(t, newLocker(t, env), "k")
	require.NoError(t, lease.Release(t.Context()))
}

func TestRefusal_APrimaryThatBecomesAReplicaGrantsNothingAndItsHoldersAreTold(t *testing.T) {
	t.Parallel()
	above := redistest.Start(t)
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "p"}
	rdb, l := env.Client(t), newLocker(t, env, core.WithTTL(3*time.Second))
	lease := testbed.Take(t, l, "k")
	host, port, err := net.SplitHostPort(above.Addr)
	require.NoError(t, err)
	require.NoError(t, rdb.Do(t.Context(), "replicaof", host, port).Err())

	_, err = l.TryAcquire(t.Context(), "other")
	require.ErrorIs(t, err, core.ErrUnavailable)
	require.ErrorContains(t, err, "READONLY")
	endsLost(t, lease)
	require.ErrorIs(t, lease.Release(t.Context()), core.ErrLeaseLost)

	require.NoError(t, rdb.Do(t.Context(), "replicaof", "no", "one").Err())
	next := acquired(t, l, "k") // a late renewal can keep it for one more TTL
	require.Greater(t, next.Fence(), lease.Fence())
	require.NoError(t, next.Release(t.Context()))
}

func TestRefusal_AFullRedisLetsAKeyGoThatACallWaitsFor(t *testing.T) {
	t.Parallel()
	env := &redistest.Env{Addr: redistest.Start(t, "--maxmemory-policy", "noeviction").Addr, Prefix: "p"}
	rdb, holder, waiting := env.Client(t), newLocker(t, env), newLocker(t, env)
	lease := testbed.Take(t, holder, "k")
	done := untilItWaits(t, waiting.Guard(untilWoken))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.NoError(t, lease.Release(t.Context()), "the holder need not know")
	if err := <-done; err != nil { // or it was in the queue, and got the key without a byte more
		require.ErrorIs(t, err, core.ErrUnavailable)
		require.ErrorContains(t, err, "OOM")
	}

	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	lease = acquired(t, holder, "k")
	require.NoError(t, lease.Release(t.Context()))
}

func TestRefusal_ARedisThatTakesNoMoreClientsIsUnavailableAndHoldersGoOn(t *testing.T) {
	t.Parallel()
	var seen recorder
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "p"}
	rdb, holder := env.Client(t), newLocker(t, env, core.WithTTL(9*time.Second), core.WithObserver(&seen))
	lease := testbed.Take(t, holder, "k")
	var clients int
	require.NoError(t, errOf(fmt.Sscanf(rdb.InfoMap(t.Context(), "clients").Val()["Clients"]["connected_clients"], "%d", &clients)))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxclients", fmt.Sprint(clients)).Err())

	require.ErrorIs(t, errOf(newLocker(t, env).TryAcquire(t.Context(), "other")), core.ErrUnavailable)
	require.NotContains(t, rdb.Info(t.Context(), "stats").Val(), "rejected_connections:0")
	seen.awaitRenewal(t) // which gets no connection of its own
	require.NoError(t, context.Cause(lease.Context()), "it has its connection")
	require.NoError(t, lease.Release(t.Context()))

	require.NoError(t, rdb.ConfigSet(t.Context(), "maxclients", "100").Err())
	warm(t, newLocker(t, env))
}
