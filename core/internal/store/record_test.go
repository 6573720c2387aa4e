package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Tokens as a Locker writes them.
const (
	holderToken   = "1:holder.00000000000000000000000000000001"
	strangerToken = "1:stranger.00000000000000000000000000000002"
	readerToken   = "0:reader.00000000000000000000000000000003"
	waiterToken   = "0:waiter.00000000000000000000000000000004"
)

// lastMoment calls scripts on a record that a holder has.
var lastMoment = map[string]struct {
	script string
	args   []any
}{
	"acquire, and do not wait": {"acquire", []any{strangerToken, 10000, 0, "x", "", ""}},
	"acquire, and watch":       {"acquire", []any{strangerToken, 10000, 0, "x", "", "stranger"}},
	"acquire for parked work":  {"acquire", []any{strangerToken, 10000, 0, "x", "", "", 1}},
	"acquire again":            {"acquire", []any{holderToken, 1, 0, "x", "", ""}},
	"renew":                    {"renew", []any{holderToken, 1}},
	"release by a stranger":    {"release", []any{strangerToken, 0, 0}},
	"release, and stay":        {"release", []any{holderToken, 1, 0, 1, "", "", "", ""}},
	"reserve":                  {"reserve", []any{"", 1, 0}},
	"unreserve":                {"unreserve", []any{"", "9000000000000000"}},
	"downgrade":                {"downgrade", []any{holderToken, readerToken, 1}},
	"raise":                    {"raise", []any{holderToken, 1}},
	"acquire all":              {"acquireall", []any{strangerToken, 10000, 0, "x"}},
}

// PEXPIRE with a time that is over deletes a record: what is written next would stay for
// ever. PTTL answers 0 in a record's last millisecond.
func TestRecord_ARecordThatIsWrittenInItsLastMillisecondExpires(t *testing.T) {
	t.Parallel()
	for name, call := range lastMoment {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, ends := range []string{"record", "lease"} {
				require.Zero(t, lasting(t, ends, 50, store.Sources[call.script], call.args), "records without expiry, of 50, when the %s ends", ends)
			}
		})
	}
}

func TestRecord_TheMutantThatExpiresAtOnceIsCaught(t *testing.T) {
	t.Parallel()
	const floor = "local LEAST = 10\n"
	script := store.Sources["acquire"]
	require.Equal(t, 1, strings.Count(script, floor))
	script = strings.Replace(script, floor, "local LEAST = 0\n", 1)
	require.Positive(t, lasting(t, "record", 400, script, lastMoment["acquire, and do not wait"].args))
}

// lasting calls a script on so many records that end, or whose holder's lease does, at about
// that moment, and returns how many have no expiry afterwards.
func lasting(t *testing.T, ends string, records int, script string, args []any) (n int) {
	t.Helper()
	env := redistest.Real(t)
	ctx, rdb := t.Context(), env.Client(t)
	key := func(i int) string { return store.RecordName(env.Prefix, fmt.Sprint(ends, i)) }
	pipeline := func(add func(pipe redis.Pipeliner, i int)) {
		t.Helper()
		const batch = 50
		for from := 0; from < records; from += batch {
			pipe := rdb.Pipeline()
			for i := range batch {
				add(pipe, from+i)
			}
			_, err := pipe.Exec(ctx)
			require.NoError(t, err)
		}
	}
	acquire := func(pipe redis.Pipeliner, i, lease int) {
		pipe.Eval(ctx, store.Sources["acquire"], []string{key(i)}, holderToken, lease, 0, "x", "", "")
	}
	pipeline(func(pipe redis.Pipeliner, i int) {
		acquire(pipe, i, 60000)
		pipe.Eval(ctx, store.Sources["force"], []string{key(i)}, "", 0) // inflates the record
	})
	pipeline(func(pipe redis.Pipeliner, i int) {
		if ends == "record" {
			pipe.PExpire(ctx, key(i), time.Millisecond)
		} else {
			pipe.Del(ctx, key(i))
			acquire(pipe, i, 1)
		}
		pipe.Eval(ctx, "for i = 1, ARGV[1] do end return 0", nil, rand.N(100000))
		pipe.Eval(ctx, script, []string{key(i)}, args...)
	})
	for i := range records {
		if rdb.PTTL(ctx, key(i)).Val() == -1 {
			n++
		}
	}
	return n
}

// obstacles keep a script from writing a record that is not there yet.
var obstacles = map[string]func(ctx context.Context, rdb *redis.Client, record string) error{
	"a foreign key": func(ctx context.Context, rdb *redis.Client, record string) error {
		return rdb.Set(ctx, record, "x", 0).Err()
	},
	"no memory": func(ctx context.Context, rdb *redis.Client, _ string) error {
		return rdb.ConfigSet(ctx, "maxmemory", "1").Err()
	},
}

