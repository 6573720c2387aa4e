package store_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// aged is AGED of lua/constants.lua.
const aged = 10 * time.Second

// shortestLife has processes hand a key over to one another for a while of the server's time, each of which waits for
// it again at once. It returns the shortest time that the record was to last after a hand-over, zero if it expired. It
// is long since it is one story.
func shortestLife(t *testing.T, release string, while time.Duration, step func() time.Duration) (shortest time.Duration) {
	t.Helper()
	ctx, m := t.Context(), miniredis.RunT(t)
	rdb := redistest.Client(t, &redis.Options{Addr: m.Addr()})
	now := time.Now()
	m.SetTime(now)
	const processes = 4
	record, channels := store.RecordName("p", "k"), []string(nil)
	for i := range processes {
		channels = append(channels, fmt.Sprintf("p:wake:%d", i))
	}
	sub := rdb.Subscribe(ctx, channels...)
	defer func() { _ = sub.Close() }()
	for range processes {
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
	}
	grants, n := sub.Channel(), 0
	token := func(process int) string {
		n++
		return fmt.Sprintf("1:%d.%024d", process, n)
	}
	run := func(script string, args ...any) any {
		t.Helper()
		reply, err := rdb.Eval(ctx, script, []string{record}, args...).Result()
		require.NoError(t, err)
		return reply
	}
	waiting := map[string]string{} // tokens by what messages call them
	wait := func(process int) string {
		e := token(process)
		waiting[store.Named(e)] = e
		return e
	}
	holder := token(0)
	run(store.Sources["acquire"], holder, 10000, 0, "x", "", "")
	for i := 1; i < processes; i++ {
		run(store.Sources["acquire"], wait(i), 10000, 0, "x", "@", "")
	}
	shortest = time.Hour
	for end := now.Add(while); now.Before(end); {
		d := step()
		now = now.Add(d)
		m.SetTime(now)
		m.FastForward(d)
		process := strings.TrimPrefix(strings.Split(holder, ".")[0], "1:")
		next := wait(int(process[0] - '0'))
		if reply := run(release, holder, now.UnixMicro()-1, 0, 0, next, "@", "x", "1"); reply.([]any)[0] == int64(0) {
			return 0
		}
		for holder = ""; holder == ""; {
			var words []string
			select {
			case m := <-grants:
				words = strings.Fields(m.Payload)
			case <-time.After(5 * time.Second):
				t.Fatal("nobody was granted the key")
			}
			if words[0] == "grant" {
				holder = waiting[words[1]]
			}
		}
		left := m.TTL(record)
		shortest = min(shortest, left)
		if left == 0 {
			return 0
		}
	}
	return shortest
}

var handOverSteps = map[string]func() time.Duration{
	"fast":  func() time.Duration { return 50 * time.Millisecond },
	"slow":  func() time.Duration { return 900 * time.Millisecond },
	"mixed": func() time.Duration { return rand.N(900 * time.Millisecond) },
}

// A hand-over sets the record's expiry only now and then. The record has to outlast a process that
// dies with its claim, and those who wait, who look after it every 5 s.
func TestHandOver_TheRecordLastsWhileItIsHandedOver(t *testing.T) {
	t.Parallel()
	for name, step := range handOverSteps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.GreaterOrEqual(t, shortestLife(t, store.Sources["release"], 5*aged, step), store.WaiterLife-aged)
		})
	}
}

func TestHandOver_MutantsWhoseRecordExpiresAreCaught(t *testing.T) {
	t.Parallel()
	release := store.Sources["release"]
	for name, m := range map[string]struct{ old, new string }{
		"never":    {"      redis.call('PEXPIRE', key, CLAIM + ALIVE)\n", ""},
		"seldom":   {"math.floor((alive - ALIVE) / AGED) < math.floor(now / AGED)", "math.floor((alive - ALIVE) / AGED / 10) < math.floor(now / AGED / 10)"},
		"too soon": {"      redis.call('PEXPIRE', key, CLAIM + ALIVE)\n", "      redis.call('PEXPIRE', key, CLAIM)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, 1, strings.Count(release, m.old))
			require.Less(t, shortestLife(t, strings.Replace(release, m.old, m.new, 1), 12*aged, handOverSteps["slow"]), store.WaiterLife-aged)
		})
	}
}

