package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

func (m *model) enqueue() {
	open, postponed := 0, m.happened["postponed"]
	var before *modelMessage // that this one may replace
	for _, x := range m.all {
		if !x.state.Ended() {
			open++
		}
		if m.slots[x.slot()] == x && m.rng.IntN(2) == 0 {
			before = x
		}
	}
	if open >= 7 && before == nil { // few of them, so that much happens to each
		return
	}
	job := Job{ID: fmt.Sprint("m", len(m.all)+m.purged), Key: []string{"", "a", "a", "b"}[m.rng.IntN(4)], MaxAge: modelAge}
	x := &modelMessage{id: job.ID, key: job.Key, state: StateQueued}
	if m.rng.IntN(10) == 0 {
		job.MaxAge *= 30
	}
	if known := len(m.all) > 0 && m.rng.IntN(5) == 0; known {
		x = m.all[m.rng.IntN(len(m.all))]
		job.ID, job.Key = x.id, x.key
	} else {
		m.add(x, &job, before)
	}
	job.Payload, job.fresh = []byte(workOf(job.ID)), strings.HasSuffix(job.ID, "1")
	if x.till.IsZero() && x.state == StateQueued && !x.tooOld {
		x.till = time.Now().Add(job.MaxAge)
	}
	since := m.q.rdb.Time(context.Background()).Val()
	got(storeTogether(m.q.manifests.partitions[0], job))
	if m.happened["postponed"] > postponed {
		due := m.q.rdb.ZScore(context.Background(), m.q.manifests.partitions[0].Keys[store.KeyWaiting], store.MemberOf(x.id, x.key)).Val()
		if till := float64(since.Add(modelLater).UnixMilli()); due < till {
			violate("message %s is due %.0f ms too soon: it is put off", x.id, till-due)
		}
	}
}

// add adds a new message, in the place of before if there is one, and completes its job.
func (m *model) add(x *modelMessage, job *Job, before *modelMessage) {
	x.later = m.rng.IntN(6) == 0
	job.parked = job.Key != "" && m.rng.IntN(5) == 0
	job.Coalesce = job.Key != "" && m.rng.IntN(3) == 0
	job.Principal = []string{"", "", "user"}[m.rng.IntN(3)]
	if before != nil {
		job.Key, job.Principal, job.Coalesce, x.later = before.key, before.principal, true, before.quiet
	}
	x.key = job.Key
	x.delayed, x.coalesces, x.principal = x.later, job.Coalesce, job.Principal
	if x.later && x.coalesces && m.rng.IntN(3) > 0 {
		x.quiet = true
		job.QuietPeriod, job.MaxDelay = modelLater, 2*modelLater
	} else if x.later {
		job.Delay = modelLater
	}
	m.joined()
	m.all, m.byID[x.id] = append(m.all, x), x
	if old := m.slots[x.slot()]; x.coalesces && old != nil && old.fresh() {
		m.replace(old, x)
	} else if x.key != "" && !x.delayed {
		m.lines[x.key] = append(m.lines[x.key], x)
		if job.parked && m.rng.IntN(2) == 0 {
			job.wait = modelLater
			x.waits = len(m.lines[x.key]) == 1
			x.later = x.waits
		}
	}
	if x.coalesces {
		m.slots[x.slot()] = x
	}
}

// replace gives a message the place of another one.
func (m *model) replace(old, x *modelMessage) {
	m.happened["replaced"]++
	later := old.later
	if old.quiet && x.quiet {
		m.happened["postponed"]++
		later = true
	}
	x.later, x.due, x.delayed, x.quiet, x.waits, x.conflicts, x.handed = later, old.due, old.delayed, old.quiet, old.waits, old.conflicts, old.handed
	if i := slices.Index(m.lines[x.key], old); i >= 0 {
		m.lines[x.key][i] = x
	}
	m.end(old, StateSuperseded)
	old.by = x.id
}

func (m *model) claimAs(token string, n int, freed ...string) store.Batch {
	return got(m.q.manifests.partitions[0].Claim(context.Background(), token, time.Hour, n, freed...))
}

