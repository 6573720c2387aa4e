package core_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// olderArguments give scripts of that version their arguments as they were.
var olderArguments = map[string]string{
	"acquire":    "local ARGV = {ARGV[1], ARGV[2], ARGV[4] or '', ARGV[5] or '', ARGV[6] or '', ARGV[7] ~= '0' and ARGV[7] or nil}\n",
	"acquireall": "local ARGV = {ARGV[1], ARGV[2], ARGV[4]}\n",
	"admit":      "local ARGV = {ARGV[1], ARGV[2], unpack(ARGV, 4)}\n",
	"release":    "local ARGV = {ARGV[1], ARGV[2], ARGV[4] or '0', ARGV[5] or '', ARGV[6] or '', ARGV[7] or '', ARGV[8] or ''}\n",
}

// olderReplies give their replies, which were shorter, what has been added.
var olderReplies = map[string]string{
	"acquire": "if type(reply) == 'table' and reply[1] == 0 then reply[6] = 0 end\n",
	"release": "if type(reply) == 'table' then reply[7] = 0 end\n",
}

// olderScripts is a hook that makes a client one of the version before thin records. The scripts are
// those of that version; what Go writes and reads is the same, but for olderArguments and olderReplies.
func olderScripts() (redis.Hook, error) {
	const dir = "internal/store/testdata/hash"
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	instead := map[string]string{}
	for name, source := range core.Scripts {
		if name == "acquires" || name == "releases" { // which that version does not have: each asks alone
			instead[source] = "local all = {} for i = 1, #KEYS do all[i] = false end return all"
			continue
		}
		older := luascript.Load(os.DirFS(dir), name).Source()
		instead[source] = olderArguments[name] + "local reply = (function()\n" + older + "\nend)()\n" + olderReplies[name] + "return reply"
	}
	hook, _ := redistest.RunInstead(instead)
	return hook, nil
}

// inflate has a script look at a record as a HASH, which it is from then on if there is one.
func inflate(t *testing.T, rdb *redis.Client, record string) {
	t.Helper()
	require.NoError(t, rdb.Eval(t.Context(), core.Scripts["force"], []string{record}, "", 0).Err())
}

// A locker of the version before meets a conflict while a thin record lasts, and is served when it is
// gone, or when somebody else has asked.
func TestOlder_AThinRecordIsAConflict(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx := t.Context()
		hook, err := olderScripts()
		require.NoError(t, err)
		l, third, older := newLocker(t, env), newLocker(t, env), hooked(t, env, hook)
		lease := testbed.Take(t, l, "k", core.Named("n", "i"))
		require.Equal(t, "string", env.Client(t).Type(ctx, core.RecordName(env.Prefix, "k")).Val())

		_, err = older.TryAcquire(ctx, "k")
		var conflict *core.ConflictError
		require.ErrorAs(t, err, &conflict)
		require.Positive(t, conflict.Remaining)
		require.NotErrorIs(t, err, core.ErrUnavailable)
		info, err := older.Inspect(ctx, "k")
		require.NoError(t, err)
		require.True(t, info.UnknownFormat)
		forced, err := older.ForceRelease(ctx, "k", lease.Fence())
		require.NoError(t, err)
		require.False(t, forced)
		token := lease.Token()
		require.ErrorIs(t, errOf(older.Resume(ctx, token)), core.ErrLeaseLost)
		require.True(t, strings.HasPrefix(token, "pk1."))

		waits := acquiring(t, older, "k")
		time.Sleep(50 * time.Millisecond)
		require.Empty(t, waits)
		refused(t, third, "k")
		inflate(t, env.Client(t), core.RecordName(env.Prefix, "k"))
		info, err = older.Inspect(ctx, "k")
		require.NoError(t, err)
		require.False(t, info.UnknownFormat)
		require.Equal(t, lease.Fence(), info.Holders[0].Fence)
		require.NoError(t, lease.Release(ctx))
		second := granted(t, waits)
		require.Greater(t, second.Fence(), lease.Fence())
		require.NoError(t, second.Release(ctx))
	})
}
