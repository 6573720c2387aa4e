package delayqueue

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Keys that have no note of it live no less long than what they hold, which is there since before.
func TestLifetime_ThatWasLostIsNotShortened(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, others := range []int{1, 5} { // so many are large
			own := *env
			own.Prefix = fmt.Sprint(env.Prefix, others)
			rdb := own.Client(t)
			rdb.AddHook(smaller(t, sources()))
			q, err := New(rdb, "q", WithPrefix(own.Prefix))
			require.NoError(t, err)
			enqueue := func(id string, age time.Duration) {
				_, err := q.Enqueue(t.Context(), Job{ID: id, Key: "key " + id, MaxAge: age})
				require.NoError(t, err)
			}
			p := q.manifests.partitions[0]
			enqueue("longest", 30*24*time.Hour)
			for i := range others {
				enqueue(fmt.Sprint(i), time.Hour)
			}
			require.NoError(t, rdb.HDel(t.Context(), p.Keys[store.KeyCounts], "till").Err())
			for i := range others {
				require.NoError(t, q.Cancel(t.Context(), fmt.Sprint(i)))
			}
			for _, c := range claimTest(t, q, "token.1", 5) {
				_, err := settleOnce(c, outcome{end: store.Failed, delay: time.Hour})
				require.NoError(t, err)
			}
			enqueue("last", time.Hour)
			for _, key := range p.Keys[:store.KeyResults] {
				if left := rdb.PTTL(t.Context(), key).Val(); left != -2 {
					require.Greater(t, left, 30*24*time.Hour-time.Minute, "%s, beside %d", key, others)
				}
			}
			require.Positive(t, rdb.PTTL(t.Context(), p.Keys[store.KeyAttempts]).Val())
		}
	})
}
