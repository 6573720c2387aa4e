package delayqueue_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/redistest"
)

// queueRights are all that a queue, its workers and its operations need of Redis, in
// the words of ACL SETUSER, beside the rights of the locker.
var queueRights = []string{
	"~perkey:queue:*", "&perkey:queue:*",
	"+evalsha", "+eval", "+hmget", "+hstrlen", "+zscore", "+exists", "+lindex", "+set", "+del", "+subscribe", "+ping", "+publish",
	// run in the scripts
	"+get", "+hdel", "+hexists", "+hget", "+hincrby", "+hset", "+hsetnx", "+incrby", "+llen", "+lpop", "+lpos", "+lrem", "+pexpire", "+pttl",
	"+rename", "+rpush", "+time", "+type", "+zadd", "+zcard", "+zcount", "+zrange", "+zrangebyscore", "+zrem", "+zrevrange",
}

func TestTheSmallestRightsOfAQueue(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	admin := redistest.Client(t, &redis.Options{Addr: server.Addr})
	args := []any{"ACL", "SETUSER", "queues", "on", ">secret", "resetchannels"}
	for _, right := range queueRights {
		args = append(args, right)
	}
	require.NoError(t, admin.Do(t.Context(), args...).Err())
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr, Username: "queues", Password: "secret"})

	ctx := t.Context()
	queue, err := delayqueue.New(rdb, "q", delayqueue.WithMaxAttempts(2))
	require.NoError(t, err)
	locker, err := core.New(admin)
	require.NoError(t, err)
	defer func() { require.NoError(t, locker.Close()) }()
	held, err := locker.TryAcquire(ctx, "held")
	require.NoError(t, err)
	w, err := delayqueue.NewWorker(queue, locker, func(ctx context.Context, m delayqueue.Message) error {
		switch m.Name {
		case "fails":
			return errors.New("no")
		case "slow":
			time.Sleep(150 * time.Millisecond)
		}
		return delayqueue.SetResult(ctx, []byte("result"))
	}, quick(delayqueue.WithClaimLease(100*time.Millisecond))...)
	require.NoError(t, err)
	require.NoError(t, w.Start())

	var ids []string
	enqueue := func(job delayqueue.Job) string {
		ticket, err := queue.Enqueue(ctx, job)
		require.NoError(t, err)
		ids = append(ids, ticket.ID)
		return ticket.ID
	}
	for i := range 3 {
		enqueue(delayqueue.Job{Key: "k", Name: []string{"", "slow", ""}[i]})
	}
	enqueue(delayqueue.Job{Key: "held"})
	cancelled := enqueue(delayqueue.Job{Key: "k", Delay: time.Minute})
	require.NoError(t, queue.Cancel(ctx, cancelled))
	enqueue(delayqueue.Job{MaxAge: 20 * time.Millisecond, Delay: 10 * time.Millisecond, Key: "other"})
	dead := enqueue(delayqueue.Job{Name: "fails"})
	_, err = queue.Wait(ctx, dead)
	require.NoError(t, err)
	require.NoError(t, queue.Redrive(ctx, dead, 0))
	require.NoError(t, held.Release(ctx))
	for _, id := range ids {
		_, err := queue.Wait(ctx, id)
		require.NoError(t, err)
	}
	_, err = queue.Result(ctx, ids[0])
	require.NoError(t, err)
	_, err = queue.Peek(ctx, dead)
	require.NoError(t, err)
	_, _, err = queue.List(ctx, delayqueue.StateDead, "", 10)
	require.NoError(t, err)
	require.NoError(t, queue.Purge(ctx, dead))
	require.NoError(t, queue.Pause(ctx, time.Minute))
	require.NoError(t, queue.Resume(ctx))
	_, err = queue.Stats(ctx)
	require.NoError(t, err)
	require.NoError(t, w.Stop(ctx))

	log, err := admin.ACLLog(ctx, 100).Result()
	require.NoError(t, err)
	for _, entry := range log {
		require.Empty(t, entry.Object, "nothing more was asked for")
	}
	stats := admin.Info(ctx, "commandstats").Val()
	for _, right := range queueRights {
		if command, ok := strings.CutPrefix(right, "+"); ok && seldomUsed[command] == "" {
			require.Contains(t, stats, "cmdstat_"+command+":", "nothing less would do")
		}
	}
}

// seldomUsed are the commands that the life of a queue can do without, by what has them
// run.
var seldomUsed = map[string]string{
	"ping":   "a subscription that is idle for seconds",
	"rename": "something else under the name of a set or a line",
	"lpos":   "the audit of a line",
	"hsetnx": "a dead letter without a key",
}