// handOverToNobody has a holder release a key for which a locker waits that cannot be told, and says what is
// wrong with it: "" if nothing is.
func handOverToNobody(t *testing.T, release string, forbidden bool) (wrong string) {
	t.Helper()
	ctx, rdb := t.Context(), redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	record := store.RecordName("p", "k")
	acquire := func(token, mark string) {
		require.NoError(t, rdb.Eval(ctx, store.Sources["acquire"], []string{record}, token, 10000, 0, "x", mark, "").Err())
	}
	acquire(holderToken, "")
	acquire(strangerToken, "@")
	if forbidden {
		sub := rdb.Subscribe(ctx, "p:wake:stranger")
		t.Cleanup(func() { _ = sub.Close() })
		_, err := sub.Receive(ctx)
		require.NoError(t, err)
		redistest.AddUser(t, rdb, "mute", []string{"~*", "+@all", "-publish"})
		rdb = redistest.Client(t, &redis.Options{Addr: rdb.Options().Addr, Username: "mute", Password: redistest.Password})
	}
	used := time.Now().UnixMicro()
	time.Sleep(time.Millisecond)
	reply, err := rdb.Eval(ctx, release, []string{record}, holderToken, used, 1).Result()
	if err != nil || reply != int64(1) {
		return fmt.Sprintf("the holder is told %v, %v", reply, err)
	}
	waits := rdb.HGet(ctx, record, "queue").Val() != ""
	if held := rdb.HGet(ctx, record, "held").Val() == "1"; held || waits != forbidden {
		return fmt.Sprintf("held: %v, somebody waits: %v", held, waits)
	}
	return ""
}

// A waiter that is gone is passed over; one that cannot be told is granted the key when it asks.
func TestHandOver_ToNobody(t *testing.T) {
	t.Parallel()
	release := store.Sources["release"]
	mutants := []struct{ name, old, new string }{
		{"who releases is forgotten", "    redis.call('HSET', key, 'h:' .. token, its[1]) -- nobody was told\n", ""},
		{"who is not told holds it", "    if sent then\n      redis.call('HSET'", "    if true then\n      redis.call('HSET'"},
	}
	for _, forbidden := range []bool{false, true} {
		require.Empty(t, handOverToNobody(t, release, forbidden))
		for _, m := range mutants {
			require.Equal(t, 1, strings.Count(release, m.old), m.name)
			require.NotEmpty(t, handOverToNobody(t, strings.Replace(release, m.old, m.new, 1), forbidden), m.name)
		}
	}
	gone := "[2]) ~= 0"
	require.Equal(t, 2, strings.Count(release, gone), "in a hand-over, and for all others")
	require.NotEmpty(t, handOverToNobody(t, strings.Replace(release, gone, "[2]) ~= -1", 1), false), "who is gone holds it")
}

// handOverMessage has a holder release a key for which others wait, and compares the message to the next with its record. It says
// what is wrong: "" if nothing is.
func handOverMessage(t *testing.T, release string, used int64, others bool) (wrong string) {
	t.Helper()
	env := redistest.Embedded(t)
	ctx, rdb, key := t.Context(), env.Client(t), "a key"
	sub := rdb.Subscribe(ctx, env.Prefix+":wake:stranger")
	defer func() { _ = sub.Close() }()
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	record, more := store.RecordName(env.Prefix, key), "0"
	run := func(script string, args ...any) {
		require.NoError(t, rdb.Eval(ctx, script, []string{record}, args...).Err())
	}
	run(store.Sources["acquire"], holderToken, 10000, 0, "x", "", "")
	run(store.Sources["acquire"], strangerToken, 10000, 0, "x", "@", "")
	if others {
		run(store.Sources["acquire"], "1:third.000000000000000000000003", 10000, 0, "x", "@", "")
		more = "1"
	}
	time.Sleep(time.Millisecond)
	run(release, holderToken, used, 1)
	holder := rdb.HGet(ctx, record, "h:"+strangerToken).Val()
	if holder == "" {
		return "nobody holds the key"
	}
	claim, _, _ := strings.Cut(holder, " ")
	want := strings.Join([]string{"grant", store.Named(strangerToken), rdb.HGet(ctx, record, "fence").Val(), claim, more, key}, " ")
	msg, err := sub.ReceiveTimeout(ctx, 5*time.Second)
	require.NoError(t, err)
	if got := msg.(*redis.Message).Payload; got != want {
		return fmt.Sprintf("the message is %q, the record says %q", got, want)
	}
	return ""
}

// A release grants the key to the next in one of two ways; see release.lua.
func TestHandOver_TheMessageSaysWhatTheRecordDoes(t *testing.T) {
	t.Parallel()
	release := store.Sources["release"]
	for _, others := range []bool{false, true} {
		for used := range int64(2) {
			require.Empty(t, handOverMessage(t, release, used, others))
		}
		for old, replacement := range map[string]string{
			"string.sub(e, 1, -SECRET - 1) .. ' ' .. fence": "e .. ' ' .. fence",
			"' ' .. fence .. ' ' .. claim .. ' ' .. more":   "' ' .. used .. ' ' .. claim .. ' ' .. more",
			"' ' .. claim .. ' ' .. more":                   "' ' .. now .. ' ' .. more",
			"more .. ' ' .. name":                           "2 .. ' ' .. name",
			"' ' .. name)) and true":                        "' k')) and true",
		} {
			require.Equal(t, 2, strings.Count(release, old), old)
			require.NotEmpty(t, handOverMessage(t, strings.ReplaceAll(release, old, replacement), 1, others), old)
		}
	}
}
