package delayqueue

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// mutant is a broken script, which the model has to catch.
type mutant struct {
	name     string
	script   string // "": all that have the piece
	old, new string // old stands in the script exactly once
}

// requireCaught requires that check finds each mutant.
func requireCaught(t *testing.T, check func(*testing.T, *redistest.Env, ...redis.Hook) error, mutants []mutant) {
	t.Helper()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			hook, used := redistest.BreakScript(t, sources(), m.script, m.old, m.new)
			err := check(t, redistest.Real(t), hook)
			require.Positive(t, used.Load(), "the mutant ran")
			var found *violation
			require.ErrorAs(t, err, &found)
			t.Log(err)
		})
	}
}

var mutants = []mutant{
	{"a settlement without a look at the owner", "settle", "if not is_held(state, tries) then", "if not is_running(state) then"},
	{"a settlement that is sent again counts again", "settle", "if not is_held(state, tries) then", "if not is_held(state, tries) and not (state and state:sub(2, 7) == ending:sub(1, 6)) then"},
	{"a settlement forgets what it claimed", "settle", "(%S+)') or ''] = recent[i]", "(%S+)') or ''] = nil"},
	{"a settlement forgets itself", "settle", "how == 'bw' and 'w' or '-', tries, states[n]:sub(2))", "how == 'bw' and 'w' or '-', '------' .. tries:sub(7), states[n]:sub(2))"},
	{"a settlement of what is done forgets itself", "settle", "{DEAD_LETTERS, unpack(KEYS, MADE, GIVEN + BUCKETS - 1)}", "{DEAD_LETTERS}"},
	{"a retry loses its place", "settle", "  look_at(id .. ' ' .. key, math.min", "  if key ~= '' then\n    join(id, key, redis.call('HGET', MESSAGES, id) or '', {})\n    unrun[key] = 'ended'\n  end\n  look_at(id .. ' ' .. key, math.min"},
	{"a wake during the settlement is lost", "settle", "elseif how == 'bw' and states[n]:sub(1, 1) == 'R' then", "elseif false then"},
	{"what was tried counts as fresh", "", "      if state then\n", "      if false then\n"},
	{"the next of a key is not claimed", "settle", "    want(id, id .. ' ' .. key, first, token, NOW)\n", ""},
	{"a claim without a receipt", "claim", "number .. ' ' .. table.concat(ids, ' '))", "number .. ' ')"},
	{"ended claims are not redelivered", "claim", "ipairs(redis.call('ZRANGEBYSCORE', RUNNING, '-inf', NOW, 'LIMIT', '0', STEPS))", "ipairs({})"},
	{"a loss is not counted", "claim", "losses + 1 .. ' '", "losses .. ' '"},
	{"a lost claim goes on", "claim", "'-', mark and mark", "'r', mark and mark"},
	{"attempts are not counted", "", "mark .. attempts + 1 .. ' '", "mark .. attempts .. ' '"},
	{"the FIFO is not looked at", "enqueue", "due = how.due or not headed[key] and (how.wait or now)", "due = how.due or how.wait or now"},
	{"a delayed message is the head", "enqueue", "place = how.due and (how.most and '\\127' or '~') or number", "place = number"},
	{"a delayed message joins in front", "", "local number = next_seq()\n  local place", "local number = string.rep('0', 16)\n  local place"},
	{"a delayed message stays due behind another", "", "waits and #queued > 1", "false"},
	{"one id twice", "enqueue", "known[i] = known[i] and known[i]:sub(33, 45)", "known[i] = false"},
	{"an id that ended twice", "enqueue", "known[i] = known[i] or ending", ""},
	{"a delay is not waited for", "enqueue", "delay ~= '0' and now + delay", "nil"},
	{"what is too old is run", "", "elseif too_old(rec) then", "elseif false then"},
	{"what is too old never expires", "", "      discard(id, member:sub(#id + 2), rec, 'e')\n", ""},
	{"the next of a key does not become due", "", "        look_at(member, now)\n      elseif", "      elseif"},
	{"the next of what is done does not become due", "settle", "    look_at(id .. ' ' .. key, now)\n", ""},
	{"a message stays when it is done", "settle", "    remove(MESSAGES, id)\n", ""},
	{"a message stays in its FIFO when it is done", "settle", "    remove(FIFOS, seq ~= '' and key .. '\\n' .. seq .. id or fifo(key, '1')[1])\n", ""},
	{"a wake leaves no mark", "", "add(ATTEMPTS, id, 'R' .. state:sub(2))", ""},
	{"a wake wakes nobody", "wake", "state:sub(2))\n    look_at(id .. ' ' .. key, now)", "state:sub(2))"},
	{"a wake wakes what waits for its time", "", "  if flag == 'w' then", "  if flag == 'w' or flag == '-' then"},
	{"a claim takes no head of a free key", "claim", "    if i <= want_most then", "    if false and i <= want_most then"},
	{"a claim forgets the heads that it has no room for", "claim", "places, token, NOW)\n    else\n", "places, token, NOW)\n    elseif false then\n"},
	{"a claim takes a head twice", "claim", "  if not looked[key] then", "  if true then"},
	{"a claim that is sent again wakes nobody", "claim", "    free(unpack(head, 1, 3))", ""},
	{"what is parked waits for nothing", "enqueue", "local wait = waits == 'w' and now + delay", "local wait = waits == 'w' and now"},
	{"what waits for its key is not marked", "enqueue", "      add(ATTEMPTS, id, 'w' .. UNTRIED:sub(2))\n", ""},
	{"an extension without a look at the owner", "extend", "is_held(state, tries)", "is_running(state)"},
	{"what runs is cancelled", "cancel", "not is_running(redis.call('HGET', ATTEMPTS, id))", "true"},
	{"what is too old is cancelled", "cancel", "too_old(rec) and 'e' or 'c'", "'c'"},
	{"what expired counts as cancelled", "cancel", "how == 'c' and 1 or 0", "how and 1 or 0"},
	{"what is cancelled stays", "cancel", "    remove(MESSAGES, id)\n", ""},
	{"what a handler was given is replaced", "enqueue", "and state:match('^[w-]......0 %d+ 0 0 ')", "and not is_running(state)"},
	{"what runs is replaced", "enqueue", "and state:match('^[w-]......0 %d+ 0 0 ')", "and state:match('^.......[01] %d+ 0 0 ')"},
	{"what is too old is replaced", "enqueue", "fresh and not too_old(rec) and", "fresh and"},
	{"a replaced message stays", "enqueue", "    discard(old.id, key, old.rec, 's', id)\n", ""},
	{"a replaced message keeps its place", "enqueue", "      remove(FIFOS, key .. '\\n' .. place .. id)\n", ""},
	{"what replaces is put at the end", "enqueue", "number, place, due = old.number, old.place, old.due", "number, place, due = next_seq(), #old.place > 1 and text(seq) or old.place, old.due"},
	{"what replaces has no time", "enqueue", "old.place, old.due\n", "old.place\n"},
	{"what replaces is due at once", "enqueue", "old.place, old.due\n", "old.place, now\n"},
	{"what replaces is not put off", "enqueue", "if place == '\\127' and how.most and due then", "if false then"},
	{"what replaces does not wait for the key", "enqueue", "    if old.state ~= UNTRIED then\n", "    if false then\n"},
	{"what is quiet is delayed only", "enqueue", "(how.most and '\\127' or '~')", "'~'"},
	{"what is quiet reserves nothing", "wake", "  return #redis.call('ZRANGEBYLEX'", "  return 0 * #redis.call('ZRANGEBYLEX'"},
	{"a replaceable message is not known", "enqueue", "    add(USES, slot, id)\n", ""},
	{"only the first is replaced", "enqueue", "    if how.slot then\n", "    if how.slot and not old then\n"},
	{"principals replace one another", "enqueue", "how.slot .. body:sub(1, how.about)", "how.slot .. key"},
	{"what is done can be replaced", "settle", "    remove(USES, slot)\n", ""},
	{"what is cancelled can be replaced", "", "slot = rec:match('^1[qc]') and", "slot = false and"},
	{"what is given back stays beside what is newer", "settle", "      discard(id, key, redis.call('HGET', MESSAGES, id) or '', 's', by)\n", ""},
	{"what is given back, newer or not, is replaced", "settle", "by and by ~= id and redis.call", "by and redis.call"},
	{"bytes of what comes are not counted", "enqueue", "  bytes = bytes + size\n", ""},
	{"bytes of what has no key are not counted", "enqueue", "all + 1, bytes + size, stored", "all + 1, bytes, stored"},
	{"what has no key is due at once", "enqueue", "how.due and text(how.due) or NOW", "NOW"},
	{"what has a key is stored as if it had none", "enqueue", "not (how.named or how.slot", "not (how.slot"},
	{"bytes of what comes are not counted for its key", "enqueue", "  use('k', key, size)\n", ""},
	{"bytes of what is done stay", "settle", "  weigh(-size)\n", ""},
	{"bytes of what is done stay its key's", "settle", "  use('k', key, -size)\n", ""},
	{"bytes of what is done stay its principal's", "settle", "  use('p', principal, -size)\n", ""},
	{"a dead letter has no bytes", "settle", "    weigh_letter(id, n, ending, 1)\n", ""},
	{"a dead letter has its key's bytes", "", "message_size(n, id, '', '', '') + ending", "message_size(n, id, 'k', '', '') + ending"},
	{"a key has no bytes", "", "    n = n + 128 + 3 * #key\n", ""},
	{"a cause has no bytes", "", "before and math.floor(1.25 * (#tries - before))", "before and 0"},
	{"bytes of a cause stay", "settle", " + cause_size(tries)\n  remove(ATTEMPTS, id)", "\n  remove(ATTEMPTS, id)"},
	{"bytes of a cause stay its principal's", "", "  use('p', principal, more)\n", ""},
	{"bytes of what is given up stay", "", "  finish(id, key, t.principal, t.slot, t.n, state and", "  finish(id, key, t.principal, t.slot, 0, state and"},
	{"a long payload has no bytes when it is given up", "", "(long and whole(rec:sub(payload)) or 0)", "0"},
	{"a long payload stays when its message is done", "settle", "    freed[#freed + 1] = id\n  end\n  finish(", "  end\n  finish("},
	{"a long payload stays when its message is given up", "", "    freed[#freed + 1] = id\n  end\n  if key", "  end\n  if key"},
	{"a long payload stays when its letter is purged", "purge", "    freed[#freed + 1] = id\n  end\n  resume", "  end\n  resume"},
	{"a dead letter has lost its long payload", "settle", "if bodies[id] and letter == 'x' then", "if false then"},
	{"a large partition forgets until when it is needed", "", "or 0, had[4], had[5]", "or 0, 0, had[5]"},
	{"a key that was made lives for ever", "", "made = there < #known", "made = false"},
	{"a key that is new lives for ever", "", "elseif new or redis.call('PTTL', key)", "elseif not new and redis.call('PTTL', key)"},
	{"what was large lives for ever", "", "crosses = large ~= endless", "crosses = large and not endless"},
	{"what was small is not kept", "", "crosses = large ~= endless", "crosses = endless and not large"},
	{"counts begin anew", "", "(whole(before) or 0) + n", "n"},
	{"what is needed for longer is not", "", "till = now + math.floor(span", "till = till + 0 * math.floor(span"},
	{"what ended has no bytes", "", "ring.size[i] + more, ring.total + more, ended_bytes + more, true", "ring.size[i], ring.total, ended_bytes, true"},
	{"a dead letter halts nothing", "settle", "      add(HALTS, key, halts .. id)\n", ""},
	{"what is halted is run", "", "elseif halt_of(member:sub(#id + 2)) then", "elseif false then"},
	{"a halted key is reserved", "wake", "return halt:sub(1, 1) == 'k' and 1 or 3", "return 1"},
	{"a halted key is not reserved", "wake", "return halt:sub(1, 1) == 'k' and 1 or 3", "return 3"},
	{"a wake does not see a halt", "wake", "  if halt then\n", "  if false then\n"},
	{"a purge leaves the halt", "", "    remove(HALTS, key)\n", ""},
	{"any letter ends the halt", "", "if halt and halt:sub(2) == id then", "if halt then"},
	{"the end of a halt makes nothing due", "", "    unrun[key] = 'resumed'\n", ""},
	{"a redriven letter has lost its place", "redrive", "number, due = t.number, now", "due = now"},
	{"a redriven letter is not due", "redrive", "number, due = t.number, now", "number, due, unrun[t.key] = t.number, nil, nil"},
	{"what a redriven letter halted is due beside it", "redrive", "      remove(WAITING, id_at(place, t.key) .. ' ' .. t.key)\n", ""},
	{"a redriven letter stays dead", "redrive", "  remove(DEAD_LETTERS, id)\n  remove(DEAD, id)\n  count('redriven')", "  remove(DEAD, id)\n  count('redriven')"},
	{"a redriven letter has its attempts", "redrive", "'------0 0 '", "'------1 0 '"},
	{"a result has no bytes", "", "ending_size(#list[i] + #list[i + 1])", "ending_size(#list[i])"},
}

