package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// The scripts against a model of what they promise: random calls, one at a time, each answer and each record compared.

const (
	modelAttempts = 2
	modelLater    = time.Hour // nothing that waits becomes due during a run
	modelAge      = 24 * time.Hour
)

type modelMessage struct {
	id, key, principal          string
	state                       State
	coalesces                   bool
	by                          string // what replaced it
	attempts, conflicts, losses int
	handed                      int
	later                       bool // not due yet
	due                         int  // in which order it became so, of those that were later
	delayed, quiet              bool // and not in its key's FIFO
	waits                       bool // for its key, after a conflict
	waked                       bool
	tooOld                      bool // and queued: it expires when somebody looks
	claim                       *claim
	till                        time.Time // it is needed until then
}

// workOf is the payload of a message: of some it is too long for a record.
func workOf(id string) string {
	if strings.HasSuffix(id, "3") {
		return id + strings.Repeat(" is long", 1000)
	}
	return "work of " + id
}

type modelSettle struct {
	claim   *claim
	outcome outcome
	was     *store.Settlement
}

type model struct {
	q        *Queue
	rng      *rand.Rand
	all      []*modelMessage
	byID     map[string]*modelMessage
	lines    map[string][]*modelMessage
	slots    map[[2]string]*modelMessage // by key and principal: what a newer one replaces
	halts    map[string]modelHalt        // by key
	purged   int
	passed   int           // what was later, and became due
	past     []modelSettle // that ended a claim
	lost     []*claim      // that were taken over
	tokens   int
	done     int
	happened map[string]int
}

// modelHalt is what a dead letter keeps from running.
type modelHalt struct {
	id   string
	what Halt
}

// violation is what the model did not expect. Errors of Redis are others.
type violation struct{ text string }

func (v *violation) Error() string { return v.text }

func violated(format string, args ...any) error { return &violation{fmt.Sprintf(format, args...)} }

// failed ends a play.
type failed struct{ error }

// violate ends a play with a violation, check with an error, if there is one.
func violate(format string, args ...any) { check(violated(format, args...)) }

func check(err error) {
	if err != nil {
		panic(failed{err})
	}
}

// got is what a call returned that may not fail.
func got[T any](v T, err error) T {
	check(err)
	return v
}

// played is deferred: a play returns what has ended it.
func played(err *error) {
	switch end := recover().(type) { //nolint:revive // it is deferred itself
	case nil:
	case failed:
		*err = end.error
	default:
		panic(end)
	}
}

func (m *model) token() string {
	m.tokens++
	return fmt.Sprint("token", m.tokens)
}

// due reports whether a claim may bring a message, and whether it must, if it brings
// fewer than were asked for. Those before it may expire at any look.
func (m *model) due(x *modelMessage) (may, must bool) {
	if x.state != StateQueued || x.later || x.tooOld || m.halts[x.key].id != "" {
		return false, false
	}
	if x.key == "" {
		return true, true
	}
	if x.delayed { // it joins when somebody looks
		return !slices.ContainsFunc(m.lines[x.key], func(y *modelMessage) bool { return !y.tooOld }), false
	}
	for i, before := range m.lines[x.key] {
		if before == x {
			return true, i == 0
		}
		if !before.tooOld {
			break
		}
	}
	return false, false
}

// started notes that a message was given to a claim.
func (m *model) started(c *claim, anyway bool) {
	x := m.byID[c.message.ID]
	if x == nil {
		violate("claimed %q, which nobody enqueued", c.message.ID)
	}
	m.joined()
	if may, _ := m.due(x); !may && !anyway {
		violate("claimed %s, whose turn it is not: %+v", x.id, x)
	}
	if x.delayed && x.key != "" {
		violate("claimed %s, which did not join", x.id)
	}
	for x.key != "" && m.lines[x.key][0] != x { // they were looked at
		m.end(m.lines[x.key][0], StateExpired)
	}
	x.state, x.claim, x.waits, x.waked = StateRunning, c, false, false
	x.attempts++
	got := []int{c.message.Attempt, c.message.Conflicts, c.message.Losses, c.stored.Handed}
	if want := []int{x.attempts, x.conflicts, x.losses, x.handed}; !slices.Equal(got, want) {
		violate("message %s was claimed with attempt, conflicts, losses, handed %v, want %v", x.id, got, want)
	}
	if c.message.Key != x.key || string(c.message.Payload) != workOf(x.id) {
		violate("message %s is another: %+v", x.id, c.message)
	}
}

func (x *modelMessage) slot() [2]string { return [2]string{x.key, x.principal} }

