package core_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/redistest"
)

// lockRights are all that locks need of Redis, in the words of ACL SETUSER. The
// name in front is that of WithPrefix.
var lockRights = []string{
	"~perkey:lock{}:*",
	"+evalsha", "+eval", // run the scripts
	"+hget", "+hmget", "+hset", "+hdel", "+del", "+pttl", "+pexpire", "+pexpireat", "+time", // run in them
}

// wakeRights are for waiting calls to be woken. Without them they ask now and then.
var wakeRights = []string{
	"&perkey:wake:*",
	"+publish", // run in a script
	"+subscribe", "+ping",
}

// seldomUsed are the commands that the life of a lock can do without, by what has
// them run.
var seldomUsed = map[string]string{
	"hdel":      "a server clock that was set back",
	"pexpireat": "a server clock that was set back",
	"ping":      "a subscription that is idle for seconds",
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
	rights := append(slices.Clone(lockRights), wakeRights...)
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

// liveUnder runs the life of a few locks for a user with these rights alone, and
// returns how long waiting calls slept on after the release.
func liveUnder(t *testing.T, admin *redis.Client, rights []string) (wakes []time.Duration) {
	t.Helper()
	user := []any{"acl", "setuser", "locker", "on", ">secret", "resetchannels"}
	for _, right := range rights {
		user = append(user, right)
	}
	require.NoError(t, admin.Do(t.Context(), user...).Err())
	client := func() *redis.Client {
		return redistest.Client(t, &redis.Options{Addr: admin.Options().Addr, Username: "locker", Password: "secret"})
	}
	return life{holder: client(), other: client(), admin: admin, prefix: "perkey", keys: keyNames(4)}.run(t)
}

// aclLog lists what was denied.
func aclLog(t *testing.T, admin *redis.Client) []string {
	t.Helper()
	entries, err := admin.ACLLog(t.Context(), 100).Result()
	require.NoError(t, err)
	denied := make([]string, len(entries))
	for i, entry := range entries {
		denied[i] = entry.Object
	}
	return denied
}
