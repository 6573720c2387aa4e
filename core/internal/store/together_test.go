package store_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// found is what a caller can find under its key.
var found = map[string]func(t *testing.T, rdb *redis.Client, key string){
	"nothing": func(*testing.T, *redis.Client, string) {},
	"its own": heldThin(holderToken), "a stranger's": heldThin(strangerToken), "a reader's": heldThin(readerToken), "one of three": heldThin("3" + strangerToken[1:]),
	"its own HASH": func(t *testing.T, rdb *redis.Client, key string) {
		heldBy(t, rdb, store.Sources, key, holderToken, true)
	},
	"somebody's HASH": func(t *testing.T, rdb *redis.Client, key string) {
		heldBy(t, rdb, store.Sources, key, strangerToken, true)
	},
	"for ever": func(t *testing.T, rdb *redis.Client, key string) {
		heldBy(t, rdb, store.Sources, key, strangerToken, false)
		require.NoError(t, rdb.Persist(t.Context(), key).Err())
	},
	"a newer format": func(t *testing.T, rdb *redis.Client, key string) {
		require.NoError(t, rdb.Set(t.Context(), key, "pk9 a 1 b", time.Minute).Err())
	},
	"a list": func(t *testing.T, rdb *redis.Client, key string) {
		require.NoError(t, rdb.RPush(t.Context(), key, "x").Err())
	},
}

func heldThin(token string) func(t *testing.T, rdb *redis.Client, key string) {
	return func(t *testing.T, rdb *redis.Client, key string) { heldBy(t, rdb, store.Sources, key, token, false) }
}

// asks are what a caller of each key says, and what it is under the keys for which it has to ask alone.
var asks = []struct {
	script string
	args   []any
	alone  string
}{
	{"acquire", []any{holderToken, 50000, 0, "x", ""}, "a list, a newer format, for ever, its own, its own HASH, somebody's HASH"},
	{"acquire", []any{"0" + holderToken[1:], 50000, 0, "y", ""}, "a list, a newer format, a reader's, for ever, its own HASH, one of three, somebody's HASH"},
	{"acquire", []any{"3" + holderToken[1:], 50000, 0, "y", ""}, "a list, a newer format, a reader's, for ever, its own HASH, one of three, somebody's HASH"},
	{"acquire", []any{holderToken, 50000, 1, "late", ""}, ""},
	{"acquire", []any{holderToken, 50000, 0, "waits", "@"}, "a list, a newer format, a reader's, a stranger's, for ever, its own, its own HASH, one of three, somebody's HASH"},
	{"release", []any{holderToken, 1}, "a list, a newer format, a reader's, a stranger's, for ever, its own HASH, nothing, one of three, somebody's HASH"},
	{"release", []any{holderToken, 0}, "a list, a newer format, a reader's, a stranger's, for ever, its own, its own HASH, nothing, one of three, somebody's HASH"},
	{"release", []any{holderToken, "9000000000000000"}, "a list, a newer format, a reader's, a stranger's, for ever, its own, its own HASH, nothing, one of three, somebody's HASH"},
}

// saidBy are the arguments of a caller: each has a token of its own.
func saidBy(args []any, name string) []any {
	args = slices.Clone(args)
	if !strings.HasPrefix(name, "its own") {
		args[0] = fmt.Sprintf("%s%x", strings.TrimSuffix(args[0].(string), "1"), len(name)%16)
	}
	return args
}

// askTogether asks for all keys in one call, and returns the replies; nil: that caller has to ask alone.
func askTogether(t *testing.T, rdb *redis.Client, sources map[string]string, script string, keys []string, said func(i int) []any) []any {
	t.Helper()
	var args []any
	for i := range keys {
		switch own := said(i); {
		case script == "release":
			args = append(args, own...)
		case i == 0:
			args = append(args, own[2], own[0], own[1], own[3], own[4])
		default:
			args = append(args, own[0], own[1], own[3], own[4])
		}
	}
	replies, err := rdb.Eval(t.Context(), sources[script+"s"], keys, args...).Slice()
	if err != nil {
		return slices.Repeat([]any{any(err.Error())}, len(keys))
	}
	if len(replies) != len(keys) { // all came late
		return slices.Repeat([]any{any(replies)}, len(keys))
	}
	return replies
}

