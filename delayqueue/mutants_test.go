package delayqueue

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// mutant is a broken script, which the model has to catch.
type mutant struct {
	name     string
	script   string // "": all that have the piece
	old, new string // old stands in the script exactly once
}

var mutants = []mutant{
	{"a settlement without a look at the owner", "settle", "f[1] == 'running' and f[2] == c.token and", "f[1] == 'running' and"},
	{"a settlement that is sent again counts again", "settle", "f[1] == 'running' and f[2] == c.token and", "(f[2] == c.token or redis.call('HGET', record(c.id), 'settled') == c.token) and"},
	{"a settlement forgets what it claimed", "settle", "'payload', '', 'settled', c.token, 'next', nid or '')", "'payload', '', 'settled', c.token, 'next', '')"},
	{"a settlement forgets itself", "settle", "'due', at, 'settled', c.token,", "'due', at,"},
	{"a conflict spends an attempt", "settle", "redis.call('HSET', record(id), 'attempts', math.max(0, m.attempts - 1))", ""},
	{"a message that is handed back is not counted", "settle", "redis.call('HSET', record(id), 'handed', m.handed + 1)", ""},
	{"a retry loses its place", "settle", "    make_due(member, at, life(m))\n", "    make_due(member, at, life(m))\n    if key ~= '' then\n      redis.call('LREM', line(key), 1, id)\n      redis.call('RPUSH', line(key), id)\n      advance(key)\n    end\n"},
	{"a nudge during the settlement is lost", "settle", "if c.awaits == 1 and m.nudged then", "if false then"},
	{"the next of a key before its time", "settle", "or m.not_after > now and m.due > now and not m.wait then", "then"},
	{"the next of a key twice", "settle", "      redis.call('ZREM', due, member)\n      redis.call('ZREM', open, member)\n", ""},
	{"a claim without a receipt", "claim", "redis.call('SET', receipt, table.concat(ids, ' '), 'PX', lease)", ""},
	{"ended claims are not redelivered", "claim", "local ended = redis.call('ZRANGEBYSCORE', running, '-inf', now, 'LIMIT', 0, STEPS)", "local ended = {}"},
	{"a loss is not counted", "claim", "redis.call('HSET', record(id), 'losses', m.losses + 1)", ""},
	{"attempts without end", "claim", "if m.attempts >= max_attempts then", "if false then"},
	{"attempts are not counted", "", "m.attempts = m.attempts + 1", ""},
	{"the line is not looked at", "enqueue", "if key == '' or redis.call('RPUSH', line(key), id) == 1 then", "if key ~= '' then\n    redis.call('RPUSH', line(key), id)\n  end\n  if true then"},
	{"one id twice", "enqueue", "if redis.call('EXISTS', record(id)) == 1 then", "if false then"},
	{"a delay is not waited for", "enqueue", "not_after, at = now + max_age, now + delay", "not_after, at = now + max_age, now"},
	{"what is too old is run", "", "elseif m.not_after <= now then", "elseif false then"},
	{"what is too old never expires", "", "    elseif m then\n      give_up(member, id, key, 'expired')", "    elseif m then"},
	{"the next of a key does not become due", "", "    drop(id, key)\n    advance(key)\n", "    drop(id, key)\n"},
	{"a nudge leaves no mark", "nudge", "redis.call('HSET', record(id), 'nudged', 1)", ""},
	{"a nudge wakes nobody", "nudge", "make_due(id .. ' ' .. key, now, life(m))", ""},
	{"an extension without a look at the owner", "extend", "if m and owned(id, m, token) then", "if m and m.state == 'running' then"},
	{"what runs is cancelled", "cancel", "if m and m.state == 'queued' then\n    give_up(id", "if m then\n    give_up(id"},
}

func sources() map[string]string {
	return map[string]string{
		"enqueue": enqueueScript.Source(), "claim": claimScript.Source(), "extend": extendScript.Source(),
		"settle": settleScript.Source(), "nudge": nudgeScript.Source(), "cancel": cancelScript.Source(),
	}
}

// tries is how often a mutant may get away.
const tries = 100

func TestMutantsAreCaught(t *testing.T) {
	var caught atomic.Int64
	want := int64(0)
	t.Run("scripts", func(t *testing.T) {
		for _, m := range mutants {
			want++
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				env := redistest.Real(t)
				hook, used := redistest.BreakScript(t, sources(), m.script, m.old, m.new)
				var found *violation
				for range tries {
					seed := rand.Uint64N(1e9)
					_, err := playModel(t, env, seed, 120, hook)
					if err == nil {
						continue
					}
					require.ErrorAs(t, err, &found, "the script runs")
					t.Logf("%s: %v (seed %d)", m.name, err, seed)
					caught.Add(1)
					return
				}
				require.Positive(t, used.Load(), "the mutant ran")
				t.Error("not caught")
			})
		}
	})
	if !t.Failed() {
		require.Equal(t, want, caught.Load())
	}
	t.Logf("mutants caught: %d of %d", caught.Load(), want)
}
