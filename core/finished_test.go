package core_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// A replica that becomes the primary may know places in a key's FIFO that were given up, or had their turn. Their
// lockers live, so that each is granted the key, and would keep it from the call that waits for the second of a claim.
func TestWaiting_BehindPlacesThatAReplicaDidNotSeeEnd(t *testing.T) {
	t.Parallel()
	const lockers = 10
	for name, leave := range map[string]bool{"they left": true, "they had the key": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
				rdb := env.Client(t)
				a, last := newLocker(t, env), newLocker(t, env)
				held := acquire(t, a, "k")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var calls []<-chan got
				for range lockers {
					calls = append(calls, acquiringCtx(ctx, newLocker(t, env), "k"))
				}
				grants := merged(calls)
				queued(t, env, "k", lockers)
				record := core.RecordName(env.Prefix, "k")
				redistest.Eventually(t, func() bool {
					return !strings.Contains(rdb.HGet(t.Context(), record, "queue").Val(), "~")
				}, "all are told by message")
				before, err := rdb.HMGet(t.Context(), record, "queue", "waiting").Result()
				require.NoError(t, err)
				if leave {
					cancel()
					queued(t, env, "k", 0)
				} else {
					require.NoError(t, held.Release(t.Context()))
					for range lockers {
						require.NoError(t, granted(t, grants).Release(t.Context()))
					}
					held = acquire(t, a, "k")
				}
				inflate(t, rdb, record)
				require.NoError(t, rdb.HSet(t.Context(), record, "queue", before[0], "waiting", before[1]).Err())
				result := acquiring(t, last, "k")
				queued(t, env, "k", lockers+1)
				start := time.Now()
				require.NoError(t, held.Release(t.Context()))
				require.NoError(t, granted(t, result).Release(t.Context()))
				require.Less(t, time.Since(start), (lockers-1)*time.Second, "%d places of a second each", lockers)
			})
		})
	}
}
