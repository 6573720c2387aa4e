package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// Entries as a Locker writes them.
const (
	holderEntry   = "1:holder.00000000000000000000000000000001"
	strangerEntry = "1:stranger.00000000000000000000000000000002"
	readerEntry   = "0:reader.00000000000000000000000000000003"
	waiterEntry   = "0:waiter.00000000000000000000000000000004"
)

// lastMoment calls scripts on a record that a holder has.
var lastMoment = map[string]struct {
	script string
	args   []any
}{
	"acquire, and do not wait": {"acquire", []any{strangerEntry, 10000, "x", "", ""}},
	"acquire, and watch":       {"acquire", []any{strangerEntry, 10000, "x", "", "stranger"}},
	"acquire for parked work":  {"acquire", []any{strangerEntry, 10000, "x", "", "", 1}},
	"acquire again":            {"acquire", []any{holderEntry, 1, "x", "", ""}},
	"renew":                    {"renew", []any{holderEntry, 1}},
	"release by a stranger":    {"release", []any{strangerEntry, 0, 0, "", "", "", ""}},
	"release, and stay":        {"release", []any{holderEntry, 1, 1, "", "", "", ""}},
	"reserve":                  {"reserve", []any{"", 1}},
	"unreserve":                {"unreserve", []any{"", "9000000000000000"}},
	"downgrade":                {"downgrade", []any{holderEntry, readerEntry, 1}},
	"raise":                    {"raise", []any{holderEntry, 1}},
	"acquire all":              {"acquireall", []any{strangerEntry, 10000, "x"}},
}

// PEXPIRE with a time that is over deletes a record: what is written next would stay for
// ever. PTTL answers 0 in a record's last millisecond.
func TestARecordThatIsWrittenInItsLastMillisecondExpires(t *testing.T) {
	t.Parallel()
	for name, call := range lastMoment {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
			for _, ends := range []string{"record", "lease"} {
				require.Zero(t, lasting(t, rdb, ends, core.Scripts[call.script], call.args), "records without expiry, of %d, when the %s ends", lastRecords, ends)
			}
		})
	}
}

func TestTheMutantThatExpiresAtOnceIsCaught(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
	const floor = "local LEAST = 10\n"
	script := core.Scripts["acquire"]
	require.Equal(t, 1, strings.Count(script, floor))
	script = strings.Replace(script, floor, "local LEAST = 0\n", 1)
	require.Positive(t, lasting(t, rdb, "record", script, lastMoment["acquire, and do not wait"].args))
}

const lastRecords = 400

// lasting calls a script on many records that end, or whose holder's lease does, at about
// that moment, and returns how many have no expiry afterwards.
func lasting(t *testing.T, rdb *redis.Client, ends, script string, args []any) (n int) {
	t.Helper()
	ctx := t.Context()
	key := func(i int) string { return core.RecordName("p", fmt.Sprint(ends, i)) }
	pipeline := func(add func(pipe redis.Pipeliner, i int)) {
		t.Helper()
		const batch = 50
		for from := 0; from < lastRecords; from += batch {
			pipe := rdb.Pipeline()
			for i := range batch {
				add(pipe, from+i)
			}
			_, err := pipe.Exec(ctx)
			require.NoError(t, err)
		}
	}
	acquire := func(pipe redis.Pipeliner, i, lease int) {
		pipe.Eval(ctx, core.Scripts["acquire"], []string{key(i)}, holderEntry, lease, "x", "", "")
	}
	pipeline(func(pipe redis.Pipeliner, i int) { acquire(pipe, i, 60000) })
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
	for i := range lastRecords {
		if rdb.PTTL(ctx, key(i)).Val() == -1 {
			n++
		}
	}
	return n
}

// A key's record that somebody overwrites costs its holder the lease, and nobody else.
func TestAnOverwrittenRecordCostsNoOtherLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const leases, overwritten = 200, 5
		const ttl = 3 * time.Second
		l, rdb := newLocker(t, env, core.WithTTL(ttl)), env.Client(t)
		held := make([]*core.Lease, leases)
		for i := range held {
			var err error
			held[i], err = l.TryAcquire(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		for i := range overwritten {
			require.NoError(t, rdb.Set(t.Context(), core.RecordName(env.Prefix, fmt.Sprint(i*leases/overwritten)), "x", 0).Err())
		}
		time.Sleep(3 * ttl / 2)
		for i, lease := range held {
			if i%(leases/overwritten) == 0 {
				require.ErrorIs(t, context.Cause(lease.Context()), core.ErrLeaseLost)
			} else {
				assert.NoError(t, context.Cause(lease.Context()))
			}
		}
	})
}

// A grant that a waiter was sent must be in its record, also when the script that sent it
// comes upon a key where it can write nothing.
func TestAcquireAllThatFailsHasPromisedNothing(t *testing.T) {
	t.Parallel()
	const keys = 10
	for name, spoil := range map[string]func(ctx context.Context, rdb *redis.Client, free string) error{
		"a foreign key": func(ctx context.Context, rdb *redis.Client, free string) error {
			return rdb.Set(ctx, free, "x", 0).Err()
		},
		"memory is full": func(ctx context.Context, rdb *redis.Client, _ string) error {
			return rdb.ConfigSet(ctx, "maxmemory", "1").Err()
		},
	} {
		for at, place := range map[int]string{0: "first", keys: "last"} {
			t.Run(name+", "+place, func(t *testing.T) {
				t.Parallel()
				ctx, rdb := t.Context(), redistest.Client(t, &redis.Options{Addr: redistest.Start(t).Addr})
				sub := rdb.Subscribe(ctx, "p:wake:waiter")
				defer func() { _ = sub.Close() }()
				_, err := sub.Receive(ctx)
				require.NoError(t, err)
				// Each key was held, or reserved, until just now, and one waits.
				all := make([]string, keys+1)
				for i := range all {
					all[i] = core.RecordName("p", fmt.Sprint(i))
					if i != at {
						run := func(script string, args ...any) {
							require.NoError(t, rdb.Eval(ctx, core.Scripts[script], []string{all[i]}, args...).Err())
						}
						if name == "a foreign key" {
							run("acquire", holderEntry, 200, "x", "", "")
						} else {
							run("reserve", "", 200)
						}
						run("acquire", waiterEntry, 200, "x", "@", "")
					}
				}
				time.Sleep(300 * time.Millisecond)
				require.NoError(t, spoil(ctx, rdb, all[at]))
				_, err = rdb.Eval(ctx, core.Scripts["acquireall"], all, readerEntry, 10000, "x").Result()
				require.NoError(t, rdb.Publish(ctx, "p:wake:waiter", "end").Err())
				for {
					msg, err := sub.ReceiveMessage(ctx)
					require.NoError(t, err)
					if msg.Payload == "end" {
						break
					}
					words := strings.Fields(msg.Payload)
					record := core.RecordName("p", words[len(words)-1])
					assert.True(t, rdb.HExists(ctx, record, "h:"+waiterEntry).Val(), "%s: was sent, and is not in %s", msg.Payload, record)
				}
				if name == "a foreign key" {
					require.ErrorContains(t, err, "WRONGTYPE")
				}
			})
		}
	}
}
