package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A grant that was published stays published when its script fails: waiters would work on a key that they do not hold.
func TestRefusal_ARedisThatRefusesWritesGrantsNothingByMessage(t *testing.T) {
	t.Parallel()
	const each = 20
	for name, options := range map[string][]core.AcquireOption{"exclusive": nil, "shared": {core.Shared()}, "counted": {core.Counted(2)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			env := &redistest.Env{Addr: server.Addr, Prefix: "p"}
			holder, other, rdb := newLocker(t, env), newLocker(t, env), env.Client(t)
			lease, err := holder.Acquire(t.Context(), "k")
			require.NoError(t, err)
			waiters := acquiringMany(t, env, other, each, options...)
			heard := rdb.PSubscribe(t.Context(), "p:wake:*")
			defer heard.Close()
			_, err = heard.Receive(t.Context())
			require.NoError(t, err)

			require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
			require.ErrorIs(t, lease.Release(t.Context()), core.ErrUnavailable)
			select {
			case m := <-heard.Channel():
				require.NotContains(t, m.Payload, "grant", "the record names no such holder")
			case <-time.After(100 * time.Millisecond):
			}
			require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
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
	server := redistest.Start(t)
	env := &redistest.Env{Addr: server.Addr, Prefix: "p"}
	l, rdb := newLocker(t, env), env.Client(t)
	const dead, alive = "1:gone.000000000000000000000001@1,- ", "1:other.000000000000000000000002@9999999999999,- "
	require.NoError(t, rdb.HSet(t.Context(), "p:lock{}:k", "fence", 1, "held", 0, "last", "", "next", 0, "queue", dead+alive, "waiting", 2).Err())
	require.NoError(t, rdb.PExpire(t.Context(), "p:lock{}:k", time.Minute).Err())
	heard := rdb.Subscribe(t.Context(), "p:wake:other")
	defer heard.Close()
	_, err := heard.Receive(t.Context())
	require.NoError(t, err)

	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrUnavailable)
	select {
	case m := <-heard.Channel():
		require.NotContains(t, m.Payload, "grant", "the record names no such holder")
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	_, err = l.TryAcquire(t.Context(), "k")
	require.ErrorIs(t, err, core.ErrConflict)
	require.Contains(t, (<-heard.Channel()).Payload, "grant 1:other.")
}
