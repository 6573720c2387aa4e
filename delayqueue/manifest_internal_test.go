package delayqueue

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What another process has changed is seen in time by one that is never refused.
func TestManifest_IsReadAgain(t *testing.T) {
	eachQueue(t, func(t *testing.T, q *Queue) {
		agreed := func() error {
			_, err := q.manifests.agreed(t.Context(), "test")
			return err
		}
		require.NoError(t, agreed())
		first := q.manifests.known.Load()
		require.NoError(t, agreed())
		require.Same(t, first, q.manifests.known.Load(), "it is fresh")

		aged := func(age time.Duration) {
			m := *q.manifests.known.Load()
			m.read = time.Now().Add(-age)
			q.manifests.known.Store(&m)
		}
		aged(manifestFresh)
		require.NoError(t, agreed())
		redistest.Eventually(t, func() bool { return time.Since(q.manifests.known.Load().read) < manifestFresh }, "it is read beside the call")

		require.NoError(t, q.rdb.HSet(t.Context(), q.manifests.manifestKey(), "service", "billing").Err())
		aged(manifestTrusted)
		require.ErrorIs(t, agreed(), ErrOtherService, "it is read before the call")
		require.NoError(t, q.rdb.HSet(t.Context(), q.manifests.manifestKey(), "service", "shop").Err())
		require.NoError(t, agreed())
	}, WithService("shop"))
}

// Redis has lost all, and another process has begun the queue anew, in other partitions. Who asks a process that
// still knows the lost manifest is not told that there is no such message, and an operator finds it.
func TestManifest_ThatRedisHasLostHidesNoMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb, old, anew := env.Client(t), testQueue(t, env), testQueue(t, env, WithPartitions(7))
		statsTest(t, old)
		operator := of(Open(t.Context(), rdb, "q", WithPrefix(env.Prefix)))(t)
		lost := old.manifests.known.Load()
		require.NoError(t, rdb.Del(t.Context(), old.manifests.manifestKey()).Err())

		for i := range 8 {
			receipt := enqueueJob(t, anew, Job{Key: fmt.Sprint(i)})
			m := *lost
			m.read = time.Now().Add(-2 * manifestKnows)
			old.manifests.known.Store(&m)
			require.ErrorIs(t, errOf(old.Status(t.Context(), receipt.ID)), ErrOtherLayout)
			operator.manifests.known.Store(&m)
			require.Equal(t, StateQueued, statusTest(t, operator, receipt.ID).State)
		}
	})
}

func TestQueue_APartitionTakesFewerMessagesOnACluster(t *testing.T) {
	for depth, rdb := range map[int]redis.UniversalClient{
		defaultDepth: redis.NewClient(&redis.Options{}), defaultClusterDepth: redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
	} {
		q := of(New(rdb, "q"))(t)
		require.Equal(t, depth, q.maxDepth)
		require.NoError(t, rdb.Close())
	}
}
