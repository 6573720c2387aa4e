package asynqlock_test

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/retry"
)

// The middleware's locks have a user of their own, and tasks that are refused come back, or wait for their key.
func TestACL_TheSmallestRightsOfTheMiddleware(t *testing.T) {
	t.Parallel()
	env := &redistest.Env{Addr: redistest.Start(t).Addr, Prefix: "perkey"}
	b := setup(t, env)
	redistest.AddUser(t, b.rdb, "locks", redistest.Rights(t, "locks", "locks that are waited for", "an Observer"))
	limited := redistest.Client(t, &redis.Options{Addr: env.Addr, Username: "locks", Password: redistest.Password})
	redistest.AddUser(t, b.rdb, "tasks", append(redistest.Rights(t, "tasks of asynq that wait", "asynqlock.Waiting"),
		"~asynq:*", "+sadd", "+sismember", "+exists", "+hget", "+hset", "+hmget", "+lpush", "+get", "+set", "+del"))
	tasks := redistest.Client(t, &redis.Options{Addr: env.Addr, Username: "tasks", Password: redistest.Password})
	locker, err := core.New(limited, core.WithObserver(b.conflicts))
	require.NoError(t, err)
	defer func() { require.NoError(t, locker.Close()) }()

	for _, policy := range []core.ConflictPolicy{nil, retry.Policy{MaxWait: time.Minute}} {
		release := b.hold(t, key)
		b.conflicts.n.Store(0)
		ran := make(chan struct{}, 1)
		cfg := b.config()
		require.NoError(t, asynqlock.Configure(&cfg, tasks))
		stop := b.start(t, cfg, asynqlock.PerKey(locker.Guard(policy), walletKey, soon)(tells(ran)))
		b.enqueue(t, task(), asynq.MaxRetry(0))
		b.untilConflicts(t, 1)
		if policy == nil {
			b.listed(t, 1)
			waiting, _, err := asynqlock.Waiting(t.Context(), tasks, locker, key, 10)
			require.NoError(t, err)
			require.Len(t, waiting, 1)
		}
		release()
		get(t, ran)
		stop()
	}
	require.Empty(t, redistest.Denied(t, b.rdb), "nothing more was asked for")
}
