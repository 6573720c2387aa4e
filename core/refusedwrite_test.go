package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A grant that was published stays published when its script fails: waiters would work on a key
// that they do not hold.
func TestARedisThatRefusesWritesGrantsNothingByMessage(t *testing.T) {
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
