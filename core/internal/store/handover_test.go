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
	"fast":  func() time.Duration { return 200 * time.Millisecond },
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
			require.GreaterOrEqual(t, shortestLife(t, store.Sources["release"], 3*aged, step), store.WaiterLife-aged)
		})
	}
}

func TestHandOver_MutantsWhoseRecordExpiresAreCaught(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, release string) string {
		if shortestLife(t, release, 12*aged, handOverSteps["slow"]) < store.WaiterLife-aged {
			return "it expires"
		}
		return ""
	}
	requireCaught(t, store.Sources["release"], check, map[string][2]string{
		"never":    {"      redis.call('PEXPIRE', key, CLAIM + ALIVE)\n", ""},
		"seldom":   {"math.floor((alive - ALIVE) / AGED) < math.floor(now / AGED)", "math.floor((alive - ALIVE) / AGED / 10) < math.floor(now / AGED / 10)"},
		"too soon": {"      redis.call('PEXPIRE', key, CLAIM + ALIVE)\n", "      redis.call('PEXPIRE', key, CLAIM)\n"},
	})
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
	for _, forbidden := range []bool{false, true} {
		check := func(t *testing.T, release string) string { return handOverToNobody(t, release, forbidden) }
		require.Empty(t, check(t, release))
		requireCaught(t, release, check, map[string][2]string{
			"who releases is forgotten": {"    redis.call('HSET', key, 'h:' .. token, its[1]) -- nobody was told\n", ""},
			"who is not told holds it":  {"    if sent then\n      redis.call('HSET'", "    if true then\n      redis.call('HSET'"},
		})
	}
	gone := "[2]) ~= 0"
	require.Equal(t, 2, strings.Count(release, gone), "in a hand-over, and for all others")
	require.NotEmpty(t, handOverToNobody(t, strings.Replace(release, gone, "[2]) ~= -1", 1), false), "who is gone holds it")
}

// requireCaught has a check find something wrong with a script, a piece of which another replaces.
func requireCaught(t *testing.T, script string, check func(t *testing.T, script string) (wrong string), mutants map[string][2]string) {
	t.Helper()
	for name, m := range mutants {
		require.Equal(t, 1, strings.Count(script, m[0]), name)
		require.NotEmpty(t, check(t, strings.Replace(script, m[0], m[1], 1)), name)
	}
}