// What only a clock that is set back shows.
var clockMutants = []mutant{
	{"the clock is set back", "", "elapsed < 0 and elapsed or", "elapsed < 0 and 0 or"},
	{"what the clock showed is not noted", "", "    add(COUNTS, 'latest', NOW)\n", ""},
	{"by how much it was set back is not noted", "", "    add(COUNTS, 'back', text(back_by))\n", ""},
	{"by how much it was set back is not told", "claim", "NOW, back_by,", "NOW, 0,"},
}

func TestClock_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	requireCaught(t, playPutRight, []mutant{{"a clock that is put right runs ahead", "", "math.min(elapsed, back_by) or 0", "0 or 0"}})
	requireCaught(t, playSetBack, clockMutants)
}

// playSetBack sets the clock of Redis back while a dead worker has a message, and returns it if that is not redelivered, or nobody warned.
func playSetBack(t *testing.T, _ *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	server := redistest.StartClocked(t)
	q := hookedQueue(t, &redistest.Env{Addr: server.Addr, Prefix: "p"}, "q", hooks)
	enqueueTest(t, q, "lost", "")
	require.NoError(t, errOf(q.manifests.partitions[0].Claim(t.Context(), "dead.1", time.Second, 1)))
	server.SetClock(t, -time.Hour)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if len(claimTest(t, q, "worker", 1)) > 0 && wasSetBack(q) {
			return nil
		}
	}
	return violated("it is not redelivered, or nobody is warned")
}

