package core_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// refusingWrites is what happens while Redis refuses writes: nothing that it publishes is a grant.
func refusingWrites(t *testing.T, rdb *redis.Client, heard *redis.PubSub, happens func()) {
	t.Helper()
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	happens()
	require.NoError(t, rdb.Publish(t.Context(), "p:wake:other", "the end").Err())
	for m := range heard.Channel() {
		if m.Payload == "the end" {
			break
		}
		require.NotContains(t, m.Payload, "grant", "the record names no such holder")
	}
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
}

// A grant that was published stays published when its script fails: waiters would work on a key that they do not hold.
func TestRefusal_ARedisThatRefusesWritesGrantsNothingByMessage(t *testing.T) {
	t.Parallel()
	const each = 20
	for name, options := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "p"}
			holder, other, rdb := newLocker(t, env), newLocker(t, env), env.Client(t)
			lease := acquired(t, holder, "k")
			waiters := acquiringMany(t, env, other, each, options...)
			heard := rdb.PSubscribe(t.Context(), "p:wake:*")
			defer heard.Close()
			require.NoError(t, errOf(heard.Receive(t.Context())))
			refusingWrites(t, rdb, heard, func() { require.ErrorIs(t, lease.Release(t.Context()), core.ErrUnavailable) })
			served := merged(waiters)
			for range each {
				require.NoError(t, granted(t, served).Release(t.Context()))
			}
		})
	}
}

// The first in the queue is dead: it is passed over before anything is written.
func TestRefusal_ARedisThatRefusesWritesGrantsNothingBehindADeadWaiter(t *testing.T) {
	t.Parallel()
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "p"}
	l, rdb := newLocker(t, env), env.Client(t)
	const dead, alive = "1:gone.000000000000000000000001@1,- ", "1:other.000000000000000000000002@9999999999999,- "
	require.NoError(t, rdb.HSet(t.Context(), "p:lock{}:k", "fence", 1, "held", 0, "last", "", "next", 0, "queue", dead+alive, "waiting", 2).Err())
	require.NoError(t, rdb.PExpire(t.Context(), "p:lock{}:k", time.Minute).Err())
	heard := rdb.Subscribe(t.Context(), "p:wake:other")
	defer heard.Close()
	require.NoError(t, errOf(heard.Receive(t.Context())))
	refusingWrites(t, rdb, heard, func() { require.ErrorIs(t, errOf(l.TryAcquire(t.Context(), "k")), core.ErrUnavailable) })
	refused(t, l, "k")
	require.Contains(t, (<-heard.Channel()).Payload, "grant 1:other.")
}
