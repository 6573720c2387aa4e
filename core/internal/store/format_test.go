package store_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Records that this version did not write, as another could look. The last ones have fields that
// a script could take for its own. One is a HASH of fields, or a STRING.
var foreignRecords = map[string]any{
	"of a newer version":       []any{"v", "2", "grants", "\x00\x01binary", "line", "1 2 3"},
	"of a much newer version":  []any{"v", "17.4-rc", "fence", "x"},
	"without a fence":          []any{"name", "Ada", "mail", "ada@example.org"},
	"of three fields":          []any{"v", "2", "last", holderToken, "fence", "7"},
	"of fields that are known": knownFields,
	"a text":                   "pk3 1700000000000000 " + holderToken + " x",
	"a text of later":          "pk17 ",
}

var knownFields = []any{
	"v", "2", "fence", "5", "last", holderToken, "h:" + holderToken, "9999999999999 5 x", "held", "1", "next", "9999999999999",
	"queue", waiterToken + "~9999999999999,x ", "waiting", "1", "watch", "stranger ", "reserved", "9999999999999 7",
}

// Calls of scripts on a record, and what they answer if it is foreign. The record lasts for a minute.
var foreignCalls = map[string]struct {
	script string
	args   []any
	want   func(t *testing.T, got any)
}{
	"acquire, and do not wait":    {"acquire", []any{strangerToken, 10000, 0, "x", "", ""}, refusedByForeign},
	"acquire, and wait":           {"acquire", []any{strangerToken, 10000, 0, "x", "@", ""}, refusedByForeign},
	"acquire, and watch":          {"acquire", []any{strangerToken, 10000, 0, "x", "", "stranger"}, refusedByForeign},
	"acquire for parked work":     {"acquire", []any{strangerToken, 10000, 0, "x", "", "", 5000}, refusedByForeign},
	"acquire again":               {"acquire", []any{holderToken, 90000, 0, "x", "", ""}, refusedByForeign},
	"acquire all":                 {"acquireall", []any{strangerToken, 10000, 0, "x"}, allRefusedByForeign},
	"acquire all again":           {"acquireall", []any{holderToken, 90000, 0, "x"}, allRefusedByForeign},
	"renew":                       {"renew", []any{holderToken, 90000}, answers([]any{int64(0)})},
	"refresh":                     {"refresh", []any{waiterToken}, askedByForeign},
	"release":                     {"release", []any{holderToken, 5, 0}, answers(int64(0))},
	"release, and stay":           {"release", []any{holderToken, 5, 0, 90000, "", "", "", ""}, answers(int64(0))},
	"release by a stranger":       {"release", []any{strangerToken, 0, 0}, answers(int64(0))},
	"release, and leave":          {"release", []any{holderToken, 5, 0, 0, waiterToken, "", "", ""}, answers(int64(0))},
	"release, and another waits":  {"release", []any{holderToken, 5, 0, 0, readerToken, "@", "x", ""}, notQueuedByForeign},
	"release, and a fresh waits":  {"release", []any{holderToken, 5, 0, 0, readerToken, "@", "x", "1"}, notQueuedByForeign},
	"cancel, and another waits":   {"release", []any{strangerToken, 0, 0, 0, readerToken, "@", "x", "1"}, notQueuedByForeign},
	"downgrade":                   {"downgrade", []any{holderToken, readerToken, 5}, answers(int64(0))},
	"downgrade, to the holder":    {"downgrade", []any{strangerToken, holderToken, 5}, answers(int64(0))},
	"raise":                       {"raise", []any{holderToken, 9}, answers(int64(0))},
	"force":                       {"force", []any{"", 5}, answers(int64(0))},
	"reserve":                     {"reserve", []any{"", 90000, 0}, answers([]any{int64(0), int64(0)})},
	"unreserve":                   {"unreserve", []any{"", "9000000000000000"}, answers(int64(1))},
	"unreserve what is not older": {"unreserve", []any{"", "1"}, answers(int64(1))},
	"inspect":                     {"inspect", []any{10, 10}, nil},
}

func answers(want any) func(*testing.T, any) {
	return func(t *testing.T, got any) { t.Helper(); assert.Equal(t, want, got) }
}

// minute stands for what a record lasts, in ms; anything for a number that may be any.
type (
	minute   struct{}
	anything struct{}
)

// told is a reply of several words.
func told(want ...any) func(*testing.T, any) {
	return func(t *testing.T, got any) {
		t.Helper()
		n, ok := got.([]any)
		require.True(t, ok && len(n) == len(want), "%v", got)
		for i, word := range want {
			switch word.(type) {
			case minute:
				assert.InDelta(t, 60000, n[i], 5000)
			case anything:
			default:
				assert.EqualValues(t, word, n[i], "word %d of %v", i, got)
			}
		}
	}
}

var (
	refusedByForeign    = told(0, minute{}, anything{}, -1, 0, 0) // the key is held, for as long as its record lasts; the caller is in no queue
	notQueuedByForeign  = told(0, 0, anything{}, 0, 0, 0, 0)
	askedByForeign      = told(anything{}, 0, 0, 0)
	allRefusedByForeign = told(0, 1, minute{}, 0)
)

func TestFormat_NoScriptTouchesAForeignRecord(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		for what, fields := range foreignRecords {
			for name, call := range foreignCalls {
				t.Run(what+"/"+name, func(t *testing.T) {
					key := store.RecordName(env.Prefix, what+name)
					write(t, rdb, key, fields)
					require.NoError(t, rdb.PExpire(ctx, key, time.Minute).Err())
					before := contents(t, rdb, key)
					got, err := rdb.Eval(ctx, store.Sources[call.script], []string{key}, call.args...).Result()
					require.NoError(t, err)
					if call.want != nil {
						call.want(t, got)
					}
					require.Equal(t, before, contents(t, rdb, key))
					require.InDelta(t, time.Minute, rdb.PTTL(ctx, key).Val(), float64(10*time.Second))
				})
			}
		}
	})
}

// A STRING of somebody else's is an error, and is not touched. Renewals and refreshes of other keys go on.
func TestFormat_ATextOfSomebodyElseIsAnError(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		ctx, rdb := t.Context(), env.Client(t)
		for _, text := range []string{"x", "", "pk", "pk2", "pk 1 x", "pkx 1", " pk2 1", "perkey 2 "} {
			for name, call := range foreignCalls {
				key := store.RecordName(env.Prefix, name+text)
				write(t, rdb, key, text)
				got, err := rdb.Eval(ctx, store.Sources[call.script], []string{key}, call.args...).Result()
				if call.script == "renew" || call.script == "refresh" {
					require.NoError(t, err)
					call.want(t, got)
				} else {
					require.ErrorContains(t, err, "WRONGTYPE", name)
				}
				require.Equal(t, text, contents(t, rdb, key))
			}
		}
	})
}

// write stores what is no record of this version: the fields of a HASH, or a STRING.
func write(t *testing.T, rdb *redis.Client, key string, what any) {
	t.Helper()
	if fields, ok := what.([]any); ok {
		require.NoError(t, rdb.HSet(t.Context(), key, fields...).Err())
		return
	}
	require.NoError(t, rdb.Set(t.Context(), key, what, 0).Err())
}

// contents is what is stored under a key; nil: nothing.
func contents(t *testing.T, rdb *redis.Client, key string) any {
	t.Helper()
	switch rdb.Type(t.Context(), key).Val() {
	case "hash":
		return rdb.HGetAll(t.Context(), key).Val()
	case "none":
		return nil
	}
	text, err := rdb.Get(t.Context(), key).Result()
	require.NoError(t, err)
	return text
}