// fresh reports whether no handler was given it, so that a newer one may replace it.
func (x *modelMessage) fresh() bool {
	return x.coalesces && x.state == StateQueued && x.attempts == 0 && x.losses == 0 && x.handed == 0 && !x.tooOld
}

func (m *model) end(x *modelMessage, state State) {
	x.state, x.claim, x.tooOld, x.till = state, nil, false, time.Time{}
	if state == StateDead {
		x.till = time.Now().Add(m.q.deadRetention)
	}
	if m.slots[x.slot()] == x {
		delete(m.slots, x.slot())
	}
	if x.key != "" {
		m.lines[x.key] = slices.DeleteFunc(m.lines[x.key], func(y *modelMessage) bool { return x == y })
	}
}

// joined notes which delayed messages have joined their keys' FIFOs.
func (m *model) joined() {
	pipe, places := m.q.rdb.Pipeline(), map[*modelMessage]*redis.FloatCmd{}
	for _, x := range m.all {
		if x.delayed && x.key != "" && !x.later && !x.state.Ended() {
			places[x] = pipe.ZScore(context.Background(), m.q.manifests.partitions[0].Keys[store.KeyFIFOs], x.key+map[bool]string{false: "\n~", true: "\n\x7f"}[x.quiet]+x.id)
		}
	}
	if len(places) == 0 {
		return
	}
	if _, err := pipe.Exec(context.Background()); !errors.Is(err, redis.Nil) {
		check(err)
	}
	for _, x := range slices.SortedFunc(maps.Keys(places), func(x, y *modelMessage) int { return x.due - y.due }) {
		if places[x].Err() != nil {
			x.delayed, x.quiet = false, false
			m.lines[x.key] = append(m.lines[x.key], x)
		}
	}
}

// compare holds records against the model: those of messages that have not ended, or all. And it holds the lifetimes of keys
// against those of what they hold.
func (m *model) compare(all bool) {
	m.joined()
	pipe := m.q.rdb.Pipeline()
	looks := map[*modelMessage]*store.Lookup{}
	for _, x := range m.all {
		if all || !x.state.Ended() || m.rng.IntN(10) == 0 {
			looks[x] = m.q.manifests.partitions[0].LookUp(context.Background(), pipe, x.id, true)
		}
	}
	p, now, needed := m.q.manifests.partitions[0], time.Now(), time.Duration(0)
	for _, x := range m.all {
		needed = max(needed, x.till.Sub(now))
	}
	lives := map[string]*redis.DurationCmd{}
	for _, key := range slices.Concat(p.Keys[:store.KeyResults], p.Keys[store.KeyUses:]) { // without those of what ended
		lives[key] = pipe.PTTL(context.Background(), key)
	}
	endless := pipe.HGet(context.Background(), p.Keys[store.KeyCounts], "endless")
	if _, err := pipe.Exec(context.Background()); !errors.Is(err, redis.Nil) {
		check(err)
	}
	for key, life := range lives {
		if life.Val() == -1 && endless.Val() != "1" {
			violate("%s lives for ever", key)
		}
		if left := life.Val(); left >= 0 && left < needed {
			violate("%s expires in %s, and has what is needed for %s", key, left, needed)
		}
	}
	for x, l := range looks {
		s := m.q.status(l.Read())
		if x.tooOld && s.State == StateExpired {
			m.end(x, StateExpired)
		}
		if s.SupersededBy != x.by {
			violate("message %s was replaced by %q, and by %q for the queue", x.id, x.by, s.SupersededBy)
		}
		if s.State != x.state || s.Attempts != x.attempts || s.Conflicts != x.conflicts || s.Losses != x.losses {
			violate("message %s is %s after %d attempts, %d conflicts, %d losses; want %+v", x.id, s.State, s.Attempts, s.Conflicts, s.Losses, x)
		}
	}
}

// pass lets time pass until all that waits is due.
func (m *model) pass() {
	p := m.q.manifests.partitions[0]
	for _, x := range m.all {
		if x.state == StateQueued && x.later {
			m.passed++
			x.later, x.due = false, m.passed
			check(m.q.rdb.ZAddXX(context.Background(), p.Keys[store.KeyWaiting], redis.Z{Score: float64(x.due), Member: store.MemberOf(x.id, x.key)}).Err())
		}
	}
}