func (m *model) take(n int) (claims []*claim) {
	token := m.token()
	var must int
	freed, check := m.frees()
	old := slices.ContainsFunc(m.all, func(x *modelMessage) bool {
		return x.tooOld || (x.delayed || m.halts[x.key].id != "") && !x.later && !x.state.Ended()
	})
	for _, x := range m.all {
		if _, is := m.due(x); is {
			must++
		}
	}
	b := m.claimAs(token, n, freed...)
	check(b)
	for _, message := range b.Messages {
		c := claimOf(m.q, message, token)
		m.started(c, false)
		claims = append(claims, c)
	}
	if len(claims) > n || !old && len(claims) < min(n, must) {
		violate("a claim for %d of %d brought %d", n, must, len(claims))
	}
	return claims
}

func (m *model) claim() {
	claims := m.take(m.rng.IntN(4))
	if len(claims) == 0 || m.rng.IntN(2) == 0 {
		return
	}
	freed, check := m.frees()
	again := m.claimAs(claims[0].token, 5, freed...)
	check(again)
	m.happened["claims sent again"]++
	var got, want []string
	for i := range claims {
		want = append(want, claims[i].message.ID)
	}
	for _, message := range again.Messages {
		got = append(got, message.ID)
	}
	if !slices.Equal(got, want) {
		violate("a claim that was sent again brought %v, and %v at first", got, want)
	}
}