// brokenPromises calls an acquireall script on keys for which a call waits, with an obstacle at the first, one in the
// middle or the last of them. It returns how many grants the waiter was sent that are not in their records.
func brokenPromises(t *testing.T, script, token, obstacle string) (broken int) {
	t.Helper()
	const keys = 9
	ctx, rdb := t.Context(), redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	sub := rdb.Subscribe(ctx, "p:wake:waiter")
	defer func() { _ = sub.Close() }()
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	run := func(record, script string, args ...any) {
		require.NoError(t, rdb.Eval(ctx, store.Sources[script], []string{record}, args...).Err())
	}
	rounds := map[string][]string{} // records by that with the obstacle
	for _, at := range []int{0, keys / 2, keys - 1} {
		for _, ended := range []string{"lease", "reservation"} { // a sweep of the first is a write
			name := func(i int) string { return store.RecordName("p", fmt.Sprintf("%s.%d.%d", ended, at, i)) }
			for i := range keys {
				record := name(i)
				rounds[name(at)] = append(rounds[name(at)], record)
				if i == at {
					continue
				}
				if ended == "lease" {
					run(record, "acquire", holderToken, 200, 0, "x", "", "")
				} else {
					run(record, "reserve", "", 200, 0)
				}
				run(record, "acquire", waiterToken, 200, 0, "x", "@", "")
			}
		}
	}
	time.Sleep(300 * time.Millisecond)
	for at, records := range rounds {
		require.NoError(t, obstacles[obstacle](ctx, rdb, at))
		if err := rdb.Eval(ctx, script, records, token, 10000, 0, "x").Err(); obstacle == "a foreign key" {
			require.ErrorContains(t, err, "WRONGTYPE")
		}
	}
	require.NoError(t, rdb.Publish(ctx, "p:wake:waiter", "end").Err())
	for {
		msg, err := sub.ReceiveMessage(ctx)
		require.NoError(t, err)
		if msg.Payload == "end" {
			return broken
		}
		words := strings.Fields(msg.Payload)
		record := store.RecordName("p", words[len(words)-1])
		if !rdb.HExists(ctx, record, "h:"+waiterToken).Val() {
			t.Logf("%s: was sent, and is not in %s", msg.Payload, record)
			broken++
		}
	}
}

// A grant that a waiter was sent must be in its record, also when the script that sent it
// comes upon a key where it can write nothing.
func TestAcquireAll_ThatFailsHasPromisedNothing(t *testing.T) {
	t.Parallel()
	for obstacle := range obstacles {
		for mode, token := range map[string]string{"shared": readerToken, "counted": "3" + strangerToken[1:], "exclusive": strangerToken} {
			t.Run(obstacle+", "+mode, func(t *testing.T) {
				t.Parallel()
				require.Zero(t, brokenPromises(t, store.Sources["acquireall"], token, obstacle))
			})
		}
	}
}

func TestAcquireAll_MutantsThatPromiseTooMuchAreCaught(t *testing.T) {
	t.Parallel()
	for obstacle, m := range map[string][2]string{
		"a foreign key": {"records[i] = read(key)", "records[i] = nil"},             // it does not look at the types first
		"no memory":     {"local written = not exists\n", "local written = true\n"}, // it publishes before it writes
	} {
		requireCaught(t, store.Sources["acquireall"], func(t *testing.T, script string) string {
			return strings.Repeat("a broken promise ", brokenPromises(t, script, readerToken, obstacle))
		}, map[string][2]string{obstacle: m})
	}
}

func TestDescribe_EscapesAsURLsDo(t *testing.T) {
	var all [256]byte
	for i := range all {
		all[i] = byte(i)
	}
	for text := range slices.Chunk(all[:], 100) {
		name, id := string(text), "POST /orders/:id?"+string(text[:min(80, len(text))])
		require.Equal(t, url.PathEscape(name)+";"+url.PathEscape(id), store.Describe(name, id, 15*time.Second))
	}
	require.Equal(t, strings.Repeat("%2F", 100)+";", store.Describe(strings.Repeat("/", 101), "", 15*time.Second), "a long name is cut off")
	require.Empty(t, store.Describe("", "", 15*time.Second))
	require.Equal(t, ";;100", store.Describe("", "", 100*time.Millisecond))
	require.Equal(t, "%3B;%3B;86400000", store.Describe(";", ";", 24*time.Hour))
}
