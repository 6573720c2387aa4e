package delayqueue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

// inRedis is what Redis has of a model's messages.
type inRedis struct {
	hashes   map[int]*redis.MapStringStringCmd // by what they hold
	payloads map[string]*redis.IntCmd          // sizes of those beside their records, by id
	waiting  *redis.StringSliceCmd
	loads    *redis.ZSliceCmd
	letters  *redis.StringSliceCmd // places
}

func (s inRedis) hash(key int) map[string]string { return s.hashes[key].Val() }

func (m *model) inRedis() inRedis {
	ctx, p := context.Background(), m.q.manifests.partitions[0]
	pipe, s := m.q.rdb.Pipeline(), inRedis{hashes: map[int]*redis.MapStringStringCmd{}, payloads: map[string]*redis.IntCmd{}}
	for _, key := range []int{store.KeyMessages, store.KeyDeadLetters, store.KeyUses, store.KeyAttempts, store.KeyCounts, store.KeyHalts} {
		s.hashes[key] = pipe.HGetAll(ctx, p.Keys[key])
	}
	for key := store.KeyResults; key < store.KeyUses; key++ {
		s.hashes[key] = pipe.HGetAll(ctx, p.Keys[key])
	}
	s.loads = pipe.ZRangeWithScores(ctx, p.Keys[store.KeyLoads], 0, -1)
	s.letters = pipe.ZRange(ctx, p.Keys[store.KeyLetters], 0, -1)
	for i := range len(m.all) + m.purged {
		if id := fmt.Sprint("m", i); len(workOf(id)) > store.MaxInline {
			s.payloads[id] = pipe.StrLen(ctx, p.PayloadKey(id))
		}
	}
	s.waiting = pipe.ZRange(ctx, p.Keys[store.KeyWaiting], 0, -1)
	got(pipe.Exec(ctx))
	return s
}

// weigh holds the bytes that were counted against what is stored, and what halts keys or is due against the model.
func (m *model) weigh() {
	s := m.inRedis()
	for _, key := range []string{"a", "b"} {
		if halt, id := s.hash(store.KeyHalts)[key], m.halts[key].id; halt != "" && halt[1:] != id || halt == "" && id != "" {
			violate("key %s is halted by %q, want %q", key, halt, id)
		}
		for i, x := range m.lines[key] {
			if i > 0 && !m.lines[key][0].tooOld && !x.tooOld && slices.Contains(s.waiting.Val(), store.MemberOf(x.id, key)) {
				violate("%s is due beside the head of its key, %s", x.id, m.lines[key][0].id)
			}
		}
	}
	uses := s.hash(store.KeyUses)
	for id, size := range s.payloads {
		if rec := s.hash(store.KeyMessages)[id]; (size.Val() > 0) != (rec != "") {
			violate("%s has %d bytes of payload beside its record, %q", id, size.Val(), rec)
		}
	}
	want, total := m.sizes(s)
	for field, n := range uses {
		if field[0] != 's' && n != fmt.Sprint(want[field]) {
			violate("%s takes %s bytes for the queue, and %d are there", field, n, want[field])
		}
		if id := uses[field]; field[0] == 's' && (m.byID[id] == nil || m.slots[m.byID[id].slot()] != m.byID[id]) {
			violate("%q is to be replaced, and should not", id)
		}
	}
	for field, n := range want {
		if uses[field] != fmt.Sprint(n) {
			violate("%s takes %q bytes for the queue, and %d are there", field, uses[field], n)
		}
	}
	counts := s.hash(store.KeyCounts)
	if counts["bytes"] != fmt.Sprint(total) && total > 0 {
		violate("all takes %s bytes for the queue, and %d are there", counts["bytes"], total)
	}
	m.weighLetters(s)
	for i, name := range []string{"results", "made", "given"} {
		words := strings.Fields(counts[name])
		for j := range store.Buckets {
			total = 0
			for id, text := range s.hash(store.KeyResults + i*store.Buckets + j) {
				total += 64 + (len(id)+len(text))*5/4
			}
			if total > 0 && (len(words) != 2+3*store.Buckets || words[3+2*j] != fmt.Sprint(total)) {
				violate("what ended of %s takes %q bytes for the queue, and %d are there", name, words, total)
			}
		}
	}
}

