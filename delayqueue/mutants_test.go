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
	{"a settlement without a look at the owner", "settle", "if not is_running(state) or sub(state, 2) ~= tries then", "if not is_running(state) then"},
	{"a settlement that is sent again counts again", "settle", "if not is_running(state) or sub(state, 2) ~= tries then", "if (not is_running(state) or sub(state, 2) ~= tries) and not (state and sub(state, 2, 7) == sub(text, 1, 6)) then"},
	{"a settlement forgets what it claimed", "settle", "(%S+)') or ''] = ids[i]", "(%S+)') or ''] = nil"},
	{"a settlement forgets itself", "settle", "(waits and 'w' or '-') .. tries)", "(waits and 'w' or '-') .. '------' .. sub(tries, 7))"},
	{"a settlement of what is done forgets itself", "settle", "{9, 12, 13, 14, 15, 16}", "{9}"},
	{"a retry loses its place", "settle", "  append(times, next, member)\n", "  append(times, next, member)\n  local _, key = split(member)\n  if key ~= '' then\n    join(id, key)\n    freed[#freed + 1] = #replies\n  end\n"},
	{"a wake during the settlement is lost", "settle", "elseif waits and sub(state, 1, 1) == 'R' then", "elseif false then"},
	{"what was tried counts as fresh", "", "      if state then\n", "      if false then\n"},
	{"the next of a key is not claimed", "settle", "    want(id, id .. ' ' .. key, first, token, NOW)\n", ""},
	{"a claim without a receipt", "claim", "note(session, NOW .. ' ' .. turn .. ' ' .. table.concat(ids, ' '))", ""},
	{"ended claims are not redelivered", "claim", "ipairs(call('ZRANGEBYSCORE', w, '-inf', NOW, 'LIMIT', '0', STEPS))", "ipairs({})"},
	{"a loss is not counted", "claim", "losses + 1 .. ' '", "losses .. ' '"},
	{"a lost claim goes on", "claim", "call('HSET', r, id, '-' .. (mark and", "call('HSET', r, id, 'r' .. (mark and"},
	{"attempts are not counted", "", "mark .. attempts + 1 .. ' '", "mark .. attempts .. ' '"},
	{"the FIFO is not looked at", "enqueue", "if key == '' or delayed or not headed[key] then", "if true then"},
	{"a delayed message is the head", "enqueue", "append(admitted.f, 0, delayed and key .. '\\n' .. (mark or '~') .. id or", "append(admitted.f, 0,"},
	{"a delayed message joins in front", "", "local number, rec = next_seq(),", "local number, rec = string.rep('0', 16),"},
	{"one id twice", "enqueue", "known[ids[i]] = rec and", "known[ids[i]] = nil and"},
	{"an id that ended twice", "enqueue", "if ending then", "if false then"},
	{"a delay is not waited for", "enqueue", "tonumber(delay) > 0 and at, nil, most", "false, nil, most"},
	{"what is too old is run", "", "elseif too_old(rec) then", "elseif false then"},
	{"what is too old never expires", "", "      give_up(id, sub(member, #id + 2), rec, 'e')\n", ""},
	{"the next of a key does not become due", "", "and not call('ZSCORE', z, member) then\n    look_at(member, now)\n", "and not call('ZSCORE', z, member) then\n"},
	{"the next of what is done does not become due", "settle", "    append(times, NOW, id .. ' ' .. key)\n", ""},
	{"a message stays when it is done", "settle", "batch('HDEL', m, gone)", ""},
	{"a message stays in its FIFO when it is done", "settle", "batch('ZREM', f, places)", ""},
	{"a wake leaves no mark", "wake", "call('HSET', r, id, 'R' .. sub(state, 2))", ""},
	{"a wake wakes nobody", "wake", "sub(state, 2))\n    look_at(member, now)", "sub(state, 2))"},
	{"a wake wakes what waits for its time", "wake", "if wake and flag == 'w' then", "if wake and (flag == 'w' or flag == '-') then"},
	{"an extension without a look at the owner", "extend", "if state == 'r' .. tries or state == 'R' .. tries then", "if state and match(state, '^[rR]') then"},
	{"what runs is cancelled", "cancel", "not is_running(call('HGET', r, id))", "true"},
	{"what is cancelled stays", "", "for _, name in ipairs({r, m, b}) do", "for _, name in ipairs({r, b}) do"},
	{"what a handler was given is replaced", "enqueue", "match(state, '^[w-]......0 %d+ 0 0 ') and", "not is_running(state) and"},
	{"what runs is replaced", "enqueue", "match(state, '^[w-]......0 %d+ 0 0 ') and", "match(state, '^.......[01] %d+ 0 0 ') and"},
	{"what is too old is replaced", "enqueue", "and not too_old(rec) and call('HEXISTS', y, id) == 0", ""},
	{"a replaced message stays", "enqueue", "  discard(old, key, old_rec, 's', id)\n", ""},
	{"a replaced message keeps its place", "enqueue", "  call('ZREM', f, key .. '\\n' .. place .. old)\n", ""},
	{"what replaces is put at the end", "enqueue", ".. sub(old_rec, 4, 19) .. text, body,", ".. next_seq() .. text, body,"},
	{"what replaces has no time", "enqueue", "  if due then\n", "  if false then\n"},
	{"what replaces is due at once", "enqueue", "place == '\\127' and till or due)", "now)"},
	{"what replaces is not put off", "enqueue", "place == '\\127' and till or due)", "due)"},
	{"what replaces does not wait for the key", "enqueue", "  if state ~= UNTRIED then\n", "  if false then\n"},
	{"what is quiet is delayed only", "enqueue", "nil, most and '\\127')", "nil, nil)"},
	{"what is quiet reserves nothing", "wake", "  return #call('ZRANGEBYLEX'", "  return 0 * #call('ZRANGEBYLEX'"},
	{"a replaceable message is not known", "enqueue", "append(admitted.u, slot, id)", ""},
	{"only the first is replaced", "enqueue", "  call('HSET', u, slot, id)\n", ""},
	{"principals replace one another", "enqueue", "tonumber(sub(flags, 2)), 's' .. text", "tonumber(sub(flags, 2)), 's' .. key"},
	{"what is done can be replaced", "settle", "  settle_slot(slots[i], slots[i + 1])\n", ""},
	{"what is cancelled can be replaced", "", "settle_slot(id, match(rec, '^1[qc]')", "settle_slot('', match(rec, '^1[qc]')"},
	{"what is given back stays beside what is newer", "settle", "      if by then\n", "      if false then\n"},
	{"what is given back, newer or not, is replaced", "settle", "by and by ~= id and call", "by and call"},
	{"bytes of what comes are not counted", "enqueue", "      count('bytes', bytes)\n", ""},
	{"bytes of what comes are not counted for its key", "enqueue", "      occupy(key, principal, bytes)\n", ""},
	{"bytes of what is done stay", "settle", "    count('bytes', -bytes)\n", ""},
	{"bytes of what is done stay its key's", "settle", "  occupy(key, principal, -bytes)\n", ""},
	{"a dead letter has no bytes", "settle", "    count('bytes', ending_size(#text))\n", ""},
	{"bytes of what is given up stay", "", "  count('bytes', -size)\n", ""},
	{"bytes of what is given up stay its key's", "", "  occupy(key, principal, -size)\n", ""},
	{"a long payload has no bytes when it is given up", "", "sub(rec, 3, 3) == 'b' and call('HSTRLEN', b, id) or 0", "0"},
	{"what ended has no bytes", "", "redis.pcall('HINCRBY', c, 'ended' .. at, bytes)", "0"},
	{"a dead letter halts nothing", "settle", "append(halts, key, sub(options, 4, 4) .. id)", ""},
	{"what is halted is run", "", "elseif halted and call('HEXISTS', h, sub(member, #id + 2)) == 1 then", "elseif false then"},
	{"a halted key is reserved", "wake", "return sub(halt, 1, 1) == 'k' and 1 or 3", "return 1"},
	{"a halted key is not reserved", "wake", "return sub(halt, 1, 1) == 'k' and 1 or 3", "return 3"},
	{"a wake does not see a halt", "wake", "  if halt then\n", "  if false then\n"},
	{"a purge leaves the halt", "", "  call('HDEL', h, key)\n", ""},
	{"any letter ends the halt", "", "if not halt or sub(halt, 2) ~= id then", "if not halt then"},
	{"the end of a halt makes nothing due", "", "  elseif not call('ZSCORE', w, member) then\n    look_at(member, now)\n", "  elseif false then\n"},
	{"a redriven letter has lost its place", "redrive", "number, headed[key] = sub(rec, 4, 19), false", "headed[key] = false"},
	{"a redriven letter is not due", "redrive", "number, headed[key] = sub(rec, 4, 19), false", "number = sub(rec, 4, 19)"},
	{"what a redriven letter halted is due beside it", "redrive", "      call('ZREM', z, id_at(place, key) .. ' ' .. key)\n", ""},
	{"a redriven letter stays dead", "redrive", "  call('HDEL', y, id)\n", ""},
	{"a redriven letter has its attempts", "redrive", "'-------0 0 '", "'-------1 0 '"},
	{"a result has no bytes", "", "ending_size(#endings[i] + #endings[i + 1])", "ending_size(#endings[i])"},
}

