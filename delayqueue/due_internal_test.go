package delayqueue

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Delayed messages of some keys that are due keep no message of no key, or of another, from the workers; few claims put them into their
// keys' order. Each key's first alone is claimed, and the others run in its turn.
func TestDue_DelayedMessagesOfSomeKeysHoldUpNoOther(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const keys, n, slots = 4, 2048, 4
		q := testQueue(t, env)
		p := q.manifests.partitions[0]
		for at := 0; at < n; at += store.BatchItems {
			var batch []Job
			for i := at; i < at+store.BatchItems; i++ {
				batch = append(batch, Job{ID: fmt.Sprintf("m%05d", i), Key: fmt.Sprint("k", i%keys), Delay: time.Millisecond, MaxAge: time.Hour})
			}
			_, err := storeTogether(p, batch...)
			require.NoError(t, err)
		}
		redistest.Eventually(t, func() bool {
			s, err := q.Stats(t.Context())
			return err == nil && s.Due == n
		}, "not all are due")
		enqueueTest(t, q, "of-none", "") // after the others also within one millisecond
		enqueueTest(t, q, "of-another", "another")
		claims := 0
		claim := func() (ids []string) {
			b, err := p.Claim(t.Context(), fmt.Sprint("token.", claims+1), time.Hour, slots)
			require.NoError(t, err)
			claims++
			for _, m := range b.Messages {
				ids = append(ids, m.ID)
			}
			return ids
		}
		require.Equal(t, []string{"m00000", "m00001", "m00002", "m00003"}, claim())
		require.ElementsMatch(t, []string{"of-none", "of-another"}, claim())
		for due := int64(1); due > 0; {
			require.Empty(t, claim())
			s, err := q.Stats(t.Context())
			require.NoError(t, err)
			due = s.Due
		}
		require.LessOrEqual(t, claims, 3+n/256, "claims until all have joined")

		places, err := env.Client(t).ZRange(t.Context(), p.Base+":f", 0, -1).Result()
		require.NoError(t, err)
		require.Len(t, places, n+1)
		for i, place := range places[1:] { // by key, and in a key by when they were enqueued
			require.Regexp(t, fmt.Sprintf(`^k%d\n\d{16}m%05d$`, i/(n/keys), i%(n/keys)*keys+i/(n/keys)), place)
		}
	})
}

// A claim asks Redis for what it takes, however many keys are due.
func TestDue_AClaimLooksNoFurtherThanItTakes(t *testing.T) {
	s := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: s.Addr})
	times := &scriptTimes{rdb: redistest.Client(t, &redis.Options{Addr: s.Addr}), longest: map[string]cost{}}
	rdb.AddHook(times)
	q := newLongQueue(t, rdb)
	calls := func(backlog int) int {
		q.fill(backlog, 1, func(int) string { return q.name("k") })
		q.claim(1) // loads the script, once
		times.longest = map[string]cost{}
		require.Len(t, q.claim(1), 1)
		return times.longest["claim"].calls
	}
	few := calls(2)
	require.Positive(t, few)
	require.LessOrEqual(t, calls(1000), few+10)
}
