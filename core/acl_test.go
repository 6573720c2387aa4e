package core_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/redistest"
)

// lockRights are all that locks need of Redis, in the words of ACL SETUSER. The
// name in front is that of WithPrefix.
var lockRights = []string{
	"~perkey:lock{}:*",
	"+evalsha", "+eval", // run the scripts
	"+exists", "+hlen", "+hget", "+hmget", "+hgetall", "+hset", "+hdel", "+del", "+pttl", "+pexpire", "+time", // run in them
}

// wakeRights are for waiting calls to be woken. Without them they ask now and then.
var wakeRights = []string{
	"&perkey:wake:*",
	"+publish", // run in a script
	"+subscribe", "+ping",
}

// clusterRights are what go-redis needs besides on a Redis Cluster. Without +command it
// works, but asks for it in vain with each command.
var clusterRights = []string{"+cluster|slots", "+command"}

// seldomUsed are the commands that the life of a lock can do without, by what has
// them run.
var seldomUsed = map[string]string{
	"hgetall": "a holder whose lease ran out beside others",
	"ping":    "a subscription that is idle for seconds",
}

func TestTheSmallestRightsToLock(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	wakes := liveUnder(t, rdb, lockRights)
	require.Less(t, slices.Max(wakes), 2*time.Second, "it asks once a second")
	for _, denied := range aclLog(t, rdb) {
		require.Contains(t, []string{"publish", "subscribe"}, denied)
	}
}

func TestTheSmallestRightsToLockAndBeWoken(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	rights := slices.Concat(lockRights, wakeRights)
	wakes := liveUnder(t, rdb, rights)
	require.Less(t, median(wakes), wokenWithin)
	require.Empty(t, aclLog(t, rdb), "nothing more was asked for")

	stats := rdb.Info(t.Context(), "commandstats").Val()
	for _, right := range rights {
		if command, ok := strings.CutPrefix(right, "+"); ok && seldomUsed[command] == "" {
			require.Contains(t, stats, "cmdstat_"+command+":", "nothing less would do")
		}
	}
}

func TestTheSmallestRightsToLockOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	admin := c.Client(t)
	rights := slices.Concat(lockRights, wakeRights, clusterRights)
	require.NoError(t, admin.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		return addUser(ctx, node, rights)
	}))
	client := func() redis.UniversalClient {
		return c.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = aclUser, aclPassword })
	}
	wakes := life{holder: client(), other: client(), admin: admin, prefix: "perkey", keys: keyNames(12)}.run(t)
	require.Less(t, median(wakes), wokenWithin)
	require.NoError(t, admin.ForEachMaster(t.Context(), func(_ context.Context, node *redis.Client) error {
		assert.Empty(t, aclLog(t, node), "nothing more was asked for")
		return nil
	}))
}

const aclUser, aclPassword = "locker", "secret"

func addUser(ctx context.Context, admin *redis.Client, rights []string) error {
	user := []any{"acl", "setuser", aclUser, "on", ">" + aclPassword, "resetchannels"}
	for _, right := range rights {
		user = append(user, right)
	}
	return admin.Do(ctx, user...).Err()
}

// liveUnder runs the life of a few locks for a user with these rights alone, and
// returns how long waiting calls slept on after the release.
func liveUnder(t *testing.T, admin *redis.Client, rights []string) (wakes []time.Duration) {
	t.Helper()
	require.NoError(t, addUser(t.Context(), admin, rights))
	client := func() *redis.Client {
		return redistest.Client(t, &redis.Options{Addr: admin.Options().Addr, Username: aclUser, Password: aclPassword})
	}
	return life{holder: client(), other: client(), admin: admin, prefix: "perkey", keys: keyNames(4)}.run(t)
}

// aclLog lists what was denied.
func aclLog(t *testing.T, admin *redis.Client) []string {
	t.Helper()
	entries, err := admin.ACLLog(t.Context(), 100).Result()
	assert.NoError(t, err)
	denied := make([]string, len(entries))
	for i, entry := range entries {
		denied[i] = entry.Object
	}
	return denied
}