// any returns a random message in the state.
func (m *model) any(state State) *modelMessage {
	var all []*modelMessage
	for _, x := range m.all {
		if x.state == state {
			all = append(all, x)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[m.rng.IntN(len(all))]
}

func (m *model) settle() {
	x := m.any(StateRunning)
	if x == nil {
		return
	}
	v := outcome{
		end: []store.End{
			store.Finished, store.Finished, store.Finished, store.Died, store.Died, store.Failed, store.Failed, store.Postponed, store.Conflicted,
			store.KeyHeld, store.KeyHeld, store.Returned, store.HandedBack,
		}[m.rng.IntN(13)],
		err: errors.New("why"),
	}
	m.q.halt = Halt(m.rng.IntN(3))
	if m.otherLetter(x) != nil && m.rng.IntN(2) == 0 { // one halts the key, and another does not
		v.end, m.q.halt = store.Died, HaltParked
	}
	if x.waked && m.rng.IntN(3) > 0 { // what a wake before the settlement is for
		v.end = store.KeyHeld
	}
	if v.end == store.KeyHeld && x.key == "" {
		v.end = store.Conflicted
	}
	if v.end == store.KeyHeld || m.rng.IntN(4) == 0 {
		v.delay = modelLater
	}
	v.lost = (v.end == store.Failed || v.end == store.Returned) && m.rng.IntN(3) == 0
	if m.rng.IntN(3) > 0 {
		v.next, v.ofKey = m.token(), x.key != "" && v.end.Final() && m.rng.IntN(4) > 0
	}
	m.settleAs(x, v)
	if y := m.otherLetter(x); y != nil && v.end == store.Died && m.rng.IntN(2) == 0 {
		m.happened["other letters"]++
		[]func(*modelMessage){m.redriveLetter, m.purgeLetter}[m.rng.IntN(2)](y)
	}
	if m.rng.IntN(3) == 0 {
		m.resend()
	}
}

func (m *model) settleAs(x *modelMessage, v outcome) {
	c := x.claim
	may := map[*modelMessage]bool{} // those that were due before
	for _, y := range m.all {
		may[y], _ = m.due(y)
	}
	s := got(settleOnce(c, v))
	if !s.Held || s.End == store.Outlived {
		violate("the claim on %s was refused: %+v", x.id, s)
	}
	m.past = append(m.past, modelSettle{c, v, s})
	switch v.end {
	case store.Finished:
		m.end(x, StateDone)
		m.done++
	case store.Died:
		m.end(x, StateDead)
		if x.key != "" && m.q.halt != HaltNothing {
			m.halts[x.key] = modelHalt{x.id, m.q.halt}
			m.happened["halted"]++
		}
	default:
		x.state, x.claim, x.later = StateQueued, nil, v.delay > 0 && (!v.end.AwaitsKey() || !x.waked)
		x.waked, x.waits = false, v.end.AwaitsKey()
		if v.end != store.Failed {
			x.attempts--
		}
		if v.end == store.Conflicted || v.end == store.KeyHeld {
			x.conflicts++
		}
		if v.lost {
			x.losses++
		}
		if v.end == store.Postponed || v.end == store.HandedBack {
			x.handed++
		}
		if v.end != store.Failed && v.end != store.Postponed && x.coalesces && x.attempts == 0 && x.losses == 0 && x.handed == 0 {
			switch by := m.slots[x.slot()]; by {
			case x:
			case nil:
				m.slots[x.slot()] = x
			default:
				m.happened["replaced when given back"]++
				m.end(x, StateSuperseded)
				x.by = by.id
			}
		}
	}
	m.followed(x, v, s, may)
}

// followed checks what a settlement claimed next.
func (m *model) followed(x *modelMessage, v outcome, s *store.Settlement, may map[*modelMessage]bool) {
	var head *modelMessage // the next of its key
	if line := m.lines[x.key]; len(line) > 0 && !line[0].tooOld {
		head = line[0]
	}
	follows := v.ofKey && head != nil && m.halts[x.key].id == "" && head.state == StateQueued && (!head.later || head.waits)
	switch {
	case s.Claimed == nil && follows:
		violate("%s did not follow %s", head.id, x.id)
	case s.Claimed == nil:
		return
	case v.next == "":
		violate("%s was claimed, and nobody asked", s.Claimed.ID)
	case v.ofKey && (!follows || head.id != s.Claimed.ID):
		violate("%s followed %s out of turn", s.Claimed.ID, x.id)
	}
	m.happened[map[bool]string{true: "next key", false: "next any"}[v.ofKey]]++
	y := m.byID[s.Claimed.ID]
	if y != nil && m.halts[y.key].id != "" {
		violate("%s followed %s, and its key is halted", y.id, x.id)
	}
	m.started(claimOf(m.q, s.Claimed, v.next), v.ofKey || y != nil && may[y])
}

// resend sends a settlement again. It changes nothing.
func (m *model) resend() {
	if len(m.past) == 0 {
		return
	}
	p := m.past[len(m.past)-1-m.rng.IntN(min(3, len(m.past)))]
	x := m.byID[p.claim.message.ID]
	s := got(settleOnce(p.claim, p.outcome))
	m.happened["settlements sent again"]++
	// What settled a message last knows its own.
	last := p
	for _, q := range m.past {
		if q.claim.message.ID == x.id {
			last = q
		}
	}
	if last.claim == p.claim && !s.Held {
		violate("a settlement of %s that was sent again is refused", x.id)
	}
	running := false // what it claimed
	if p.was.Claimed != nil {
		y := m.byID[p.was.Claimed.ID]
		running = y != nil && y.claim != nil && y.claim.token == p.outcome.next
	}
	if s.Claimed != nil && (!running || s.Claimed.ID != p.was.Claimed.ID) || s.Claimed == nil && running {
		violate("a settlement of %s that was sent again brought %+v, and %+v at first", x.id, s.Claimed, p.was.Claimed)
	}
}

// stray has somebody settle, or extend, who lost the claim.
func (m *model) stray() {
	if len(m.lost) == 0 {
		return
	}
	c := m.lost[m.rng.IntN(len(m.lost))]
	held := got(m.q.manifests.partitions[0].Extend(context.Background(), m.q.rdb, time.Hour, false, c.stored))
	s := got(settleOnce(c, outcome{end: store.End(m.rng.IntN(len(outcomes)))}))
	m.happened["late settlements"]++
	if s.Held || held[0] {
		violate("a claim on %s that was lost is taken for held", c.message.ID)
	}
}

// expire ends a running claim, as when its worker died.
func (m *model) expire() {
	x := m.any(StateRunning)
	if x == nil {
		return
	}
	check(m.q.rdb.ZAdd(context.Background(), m.q.manifests.partitions[0].Keys[store.KeyRunning], redis.Z{Score: 1, Member: store.MemberOf(x.id, x.key)}).Err())
	b := m.claimAs("", 0)
	m.lost = append(m.lost, x.claim)
	m.happened["claims expired"]++
	x.losses++
	x.state, x.claim, x.later = StateQueued, nil, false
	if b.Redelivered != 1 {
		violate("message %s is not redelivered", x.id)
	}
}

func (m *model) wake() {
	key := []string{"a", "a", "b"}[m.rng.IntN(3)]
	found := got(m.q.manifests.partitions[0].Wake(context.Background(), []string{key}, true))
	if want, sure := m.freed(key); sure && found[0] != want {
		violate("a wake of %s found %d, want %d", key, found[0], want)
	}
}

// frees has some keys be free, which the next claim is told, and checks what that finds of them.
func (m *model) frees() (keys []string, check func(store.Batch)) {
	found, sure := map[string]store.Woken{}, map[string]bool{}
	for range m.rng.IntN(4) {
		key := []string{"a", "a", "b"}[m.rng.IntN(3)]
		if keys = append(keys, key); !slices.Contains(keys[:len(keys)-1], key) {
			found[key], sure[key] = m.freed(key)
		}
	}
	return keys, func(b store.Batch) {
		for i, key := range keys {
			if sure[key] && b.Freed[i] != found[key] {
				violate("a claim found %d of %s, want %d", b.Freed[i], key, found[key])
			}
		}
	}
}

// freed is what a wake, or a claim, does for a key that is free, and what it finds.
func (m *model) freed(key string) (want store.Woken, sure bool) {
	want = store.WakeNone
	if line := m.lines[key]; len(line) > 0 && m.halts[key].id == "" {
		want = store.WakeBusy
		switch head := line[0]; {
		case head.state == StateRunning:
			head.waked = true
		case head.waits:
			head.waits, head.later = false, false
			want = store.WakeDue
			m.happened["wakes"]++
		case head.later:
			want = store.WakeNone
		}
		if line[0].tooOld { // it may have expired already
			return want, false
		}
	}
	if m.halts[key].id != "" {
		want = map[Halt]store.Woken{HaltParked: store.WakeHalt, HaltKey: store.WakeBusy}[m.halts[key].what]
	} else if want == store.WakeNone && slices.ContainsFunc(m.all, func(x *modelMessage) bool { return x.key == key && x.quiet && x.state == StateQueued }) {
		want = store.WakeBusy
	}
	return want, true
}

func (m *model) cancel() {
	if len(m.all) == 0 {
		return
	}
	x := m.all[m.rng.IntN(len(m.all))]
	cancelled := got(m.q.manifests.partitions[0].Cancel(context.Background(), x.id))
	if cancelled[0] != (x.state == StateQueued && !x.tooOld) {
		violate("cancel of %s, which is %s: %v", x.id, x.state, cancelled[0])
	}
	if x.state == StateQueued {
		state := StateCancelled
		if x.tooOld {
			state = StateExpired
		}
		m.end(x, state)
		m.happened["cancelled"]++
	}
}

// age makes a queued message too old.
func (m *model) age() {
	x := m.any(StateQueued)
	if x == nil || x.tooOld {
		return
	}
	p := m.q.manifests.partitions[0]
	m.happened["aged"]++
	x.tooOld, x.till = true, time.Time{}
	check(ageRecord(m.q, x.id))
	if m.rng.IntN(2) > 0 {
		check(m.q.rdb.ZAddXX(context.Background(), p.Keys[store.KeyWaiting], redis.Z{Score: 1, Member: store.MemberOf(x.id, x.key)}).Err())
	}
}

// ageRecord makes a message too old.
func ageRecord(q *Queue, id string) error {
	p := q.manifests.partitions[0]
	rec, err := q.rdb.HGet(context.Background(), p.Keys[store.KeyMessages], id).Result()
	if err != nil {
		return err
	}
	return q.rdb.HSet(context.Background(), p.Keys[store.KeyMessages], id, rec[:32]+"0000000000001"+rec[45:]).Err()
}
