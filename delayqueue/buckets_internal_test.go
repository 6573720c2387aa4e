package delayqueue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What takes less than half of all bytes is remembered for the whole retention, whenever how much of it ended.
func TestWhatEndedIsRememberedWhileThereIsRoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for range 2 {
			require.NoError(t, remembers(t, env))
		}
	})
}

// remembers ends messages at random times, and returns what was forgotten too early.
func remembers(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	const retention, size, room = time.Hour, 32 << 10, 2 << 20
	rdb := env.Client(t)
	for _, hook := range hooks {
		rdb.AddHook(hook)
	}
	q, err := New(rdb, fmt.Sprint("q", rand.Uint32()), WithPrefix(env.Prefix), WithRetention(retention), WithMaxBytes(2*room), WithMaxPayload(1))
	require.NoError(t, err)
	p := q.partitions[0]
	pass := func(d time.Duration) {
		for _, field := range []string{"since", "until0", "until1", "until2", "until3", "until4"} {
			if ms, err := rdb.HGet(t.Context(), p.keys[keyCounts], field).Int64(); err == nil && ms > 0 {
				require.NoError(t, rdb.HSet(t.Context(), p.keys[keyCounts], field, ms-d.Milliseconds()).Err())
			}
		}
	}
	type past struct {
		id  string
		ago time.Duration
	}
	var all []past
	for n := range 100 {
		d := rand.N(retention / 3)
		pass(d)
		for i := range all {
			all[i].ago += d
		}
		all = slices.DeleteFunc(all, func(p past) bool { return p.ago > 2*retention }) // some take bytes for as long again
		for i := rand.IntN(20); i > 0 && (len(all)+1)*(size*5/4+1000) < room; i-- {
			ticket, err := q.Enqueue(t.Context(), Job{})
			require.NoError(t, err)
			c := claimTest(t, q, fmt.Sprint("token", n, "-", i), 1)
			require.True(t, settleTest(t, c[0], outcome{kind: OutcomeDone, result: make([]byte, size)}))
			all = append(all, past{id: ticket.ID})
		}
		for _, p := range all {
			if p.ago > retention-time.Minute { // the test takes time too
				continue
			}
			if _, err := q.Result(t.Context(), p.id); err != nil {
				return fmt.Errorf("%s ago, of %d: %w", p.ago, len(all), err)
			}
		}
	}
	return nil
}
