package delayqueue

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The message becomes too old after it was looked up, and before the script runs, as it may while Redis restarts.
func TestCancel_WhatExpiredMeanwhileIsNotCancelled(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, cancel := range map[string]func(t *testing.T, q *Queue) (int, error){
			"Cancel": func(t *testing.T, q *Queue) (int, error) {
				t.Helper()
				err := q.Cancel(t.Context(), "id")
				require.ErrorIs(t, err, ErrEnded)
				require.ErrorContains(t, err, "it is expired")
				return 0, nil
			},
			"CancelAll": func(t *testing.T, q *Queue) (int, error) {
				t.Helper()
				return q.CancelAll(t.Context(), Filter{})
			},
		} {
			t.Run(name, func(t *testing.T) {
				other := testQueue(t, &redistest.Env{Addr: env.Addr, Prefix: env.Prefix + name})
				q := testQueue(t, &redistest.Env{Addr: env.Addr, Prefix: env.Prefix + name})
				enqueueTest(t, q, "id", "k")
				sent := 0
				q.rdb.(*redis.Client).AddHook(redistest.BeforeEach(func(cmd redis.Cmder) {
					if !redistest.IsScript(cmd) || !slices.Contains([]any{store.Scripts["cancel"].Hash(), store.Scripts["cancel"].Source()}, redistest.Args(cmd)[1]) {
						return
					}
					if sent++; sent == 1 {
						require.NoError(t, ageRecord(other, "id"))
					}
				}))
				n, err := cancel(t, q)
				require.NoError(t, err)
				require.Zero(t, n)
				require.Positive(t, sent)
				s, err := q.Status(t.Context(), "id")
				require.NoError(t, err)
				require.Equal(t, StateExpired, s.State)
				stats, err := q.Stats(t.Context())
				require.NoError(t, err)
				require.Equal(t, Totals{Enqueued: 1, Expired: 1}, stats.Totals)
			})
		}
	})
}