// weighLetters holds what is known of dead letters against those that are there.
func (m *model) weighLetters(s inRedis) {
	want, total, places := map[string]int{}, 0, []string{}
	for id, text := range s.hash(store.KeyDeadLetters) {
		e, ok := store.ReadEnding(id, text)
		if !ok {
			violate("the ending of %s cannot be read: %q", id, text)
		}
		group := e.Name + "\n" + e.Principal
		place := group + "\n" + text[1:12] + id
		n := len(s.hash(store.KeyMessages)[id]) + 3*len(id)
		if size := s.payloads[id]; size != nil {
			n += int(size.Val())
		}
		n = 280 + n*5/4 + 40 + len(text)*5/4 + 40 + 2*len(place)*5/4
		want["n"+e.Name], want["p"+group], total, places = want["n"+e.Name]+n, want["p"+group]+n, total+n, append(places, place)
	}
	if n := s.hash(store.KeyCounts)["letters"]; total > 0 && n != fmt.Sprint(total) {
		violate("dead letters take %s bytes for the queue, and %d are there", n, total)
	}
	for _, z := range s.loads.Val() {
		if n := want[fmt.Sprint(z.Member)]; n != int(z.Score) {
			violate("dead letters of %q take %.0f bytes for the queue, and %d are there", z.Member, z.Score, n)
		}
	}
	if slices.Sort(places); len(s.loads.Val()) != len(want) || !slices.Equal(places, s.letters.Val()) {
		violate("dead letters are at %q, and should be at %q", s.letters.Val(), places)
	}
}

// sizes are the bytes of what is queued or runs: those of each key and principal, and all.
func (m *model) sizes(s inRedis) (by map[string]int, total int) {
	deadLetters, tries := s.hash(store.KeyDeadLetters), s.hash(store.KeyAttempts)
	by = map[string]int{}
	for id, rec := range s.hash(store.KeyMessages) {
		x := m.byID[id]
		n := len(rec) + 3*len(id)
		if size := s.payloads[id]; size != nil {
			n += int(size.Val())
		}
		if deadLetters[id] != "" {
			continue
		}
		if x.key != "" {
			n += 128 + 3*len(x.key)
		}
		if x.principal != "" {
			n += 48 + len(x.principal)
		}
		if x.coalesces {
			n += 48 + len("s"+store.About(x.key, "", x.principal)) + len(id)
		}
		size := 280 + n*5/4
		if a, ok := store.ReadAttempts(tries[id][min(1, len(tries[id])):]); ok {
			size += len(a.Cause) * 5 / 4
		}
		total += size
		if x.key != "" {
			by["k"+x.key] += size
		}
		if x.principal != "" {
			by["p"+x.principal] += size
		}
	}
	return by, total
}

// redrive puts a dead letter back, or a message that is none.
func (m *model) redrive() {
	if x := m.any(StateDead); x != nil && m.rng.IntN(5) > 0 {
		m.redriveLetter(x)
		return
	}
	if len(m.all) == 0 {
		return
	}
	if x := m.all[m.rng.IntN(len(m.all))]; x.state != StateDead {
		got(m.q.manifests.partitions[0].Redrive(context.Background(), modelAge, store.Letter{ID: x.id})) // changes nothing
	}
}

func (m *model) redriveLetter(x *modelMessage) {
	m.joined()
	words := got(m.q.manifests.partitions[0].Redrive(context.Background(), modelAge, store.Letter{ID: x.id}))
	if words[0] != store.RedriveDone {
		violate("redrive of %s: %s", x.id, words[0])
	}
	m.happened["redriven"]++
	x.state, x.attempts, x.conflicts, x.handed, x.till = StateQueued, 0, 0, 0, time.Now().Add(modelAge)
	x.coalesces, x.delayed, x.quiet, x.later, x.waits, x.waked = false, false, false, false, false, false
	m.forgetSettlements(x)
	switch {
	case x.key == "":
	case m.endHalt(x):
		m.happened["redriven first"]++
		m.lines[x.key] = slices.Insert(m.lines[x.key], 0, x)
	default:
		m.lines[x.key] = append(m.lines[x.key], x)
	}
}

// purge forgets a dead letter.
func (m *model) purge() {
	if x := m.any(StateDead); x != nil {
		m.purgeLetter(x)
	}
}

func (m *model) purgeLetter(x *modelMessage) {
	purged := got(m.q.manifests.partitions[0].Purge(context.Background(), store.Letter{ID: x.id}))
	if !purged[0] {
		violate("%s was not purged", x.id)
	}
	m.happened["purged"]++
	m.purged++
	m.endHalt(x)
	m.forgetSettlements(x)
	delete(m.byID, x.id)
	m.all = slices.DeleteFunc(m.all, func(y *modelMessage) bool { return x == y })
}

// otherLetter is another dead letter of a message's key.
func (m *model) otherLetter(x *modelMessage) *modelMessage {
	i := slices.IndexFunc(m.all, func(y *modelMessage) bool { return y != x && y.state == StateDead && y.key == x.key })
	if i < 0 || x.key == "" {
		return nil
	}
	return m.all[i]
}

// endHalt reports whether a dead letter halted its key, which it does no more.
func (m *model) endHalt(x *modelMessage) bool {
	if m.halts[x.key].id != x.id {
		return false
	}
	delete(m.halts, x.key)
	m.happened["halts ended"]++
	return true
}

// forgetSettlements: what settled a message is known until it is redriven or purged.
func (m *model) forgetSettlements(x *modelMessage) {
	m.past = slices.DeleteFunc(m.past, func(p modelSettle) bool {
		return p.claim.message.ID == x.id
	})
	m.lost = slices.DeleteFunc(m.lost, func(c *claim) bool { return c.message.ID == x.id })
}
