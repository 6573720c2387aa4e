package delayqueue

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What another process has changed is seen in time by one that is never refused.
func TestManifest_IsReadAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		q, err := New(env.Client(t), "q", WithPrefix(env.Prefix), WithService("shop"))
		require.NoError(t, err)
		_, err = q.manifests.agreed(t.Context(), "test")
		require.NoError(t, err)
		first := q.manifests.known.Load()
		_, err = q.manifests.agreed(t.Context(), "test")
		require.NoError(t, err)
		require.Same(t, first, q.manifests.known.Load(), "it is fresh")

		aged := func(age time.Duration) {
			m := *q.manifests.known.Load()
			m.read = time.Now().Add(-age)
			q.manifests.known.Store(&m)
		}
		aged(manifestFresh)
		_, err = q.manifests.agreed(t.Context(), "test")
		require.NoError(t, err)
		redistest.Eventually(t, func() bool { return time.Since(q.manifests.known.Load().read) < manifestFresh }, "it is read beside the call")

		require.NoError(t, q.rdb.HSet(t.Context(), q.manifests.manifestKey(), "service", "billing").Err())
		aged(manifestTrusted)
		_, err = q.manifests.agreed(t.Context(), "test")
		require.ErrorIs(t, err, ErrOtherService, "it is read before the call")
		require.NoError(t, q.rdb.HSet(t.Context(), q.manifests.manifestKey(), "service", "shop").Err())
		_, err = q.manifests.agreed(t.Context(), "test")
		require.NoError(t, err)
	})
}

// Redis has lost all, and another process has begun the queue anew, in other partitions. Who asks a process that
// still knows the lost manifest is not told that there is no such message, and an operator finds it.
func TestManifest_ThatRedisHasLostHidesNoMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		old, err := New(rdb, "q", WithPrefix(env.Prefix))
		require.NoError(t, err)
		_, err = old.manifests.agreed(t.Context(), "test")
		require.NoError(t, err)
		operator, err := Open(t.Context(), rdb, "q", WithPrefix(env.Prefix))
		require.NoError(t, err)
		lost := old.manifests.known.Load()
		require.NoError(t, rdb.Del(t.Context(), old.manifests.manifestKey()).Err())

		anew, err := New(rdb, "q", WithPrefix(env.Prefix), WithPartitions(7))
		require.NoError(t, err)
		for i := range 8 {
			receipt, err := anew.Enqueue(t.Context(), Job{Key: fmt.Sprint(i)})
			require.NoError(t, err)
			m := *lost
			m.read = time.Now().Add(-2 * manifestKnows)
			old.manifests.known.Store(&m)
			_, err = old.Status(t.Context(), receipt.ID)
			require.ErrorIs(t, err, ErrOtherLayout)
			operator.manifests.known.Store(&m)
			s, err := operator.Status(t.Context(), receipt.ID)
			require.NoError(t, err)
			require.Equal(t, StateQueued, s.State)
		}
	})
}
