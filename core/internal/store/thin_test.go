package store_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// thinCalls are calls on a record that holderToken has. F stands for the fence of its grant.
var thinCalls = func() map[string]thinCall {
	calls := map[string]thinCall{
		"acquire, counted":                     {"acquire", []any{"3" + strangerToken[1:], 10000, 0, "x", "", ""}},
		"acquire again, for less":              {"acquire", []any{holderToken, 10, 0, "x", "", ""}},
		"admit":                                {"admit", []any{holderToken, "F", 0, readerToken, 10000, "x", waiterToken, 10000, "y"}},
		"admit beside a stranger":              {"admit", []any{strangerToken, "F", 0, readerToken, 10000, "x"}},
		"force":                                {"force", []any{"", "F"}},
		"renew for less":                       {"renew", []any{holderToken, 10}},
		"renew by a stranger":                  {"renew", []any{strangerToken, 90000}},
		"release by a stranger that used some": {"release", []any{strangerToken, "F", 0}},
		"release, and used its own":            {"release", []any{holderToken, "F", 0}},
		"release, and used later":              {"release", []any{holderToken, "9000000000000000", 0}},
		"release by a later clock":             {"release", []any{holderToken, "9000000000000000", 0, 0, readerToken, "@", "x", "1"}},
		"release, as if somebody had asked":    {"release", []any{holderToken, "F", 1}},
		"release by a stranger, the same":      {"release", []any{strangerToken, "F", 1}},
		"cancel":                               {"release", []any{holderToken, 0, 0}},
		"raise":                                {"raise", []any{holderToken, "F"}},
		"raise by a stranger":                  {"raise", []any{strangerToken, "F"}},
	}
	for name, call := range foreignCalls {
		if _, known := calls[name]; !known {
			calls[name] = thinCall{call.script, call.args}
		}
	}
	return calls
}()

type thinCall struct {
	script string
	args   []any
}

// withFence are the arguments of a call on a record with this fence.
func withFence(args []any, fence string) []any {
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "F" {
			args[i] = fence
		}
	}
	return args
}

// What follows a call, to find what it left behind.
var thinSequels = []thinCall{
	{"inspect", []any{10, 10}},
	{"acquire", []any{"2:late.00000000000000000000000000000009", 50000, 0, "z", "@", ""}},
	{"renew", []any{holderToken, 70000}},
	{"release", []any{holderToken, "F", 0}},
	{"inspect", []any{10, 10}},
}

// heldBy has a token hold a key, and returns its fence. The record is thin, or the HASH that it is once
// somebody else has asked.
func heldBy(t *testing.T, rdb *redis.Client, sources map[string]string, key, token string, asHash bool) (fence string) {
	t.Helper()
	ctx := t.Context()
	its, err := rdb.Eval(ctx, sources["acquire"], []string{key}, token, 60000, 0, "what;id", "", "").Int64()
	require.NoError(t, err)
	fence = strconv.FormatInt(its, 10)
	require.Equal(t, "pk2 "+token+" "+fence+" what;id", rdb.Get(ctx, key).Val())
	if asHash {
		left := rdb.PTTL(ctx, key).Val()
		ends := rdb.Time(ctx).Val().Add(left).UnixMilli()
		require.NoError(t, rdb.Del(ctx, key).Err())
		require.NoError(t, rdb.HSet(ctx, key, "fence", fence, "last", token, "h:"+token, fmt.Sprintf("%d %s what;id", ends, fence), "held", 1, "next", ends).Err())
		require.NoError(t, rdb.PExpire(ctx, key, left).Err())
	}
	return fence
}

var (
	aFence    = regexp.MustCompile(`\b\d{16}\b`)
	aMoment   = regexp.MustCompile(`\b\d{13}\b`)
	aDuration = regexp.MustCompile(`\b\d{3,5}\b`)
)

// normal is a reply, or a record, without what depends on the moment: F is the first fence, and what is
// left of a lease is told to 5 s.
func normal(what any, fence string) string {
	text := strings.ReplaceAll(fmt.Sprint(what), fence, "F")
	text = aFence.ReplaceAllString(text, "N")
	now := time.Now().UnixMilli()
	round := func(ms int64) string { return fmt.Sprintf("+%ds", (ms+2500)/5000*5) }
	text = aMoment.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.ParseInt(s, 10, 64)
		return round(n - now)
	})
	return aDuration.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.ParseInt(s, 10, 64)
		return round(n)
	})
}