func wasSetBack(q *Queue) bool {
	r := q.reports.recurring[WarnClockBack]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n > 0
}

// What only time shows that passes for what ended.
var bucketMutants = []mutant{
	{"what ended is forgotten while there is room", "", "local HISTORY = math.floor(max_bytes / 2)", "local HISTORY = math.floor(max_bytes / 10)"},
	{"what ended is forgotten for a full bucket", "", "and ring.total > most(n) then", "and ring.total > most(n) / 5 then"},
	{"what ended is forgotten before its time", "", "now + retention + math.min(math.floor(retention / 64), 1000)", "now + math.ceil(retention / 2)"},
}

func TestBuckets_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	requireCaught(t, func(t *testing.T, env *redistest.Env, hooks ...redis.Hook) (err error) {
		for i := 0; i < 20 && err == nil; i++ {
			err = remembers(t, env, hooks...)
		}
		return err
	}, bucketMutants)
}

// What only a full history shows.
var historyMutants = []mutant{
	{"what ended takes room of what is open", "enqueue", "math.min(ended_bytes - HISTORY, given + 2 * FLOOR - HISTORY)", "ended_bytes - HISTORY"},
	{"callers' ids of the last minute go", "settle", "n == 1 and step < BUCKETS", "n ~= 2 and step < BUCKETS"},
	{"the queue's ids of the last minute go", "settle", "n == 1 and step < BUCKETS", "n < 3 and step < BUCKETS"},
	{"ids of the last minute go when the retention is raised", "settle", "numbers[3 + 2 * BUCKETS + i] or now", "ring.needed[i] - retention"},
	{"ids never go", "", "n == 1 and step < BUCKETS or ring.last[i] + MINUTE <= now", "n == 1"},
	{"a result of an earlier message stays", "settle", "redis.call('HDEL', KEYS[RESULTS + i], unpack(again)) > 0", "false"},
	{"ids go before results", "settle", "i < n and math.min", "i > n and math.min"},
	{"an id of a caller is not known as that", "enqueue", "given == '=' and '=' or '-'", "'-'"},
	{"an id of a caller ends as the queue's", "settle", "how:sub(2, 2) == 'g'", "false"},
	{"an id of a caller is cancelled as the queue's", "cancel", "rec:match('^..[=B]')", "false"},
	{"results have no bound", "settle", "size <= room then", "true then"},
	{"dead letters have no bound", "", "letter_bytes > HISTORY and", "false and"},
	{"any dead letter goes", "settle", "'[' .. from, '(' .. from:sub(1, -2) .. '\\11'", "'-', '+'"},
	{"the name that has most is not looked for", "settle", "(not load or of.load > load)", "true"},
	{"the principal that has most is not looked for", "settle", "group = group and group.rest", "group = nil"},
	{"who has most is not found among many", "settle", "'0', '199'", "'0', '19'"},
	{"an id of a dead letter without room is free", "settle", "if no_room and counts then", "if false then"},
	{"an id of a dead letter without room ends as the queue's", "settle", "endings[rec:match('^..[=B]') and 3 or 2]", "endings[2]"},
	{"what is redriven has no bound", "redrive", "refusal(t.key, t.principal, size)", "refusal(t.key, t.principal, 0)"},
	{"what is redriven stays a dead letter's", "redrive", "  weigh(size)\n  weigh_letter(id, t.n, ending, -1)\n", "  weigh(size)\n"},
}

func TestHistory_MutantsAreCaught(t *testing.T) {
	t.Parallel()
	requireCaught(t, playHistory, historyMutants)
}

func sources() map[string]string {
	all := map[string]string{}
	for _, name := range []string{"enqueue", "claim", "extend", "settle", "wake", "cancel", "redrive", "purge", "free", "payloads"} {
		all[name] = store.Scripts[name].Source()
	}
	return all
}

// tries is how often a mutant may get away. The one that is hardest to catch is caught by one play in nine.
const tries = 400

func TestModel_MutantsAreCaught(t *testing.T) {
	var caught atomic.Int64
	want := int64(0)
	t.Run("scripts", func(t *testing.T) {
		for _, m := range mutants {
			want++
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				env := redistest.Real(t)
				hook, used := redistest.BreakScript(t, sources(), m.script, m.old, m.new)
				broken := sources()
				for name, source := range broken {
					if m.script == "" || m.script == name {
						broken[name] = strings.Replace(source, m.old, m.new, 1)
					}
				}
				var found *violation
				for play := range tries {
					seed := rand.Uint64N(1e9)
					_, err := playModel(t, env, seed, 120, hook, smaller(t, broken))
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