// drain runs what is left to its end.
func (m *model) drain() {
	p := m.q.manifests.partitions[0]
	for range 50 {
		for _, x := range m.all {
			switch {
			case x.state == StateRunning:
				m.settleAs(x, outcome{end: store.Finished})
			case x.tooOld:
				m.q.rdb.ZAddXX(context.Background(), p.Keys[store.KeyWaiting], redis.Z{Score: 1, Member: store.MemberOf(x.id, x.key)})
			}
		}
		for _, key := range []string{"a", "b"} {
			if x := m.byID[m.halts[key].id]; x != nil {
				[]func(*modelMessage){m.redriveLetter, m.purgeLetter}[m.rng.IntN(2)](x)
			}
		}
		m.pass()
		m.take(10)
		m.compare(true)
		if !slices.ContainsFunc(m.all, func(x *modelMessage) bool { return !x.state.Ended() }) {
			break
		}
	}
	m.isEmpty()
}

// isEmpty returns what is left in Redis of messages that have ended.
func (m *model) isEmpty() {
	p := m.q.manifests.partitions[0]
	for _, set := range []int{store.KeyWaiting, store.KeyRunning, store.KeyFIFOs} {
		left := got(m.q.rdb.ZRange(context.Background(), p.Keys[set], 0, -1).Result())
		if len(left) > 0 {
			violate("left in %s: %q", store.KeyNames[set], left)
		}
	}
	for _, name := range []int{store.KeyAttempts, store.KeyMessages} {
		left := got(m.q.rdb.HKeys(context.Background(), p.Keys[name]).Result())
		for _, id := range left {
			if name == store.KeyAttempts || m.byID[id].state != StateDead {
				violate("left in %s: %q", store.KeyNames[name], id)
			}
		}
	}
	counts := got(m.q.rdb.HGetAll(context.Background(), p.Keys[store.KeyCounts]).Result())
	if counts["enqueued"] != fmt.Sprint(len(m.all)+m.purged) || m.done > 0 && counts["done"] != fmt.Sprint(m.done) {
		violate("%d messages, %d done, and the counts say %v", len(m.all)+m.purged, m.done, counts)
	}
}

// playModel makes random calls, and returns the first thing that was not as promised.
func playModel(t *testing.T, env *redistest.Env, seed uint64, calls int, hooks ...redis.Hook) (happened map[string]int, err error) {
	t.Helper()
	q := hookedQueue(t, env, fmt.Sprint("model", seed), hooks, WithMaxAttempts(modelAttempts))
	m := &model{
		q: q, rng: rand.New(rand.NewPCG(seed, 0)), byID: map[string]*modelMessage{}, lines: map[string][]*modelMessage{},
		slots: map[[2]string]*modelMessage{}, halts: map[string]modelHalt{},
		happened: map[string]int{},
	}
	defer played(&err)
	var ops []func()
	for _, op := range []struct {
		weight int
		call   func()
	}{
		{5, m.enqueue}, {3, m.claim}, {6, m.settle}, {2, m.resend}, {1, m.stray}, {1, m.expire}, {4, m.wake}, {1, m.cancel}, {1, m.age}, {1, m.pass}, {1, m.redrive}, {1, m.purge},
	} {
		ops = append(ops, slices.Repeat([]func(){op.call}, op.weight)...)
	}
	for i := range calls {
		ops[m.rng.IntN(len(ops))]()
		m.compare(false)
		if i%4 == 0 {
			m.weigh()
		}
	}
	m.drain()
	m.weigh()
	return m.happened, nil
}

func TestModel_ScriptsDoWhatItSays(t *testing.T) { testModel(t, 12) }

// smaller has the scripts take a partition of few messages for a large one.
func smaller(t *testing.T, scripts map[string]string) redis.Hook {
	t.Helper()
	hook, _ := redistest.BreakScript(t, scripts, "", "local LARGE = 10000", "local LARGE = 3")
	return hook
}

// testModel plays so many random rounds, and more until everything has happened; on the embedded Redis, which is slow, fewer.
func testModel(t *testing.T, rounds int) {
	t.Helper()
	small := smaller(t, sources())
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		total, rounds := map[string]int{}, rounds
		if !env.Real {
			rounds /= 4
		}
		rare := func(what string) bool { return env.Real && total[what] == 0 }
		want := []string{
			"claims sent again", "settlements sent again", "late settlements", "claims expired", "next any", "next key", "wakes", "cancelled",
			"aged", "replaced", "replaced when given back", "postponed", "halted", "redriven", "redriven first", "purged", "halts ended",
		}
		for i := 0; i < rounds || slices.ContainsFunc(want, rare); i++ {
			require.Less(t, i, 10*rounds, "not everything happened: %v", total)
			seed := rand.Uint64N(1e9)
			happened, err := playModel(t, env, seed, 120, small)
			require.NoError(t, err, "seed %d", seed)
			for what, n := range happened {
				total[what] += n
			}
		}
		t.Log(total)
	})
}