// thinDifference makes a call, and what follows, on a thin record with these scripts, and on the same as
// a HASH with ours, and returns what differs.
func thinDifference(t *testing.T, rdb *redis.Client, sources map[string]string, prefix, token string, call thinCall) (differs string) {
	t.Helper()
	var stories [2][]string
	for i, scripts := range []map[string]string{sources, store.Sources} {
		key := store.RecordName(prefix, fmt.Sprint("k", i))
		require.NoError(t, rdb.Del(t.Context(), key).Err())
		fence := heldBy(t, rdb, scripts, key, token, i == 1)
		for _, c := range append([]thinCall{call}, thinSequels...) {
			args := withFence(c.args, fence)
			for j, arg := range args {
				if arg == holderToken {
					args[j] = token
				}
			}
			reply, err := rdb.Eval(t.Context(), scripts[c.script], []string{key}, args...).Result()
			if err != nil {
				reply = err.Error()
			}
			if n, ok := reply.([]any); ok && c.script == "acquire" && call.script == "renew" {
				n[1] = "a lower bound" // a HASH has that from before
			}
			stories[i] = append(stories[i], fmt.Sprint(c.script, ": ", normal(reply, fence), ", then ", normal(recorded(t, rdb, key), fence)))
		}
	}
	for i := range stories[0] {
		if stories[0][i] != stories[1][i] {
			return fmt.Sprintf("thin: %v; hash: %v", stories[0][i], stories[1][i])
		}
	}
	return ""
}

// recorded is what a record says of holders and fences, and that it expires.
func recorded(t *testing.T, rdb *redis.Client, key string) (said []string) {
	t.Helper()
	ctx := t.Context()
	left := rdb.PTTL(ctx, key).Val()
	switch rdb.Type(ctx, key).Val() {
	case "hash":
		for field, value := range rdb.HGetAll(ctx, key).Val() {
			if field == "fence" || field == "last" || strings.HasPrefix(field, "h:") {
				said = append(said, field+"="+value)
			}
		}
	case "string":
		f := strings.Fields(rdb.Get(ctx, key).Val())
		if len(f) == 0 {
			return nil // it has expired meanwhile
		}
		ends := rdb.Time(ctx).Val().Add(left).UnixMilli()
		said = append(said, "fence="+f[2], "last="+f[1], fmt.Sprintf("h:%s=%d %s %s", f[1], ends, f[2], f[3]))
	default:
		return nil
	}
	if len(said) == 1 && said[0] < fmt.Sprint("fence=", time.Now().Add(time.Second).UnixMicro()) {
		return nil // free, and kept until the clock has passed its fences: a slow machine may come later
	}
	slices.Sort(said)
	return append(said, fmt.Sprint("expires: ", left > 0))
}

// Whatever is asked of a thin record is answered, and leaves behind, what it would as a HASH.
func TestThin_EveryScriptDoesWhatItDoesToAHash(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		for name, call := range thinCalls {
			modes := map[string]string{"exclusive": holderToken}
			if env.Real { // where Lua is quick
				modes["shared"], modes["counted"] = "0"+holderToken[1:], "3"+holderToken[1:]
			}
			for mode, token := range modes {
				t.Run(name+"/"+mode, func(t *testing.T) {
					require.Empty(t, thinDifference(t, rdb, store.Sources, env.Prefix, token, call))
				})
			}
		}
	})
}

// thinMutants break one line of what is for thin records.
var thinMutants = []scriptMutant{
	{"an inflated holder is gone", "", "'h:' .. holder, grant)", "'h:', grant)"},
	{"an inflated lease is over", "", "string.format('%d %s %s', now + left, its, what)", "string.format('%d %s %s', now, its, what)"},
	{"an inflated lease is longer", "", "local left = redis.call('PTTL', key)", "local left = 9000 + redis.call('PTTL', key)"},
	{"an inflated record forgets the fence", "", "'fence', its, 'last', holder", "'fence', 1, 'last', holder"},
	{"an inflated record forgets what reads it", "", "return {its, 1, holder, now + left", "return {1, 1, holder, now + left"},
	{"an inflated record has no last holder", "", "'last', holder, 'h:'", "'last', '', 'h:'"},
	{"an inflated record is free", "", "return {its, 1, holder", "return {its, 0, holder"},
	{"an inflated record has another holder", "", "return {its, 1, holder,", "return {its, 1, token,"},
	{"an inflated holder is not known", "", "holder == token and grant", "false"},
	{"an inflated holder is anybody", "", "holder == token and grant", "grant"},
	{"an inflated record stays for ever", "", "  redis.call('PEXPIRE', key, left + ALIVE) -- the longest that a queue can need\n", ""},
	{"what is thin is not deleted", "", "  redis.call('DEL', key)\n  redis.call('HSET', key, 'fence', its,", "  redis.call('HSET', key, 'fence', its,"},
	{"a thin record is newer", "", "  if not holder then\n", "  if true then\n"},
	{"anybody releases what is thin", "release", "if text and string.sub(text, 1, #its) == its then", "if text then"},
	{"nobody releases what is thin", "release", "    redis.call('DEL', key) -- there is nothing to remember\n", ""},
	{"what is thin is released at any clock", "release", "local plain = min_hold == 0 and used > 0 and used < micros", "local plain = min_hold == 0 and used > 0"},
	{"what is thin is not kept for the rest of a MinHold", "release", "local plain = min_hold == 0 and", "local plain ="},
	{"a thin release forgets who waits", "release", "if plain and mark == '' and ARGV[3]", "if plain and ARGV[3]"},
	{"anybody renews what is thin", "renew", "replies[i] = mine and 1 or 0", "replies[i] = 1"},
	{"nobody renews what is thin", "renew", "replies[i] = mine and 1 or 0", "replies[i] = 0"},
	{"a stranger lengthens what is thin", "renew", "if mine and redis", "if redis"},
	{"what is thin is not lengthened", "renew", "      redis.call('PEXPIRE', key, math.max(lease, LEAST))\n", ""},
	{"what is thin is shortened", "renew", "and redis.call('PTTL', key) < lease then", "then"},
	{"what is thin ends at once for who looks", "inspect", "now + left", "now"},
	{"a secret is told", "inspect", "string.match(holder, '^(%d+:.*)%.')", "holder"},
}