// What only a change of the number of partitions shows.
var repartitionMutants = []mutant{
	{"a closed partition takes what is new", "enqueue", "or CODES[shut]\n", "or nil\n"},
	{"what is newer does not wait", "close", "2 or #line(ARGV[i], '1')", "2 or 0"},
	{"what joins late is run", "", "return since and NOW .. ' ' .. since or NOW", "return NOW"},
	{"what is carried over is lost", "adopt", "if not known and not shut then", "if false then"},
}

func TestMutantsOfARepartitionAreCaught(t *testing.T) {
	t.Parallel()
	for _, m := range repartitionMutants {
		t.Run(m.name, func(t *testing.T) {
			env := redistest.Real(t)
			hook, used := redistest.BreakScript(t, sources(), m.script, m.old, m.new)
			for play := range 60 {
				seed := rand.Uint64N(1e9)
				if err := repartitions(t, env, seed, 60, 3*time.Second, hook); err != nil {
					require.ErrorIs(t, err, errHistory)
					t.Logf("%s, play %d: %v (seed %d)", m.name, play+1, err, seed)
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
		"supersede": supersedeScript.Source(), "redrive": redriveScript.Source(), "purge": purgeScript.Source(),
	}
}

// tries is how often a mutant may get away. The one that is hardest to catch is caught by one play in nine.
const tries = 400

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
				for play := range tries {
					seed := rand.Uint64N(1e9)
					_, err := playModel(t, env, seed, 120, hook)
					if err == nil {
						continue
					}
					require.ErrorAs(t, err, &found, "the script runs")
					t.Logf("%s, play %d: %v (seed %d)", m.name, play+1, err, seed)
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
