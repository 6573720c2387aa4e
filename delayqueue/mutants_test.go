package delayqueue

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

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
	{"a settlement without a look at the owner", "settle", "if state and (state == 'r' .. ARGV[i + 3] or state == 'R' .. ARGV[i + 3]) then", "if state and (string.sub(state, 1, 1) == 'r' or string.sub(state, 1, 1) == 'R') then"},
	{"a settlement that is sent again counts again", "settle", "if state and (state == 'r'", "if state and (string.match(state, '%S+ (%S+) %S*$') == short(string.match(ARGV[i + 3], '^%d+ %d+ %d+ %d+ (%S+)') or '') or state == 'r'"},
	{"a settlement forgets what it claimed", "settle", "(%S+)') or ''] = ids[i]", "(%S+)') or ''] = nil"},
	{"a settlement forgets itself", "settle", "msg.token, msg.settled = '', short(msg.token)", "msg.token = ''"},
	{"a settlement of what is done forgets itself", "settle", "if ending and token ~= '' and sub(ending, 13, 18) == short(token) then", "if false then"},
	{"a conflict spends an attempt", "settle", "msg.attempts = math.max(0, msg.attempts - 1)", ""},
	{"a conflict is not counted", "settle", "msg.conflicts = msg.conflicts + 1", ""},
	{"a message that is handed back is not counted", "settle", "at, msg.handed = math.max(now, at - at % SLOT), msg.handed + 1", "at = math.max(now, at - at % SLOT)"},
	{"a retry loses its place", "settle", "  look_at(msg.member, math.min(at, tonumber(not_after)))\n", "  look_at(msg.member, math.min(at, tonumber(not_after)))\n  if msg.key ~= '' then\n    call('ZREM', z, msg.member)\n    call('ZADD', f, 0, msg.key .. '\\n~' .. msg.id)\n    call('ZREM', f, msg.key .. '\\n' .. msg.seq .. msg.id)\n    join(msg)\n    to_key(msg.key)\n  end\n"},
	{"a wake during the settlement is lost", "settle", "if waits and msg.flag == 'R' then", "if false then"},
	{"what was tried counts as fresh", "", "if head and rec and not states[i] then", "if head and rec then"},
	{"the next of a key is not claimed", "settle", "{1, follow(key, ARGV[i + 5])}", "1"},
	{"a claim without a receipt", "claim", "note(session, NOW .. ' ' .. turn .. ' ' .. table.concat(ids, ' '))", ""},
	{"ended claims are not redelivered", "claim", "ipairs(call('ZRANGEBYSCORE', w, '-inf', NOW, 'LIMIT', '0', STEPS))", "ipairs({})"},
	{"a loss is not counted", "claim", "msg.losses, msg.token = msg.losses + 1, ''", "msg.token = ''"},
	{"a lost claim's token stays", "", "  return flag .. msg.attempts .. ' '", "  if flag == '-' then\n    return 'r' .. msg.attempts .. ' ' .. msg.conflicts .. ' ' .. msg.losses .. ' ' .. msg.handed .. ' token1 ' .. msg.settled .. ' ' .. msg.cause\n  end\n  return flag .. msg.attempts .. ' '"},
	{"attempts without end", "claim", "if msg.attempts >= max_attempts then", "if false then"},
	{"attempts are not counted", "", "msg.attempts, msg.token = msg.attempts + 1, token", "msg.token = token"},
	{"the FIFO is not looked at", "enqueue", "if key == '' or delayed or not headed[key] then", "if true then"},
	{"a delayed message is the head", "enqueue", "append(admitted.f, 0, delayed and key .. '\\n~' .. id or", "append(admitted.f, 0,"},
	{"a delayed message joins in front", "", "msg.seq = next_seq()", "msg.seq = string.rep('0', 16)"},
	{"one id twice", "enqueue", "known[id] = records[i] and", "known[id] = nil and"},
	{"an id that ended twice", "enqueue", "if ending then", "if false then"},
	{"a delay is not waited for", "enqueue", "delay > 0 and at or nil)", "nil)"},
	{"what is too old is run", "", "tonumber(not_after) > now and tonumber(kl, 10)", "tonumber(kl, 10)"},
	{"what is too old never expires", "", "    elseif msg.not_after <= now and not is_running(msg) then\n      give_up(msg, 'e')\n", "    elseif msg.not_after <= now and not is_running(msg) then\n"},
	{"the next of a key does not become due", "", "  call('ZREM', f, key .. '\\n' .. (number or '') .. id, key .. '\\n~' .. id)\n  to_key(key)\n", "  call('ZREM', f, key .. '\\n' .. (number or '') .. id, key .. '\\n~' .. id)\n"},
	{"the next of what is done does not become due", "settle", "batch('ZADD', z, heads)", ""},
	{"a message stays when it is done", "settle", "batch('HDEL', m, done)", ""},
	{"a message stays in its FIFO when it is done", "settle", "batch('ZREM', f, places)", ""},
	{"a wake leaves no mark", "wake", "call('HSET', r, id, 'R' .. string.sub(state, 2))", ""},
	{"a wake wakes nobody", "wake", "look_at(id .. ' ' .. key, now)", ""},
	{"a wake wakes what waits for its time", "wake", "elseif ARGV[3] == '1' and flag == 'w' then", "elseif ARGV[3] == '1' and (flag == 'w' or flag == '-') then"},
	{"an extension without a look at the owner", "extend", "string.match(state, '^[rR](.*)$') == ARGV[at + 2] and 1", "string.match(state, '^[rR](.*)$') and 1"},
	{"what runs is cancelled", "cancel", "if state == 'queued' then", "if msg and msg.member then"},
	{"what is cancelled stays", "", "  forget(msg.id)\n  call('HSET', ended_bucket()", "  call('HSET', ended_bucket()"},
}

// What only a change of the number of partitions shows.
var repartitionMutants = []mutant{
	{"a closed partition takes what is new", "enqueue", "not known[id] and (closed or refusal(key))", "not known[id] and refusal(key)"},
	{"what is newer does not wait", "close", "told[i] = math.min(1, #line(ARGV[i], '1'))", "told[i] = 0"},
	{"what joins late is run", "", "local CLOCK = closed and NOW .. ' ' .. closed or NOW", "local CLOCK = NOW"},
	{"what is carried over stays", "settle", "      leave(id, key, msg.seq)\n      forget(id)\n", "      look_at(msg.member, now)\n      call('HSET', r, id, attempts(msg, '-'))\n"},
	{"what is carried over is lost", "adopt", "if not known and not closed then", "if false then"},
}

func TestMutantsOfARepartitionAreCaught(t *testing.T) {
	t.Parallel()
	for _, m := range repartitionMutants {
		t.Run(m.name, func(t *testing.T) {
			env := redistest.Real(t)
			hook, used := redistest.BreakScript(t, sources(), m.script, m.old, m.new)
			for range 5 {
				seed := rand.Uint64N(1e9)
				if err := repartitions(t, env, seed, 60, 3*time.Second, hook); err != nil {
					require.ErrorIs(t, err, errHistory)
					t.Logf("%s: %v (seed %d)", m.name, err, seed)
					return
				}
			}
			require.Positive(t, used.Load(), "the mutant ran")
			t.Error("not caught")
		})
	}
}

func sources() map[string]string {
	return map[string]string{
		"enqueue": enqueueScript.Source(), "claim": claimScript.Source(), "extend": extendScript.Source(),
		"settle": settleScript.Source(), "wake": wakeScript.Source(), "cancel": cancelScript.Source(),
		"close": closeScript.Source(), "adopt": adoptScript.Source(),
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