// scriptMutant is a script, or each that has it if none is named, with a piece of it broken.
type scriptMutant struct{ name, script, old, new string }

// sources are all scripts, of the mutant.
func (m scriptMutant) sources(t *testing.T) map[string]string {
	t.Helper()
	sources, broken := maps.Clone(store.Sources), 0
	for name, source := range sources {
		if m.script == name || m.script == "" && strings.Contains(source, m.old) {
			require.Equal(t, 1, strings.Count(source, m.old), name)
			sources[name] = strings.Replace(source, m.old, m.new, 1)
			broken++
		}
	}
	require.Positive(t, broken)
	return sources
}

func TestThin_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	names := slices.Sorted(maps.Keys(thinCalls))
	for _, m := range thinMutants {
		t.Run(m.name, func(t *testing.T) {
			sources := m.sources(t)
			for _, name := range names {
				if differs := thinDifference(t, rdb, sources, "p", holderToken, thinCalls[name]); differs != "" {
					t.Logf("%s: %s", name, differs)
					return
				}
			}
			t.Error("not caught")
		})
	}
}

// fullMemory asks for a thin record's key while Redis has no memory left, and says what is wrong: "" if nothing is.
func fullMemory(t *testing.T, acquire string) (wrong string) {
	t.Helper()
	ctx, rdb := t.Context(), redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	held, free := store.RecordName("p", "held"), store.RecordName("p", "free")
	fence := heldBy(t, rdb, store.Sources, held, holderToken, false)
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	if err := rdb.Eval(ctx, acquire, []string{free}, strangerToken, 10000, 0, "x", "", "").Err(); err == nil || rdb.Exists(ctx, free).Val() != 0 {
		return "a new record was not refused"
	}
	if _, err := rdb.Eval(ctx, acquire, []string{held}, strangerToken, 10000, 0, "x", "@", "").Slice(); err != nil {
		return "who finds the key held is not told: " + err.Error()
	}
	require.Equal(t, fence, rdb.HGet(ctx, held, "fence").Val())
	require.Contains(t, rdb.HGet(ctx, held, "queue").Val(), strangerToken)
	require.Greater(t, rdb.PTTL(ctx, held).Val(), 60*time.Second)
	return ""
}

func TestThin_IsInflatedWithoutMemory(t *testing.T) {
	t.Parallel()
	require.Empty(t, fullMemory(t, store.Sources["acquire"]))
	requireCaught(t, store.Sources["acquire"], fullMemory, map[string][2]string{"an error is everybody's": {"redis.pcall('SET'", "redis.call('SET'"}})
}

// A Redis that refuses writes leaves a thin record as it is.
func TestThin_IsNotInflatedInPart(t *testing.T) {
	t.Parallel()
	ctx, rdb := t.Context(), redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	key := store.RecordName("p", "k")
	fence := heldBy(t, rdb, store.Sources, key, holderToken, false)
	before := contents(t, rdb, key)
	require.NoError(t, rdb.ConfigSet(ctx, "min-replicas-to-write", "1").Err())
	for name, call := range thinCalls {
		if call.script == "inspect" || call.script == "refresh" || name == "renew by a stranger" || name == "acquire, and do not wait" || name == "acquire, counted" || name == "renew for less" {
			continue // these write nothing
		}
		err := rdb.Eval(ctx, store.Sources[call.script], []string{key}, withFence(call.args, fence)...).Err()
		require.ErrorContains(t, err, "NOREPLICAS", name)
		require.Equal(t, before, contents(t, rdb, key), name)
	}
}