// togetherDifference has callers ask, each for a key under which something else is, in one call with these scripts and each alone
// with ours, and returns what differs. A Redis that is full has no memory for what they write.
func togetherDifference(t *testing.T, rdb *redis.Client, prefix string, sources map[string]string, full bool) (differs string) {
	t.Helper()
	ctx, names := t.Context(), slices.Sorted(maps.Keys(found))
	for _, ask := range asks {
		var stories [2][]string
		for i := range stories {
			var keys, alone []string
			for _, name := range names {
				key := store.RecordName(prefix, name)
				require.NoError(t, rdb.Del(ctx, key).Err())
				found[name](t, rdb, key)
				keys = append(keys, key)
			}
			if full {
				require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
			}
			said := func(i int) []any { return saidBy(ask.args, names[i]) }
			replies := make([]any, len(keys))
			if i == 1 {
				replies = askTogether(t, rdb, sources, ask.script, keys, said)
			}
			for j := range keys {
				reply := replies[j]
				if reply == nil {
					alone = append(alone, names[j])
					var err error
					if reply, err = rdb.Eval(ctx, store.Sources[ask.script], keys[j:j+1], said(j)...).Result(); err != nil {
						reply = err.Error()
					}
				}
				stories[i] = append(stories[i], fmt.Sprint(ask, ", ", names[j], ": ", normal(reply, "no fence")))
			}
			if full {
				require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "0").Err())
			}
			for j := range keys {
				if recorded(t, rdb, keys[j]) != nil || rdb.Exists(ctx, keys[j]).Val() == 0 {
					stories[i][j] += fmt.Sprint(", then ", normal(recorded(t, rdb, keys[j]), "no fence"))
				}
			}
			if want := ask.alone; i == 1 && !full && strings.Join(alone, ", ") != want {
				return fmt.Sprintf("%v: alone: %q, not %q", ask, alone, want)
			}
		}
		for j := range stories[0] {
			if stories[0][j] != stories[1][j] {
				return fmt.Sprintf("alone: %v; together: %v", stories[0][j], stories[1][j])
			}
		}
	}
	return ""
}

// Each of several callers in one call is told, and leaves behind, what it would alone: also one that Redis refuses.
func TestTogether_EachIsAsAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		require.Empty(t, togetherDifference(t, env.Client(t), env.Prefix, store.Sources, false))
	})
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	require.Empty(t, togetherDifference(t, rdb, "full", store.Sources, true))
}

var togetherMutants = []scriptMutant{
	{"a held key is taken", "acquires", "'NX', 'PX'", "'PX'"},
	{"all are as the first", "acquires", "'pk2 ' .. ARGV[4 * i - 2]", "'pk2 ' .. ARGV[2]"},
	{"a lease is shorter", "acquires", "'PX', ARGV[4 * i - 1])", "'PX', ARGV[4 * i - 1] / 2)"},
	{"who comes late is served", "acquires", "if ARGV[1] - now < 0 and", "if false and"},
	{"a refusal is another's", "acquires", "refusal(KEYS[i], ARGV", "refusal(KEYS[1], ARGV"},
	{"its own is refused", "acquires", "holder ~= token and", "true and"},
	{"a reader is refused beside another", "acquires", "and (string.sub(holder, 1, 2) == '1:' or string.sub(token, 1, 2) == '1:')", ""},
	{"a lease without an end is over", "acquires", "rest >= 0", "true"},
	{"who waits is refused", "acquires", "elseif ARGV[4 * i + 1] ~= '' then", "elseif false then"},
	{"one error is everybody's", "acquires", "redis.pcall('SET'", "redis.call('SET'"},
	{"anybody releases", "releases", "string.sub(text, 1, #its) == its", "true"},
	{"a release in the future is forgotten", "releases", " and used < micros", ""},
	{"what may be used is forgotten", "releases", "used > 0 and ", ""},
	{"nothing is released", "releases", "  redis.call('DEL', unpack(free)) -- there is nothing to remember\n", ""},
	{"one release is all", "releases", "unpack(free)", "unpack(KEYS)"},
}

func TestTogether_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	for _, m := range togetherMutants {
		differs := togetherDifference(t, rdb, "p", m.sources(t), m.name == "one error is everybody's")
		require.NotEmpty(t, differs, m.name)
		t.Log(m.name, ": ", differs)
	}
}
