package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/redistest"
)

// The scripts against a model of what they promise: random calls, one at a time, each
// answer and each record compared.

const (
	modelAttempts = 2
	modelLater    = time.Hour // nothing that waits becomes due during a run
	modelAge      = 24 * time.Hour
)

type modelMessage struct {
	id, key                     string
	state                       State
	attempts, conflicts, losses int
	later                       bool // not due yet
	waits                       bool // for its key
	nudged                      bool
	tooOld                      bool // and queued: it expires when somebody looks
	claim                       *claim
}

type modelSettle struct {
	claim   *claim
	verdict verdict
	was     settled
}

type model struct {
	q        *Queue
	rng      *rand.Rand
	all      []*modelMessage
	byID     map[string]*modelMessage
	lines    map[string][]*modelMessage
	past     []modelSettle // that ended a claim
	lost     []*claim      // that were taken over
	tokens   int
	done     int
	happened map[string]int
}

// violation is what the model did not expect. Errors of Redis are others.
type violation struct{ text string }

func (v *violation) Error() string { return v.text }

func violated(format string, args ...any) error { return &violation{fmt.Sprintf(format, args...)} }

func (m *model) token() string {
	m.tokens++
	return fmt.Sprint("token", m.tokens)
}

// due reports whether a claim may bring a message, and whether it must, if it brings
// fewer than were asked for. Those before it may expire at any look.
func (m *model) due(x *modelMessage) (may, must bool) {
	if x.state != StateQueued || x.later || x.tooOld {
		return false, false
	}
	if x.key == "" {
		return true, true
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
func (m *model) started(c *claim, anyway bool) error {
	x := m.byID[c.message.ID]
	if x == nil {
		return violated("claimed %q, which nobody enqueued", c.message.ID)
	}
	if may, _ := m.due(x); !may && !anyway {
		return violated("claimed %s, whose turn it is not: %+v", x.id, x)
	}
	for x.key != "" && m.lines[x.key][0] != x { // they were looked at
		m.end(m.lines[x.key][0], StateExpired)
	}
	x.state, x.claim, x.waits, x.nudged = StateRunning, c, false, false
	x.attempts++
	got := []int{c.message.Attempt, c.message.Conflicts, c.message.Losses}
	if want := []int{x.attempts, x.conflicts, x.losses}; !slices.Equal(got, want) {
		return violated("message %s was claimed with attempt, conflicts, losses %v, want %v", x.id, got, want)
	}
	if c.message.Key != x.key || string(c.message.Payload) != "work of "+x.id {
		return violated("message %s is another: %+v", x.id, c.message)
	}
	return nil
}

func (m *model) end(x *modelMessage, state State) {
	x.state, x.claim, x.tooOld = state, nil, false
	if x.key != "" {
		m.lines[x.key] = slices.DeleteFunc(m.lines[x.key], func(y *modelMessage) bool { return x == y })
	}
}

func (m *model) enqueue() error {
	open := 0
	for _, x := range m.all {
		if !x.state.Ended() {
			open++
		}
	}
	if open >= 6 { // few of them, so that much happens to each
		return nil
	}
	job := Job{ID: fmt.Sprint("m", len(m.all)), Key: []string{"", "a", "a", "b"}[m.rng.IntN(4)], MaxAge: modelAge}
	x := &modelMessage{id: job.ID, key: job.Key, state: StateQueued}
	if known := len(m.all) > 0 && m.rng.IntN(5) == 0; known {
		x = m.all[m.rng.IntN(len(m.all))]
		job.ID, job.Key = x.id, x.key
	} else {
		x.later = m.rng.IntN(6) == 0
		job.parked = job.Key != "" && m.rng.IntN(5) == 0
		x.waits = job.parked
		m.all, m.byID[x.id] = append(m.all, x), x
		if x.key != "" {
			m.lines[x.key] = append(m.lines[x.key], x)
		}
		if x.later {
			job.Delay = modelLater
		}
	}
	job.Payload = []byte("work of " + job.ID)
	e := &enqueueing{ctx: context.Background(), job: job, done: make(chan struct{})}
	m.q.partitions[0].enqueue([]*enqueueing{e})
	return e.err
}

// look has a claim without a hand look at the queue.
func (m *model) look() (batch, error) {
	return m.claimAs("", 0)
}

func (m *model) claimAs(token string, n int) (batch, error) {
	return m.q.partitions[0].claim(context.Background(), token, time.Hour, n)
}

func (m *model) take(n int) (claims []*claim, err error) {
	token := m.token()
	var must int
	old := slices.ContainsFunc(m.all, func(x *modelMessage) bool { return x.tooOld })
	for _, x := range m.all {
		if _, is := m.due(x); is {
			must++
		}
	}
	b, err := m.claimAs(token, n)
	if err != nil {
		return nil, err
	}
	for _, message := range b.messages {
		c := &claim{message: message, partition: m.q.partitions[0], token: token}
		if err := m.started(c, false); err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	if len(claims) > n || !old && len(claims) < min(n, must) {
		return nil, violated("a claim for %d of %d brought %d", n, must, len(claims))
	}
	return claims, nil
}

func (m *model) claim() error {
	claims, err := m.take(1 + m.rng.IntN(3))
	if err != nil || len(claims) == 0 || m.rng.IntN(2) == 0 {
		return err
	}
	again, err := m.claimAs(claims[0].token, 5)
	if err != nil {
		return err
	}
	m.happened["claims sent again"]++
	var got, want []string
	for i := range claims {
		want = append(want, claims[i].message.ID)
	}
	for _, message := range again.messages {
		got = append(got, message.ID)
	}
	if !slices.Equal(got, want) {
		return violated("a claim that was sent again brought %v, and %v at first", got, want)
	}
	return nil
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

func (m *model) settle() error {
	x := m.any(StateRunning)
	if x == nil {
		return nil
	}
	v := verdict{
		outcome: []Outcome{OutcomeDone, OutcomeDone, OutcomeDone, OutcomeDead, OutcomeRetry, OutcomeConflict, OutcomeConflict, OutcomeReturned}[m.rng.IntN(8)],
		err:     errors.New("why"),
	}
	if x.nudged && m.rng.IntN(3) > 0 { // what a nudge before the settlement is for
		v.outcome = OutcomeConflict
	}
	v.awaitsKey = v.outcome == OutcomeConflict && x.key != "" && m.rng.IntN(4) > 0
	if v.awaitsKey || m.rng.IntN(4) == 0 {
		v.delay = modelLater
	}
	v.lost = v.outcome == OutcomeRetry && m.rng.IntN(3) == 0
	ends := v.outcome == OutcomeDone || v.outcome == OutcomeDead
	if m.rng.IntN(3) > 0 {
		v.next, v.which = m.token(), nextOfAny
		if x.key != "" && ends && m.rng.IntN(4) > 0 {
			v.which = nextOfKey
		}
	}
	if err := m.settleAs(x, v); err != nil || m.rng.IntN(3) > 0 {
		return err
	}
	return m.resend()
}

func (m *model) settleAs(x *modelMessage, v verdict) error {
	c := x.claim
	may := map[*modelMessage]bool{} // those that were due before
	for _, y := range m.all {
		may[y], _ = m.due(y)
	}
	s, err := settleOnce(c, v)
	if err != nil {
		return err
	}
	if !s.held || s.expired {
		return violated("the claim on %s was refused: %+v", x.id, s)
	}
	m.past = append(m.past, modelSettle{c, v, s})
	switch v.outcome {
	case OutcomeDone:
		m.end(x, StateDone)
		m.done++
	case OutcomeDead:
		m.end(x, StateDead)
	default:
		x.state, x.claim, x.later = StateQueued, nil, v.delay > 0 && (!v.awaitsKey || !x.nudged)
		x.nudged, x.waits = false, v.awaitsKey
		if v.outcome != OutcomeRetry {
			x.attempts--
		}
		if v.outcome == OutcomeConflict {
			x.conflicts++
		}
		if v.lost {
			x.losses++
		}
	}
	return m.followed(x, v, s, may)
}

// followed checks what a settlement claimed next.
func (m *model) followed(x *modelMessage, v verdict, s settled, may map[*modelMessage]bool) error {
	var head *modelMessage // the next of its key, those aside that are too old
	for _, y := range m.lines[x.key] {
		if !y.tooOld {
			head = y
			break
		}
	}
	follows := v.which == nextOfKey && head != nil && head.state == StateQueued && (!head.later || head.waits)
	switch {
	case s.next == nil && follows:
		return violated("%s did not follow %s", head.id, x.id)
	case s.next == nil:
		return nil
	case v.next == "":
		return violated("%s was claimed, and nobody asked", s.next.ID)
	case v.which == nextOfKey && (!follows || head.id != s.next.ID):
		return violated("%s followed %s out of turn", s.next.ID, x.id)
	}
	m.happened["next "+v.which]++
	y := m.byID[s.next.ID]
	return m.started(&claim{message: *s.next, partition: m.q.partitions[0], token: v.next}, v.which == nextOfKey || y != nil && may[y])
}

// resend sends a settlement again. It changes nothing.
func (m *model) resend() error {
	if len(m.past) == 0 {
		return nil
	}
	p := m.past[len(m.past)-1-m.rng.IntN(min(3, len(m.past)))]
	x := m.byID[p.claim.message.ID]
	s, err := settleOnce(p.claim, p.verdict)
	if err != nil {
		return err
	}
	m.happened["settlements sent again"]++
	// What settled a message last knows its own.
	last := p
	for _, q := range m.past {
		if q.claim.message.ID == x.id {
			last = q
		}
	}
	if last.claim == p.claim && !s.held {
		return violated("a settlement of %s that was sent again is refused", x.id)
	}
	running := p.was.next != nil && m.byID[p.was.next.ID].claim != nil && m.byID[p.was.next.ID].claim.token == p.verdict.next
	if s.next != nil && (!running || s.next.ID != p.was.next.ID) || s.next == nil && running {
		return violated("a settlement of %s that was sent again brought %+v, and %+v at first", x.id, s.next, p.was.next)
	}
	return nil
}

// stray has somebody settle, or extend, who lost the claim.
func (m *model) stray() error {
	if len(m.lost) == 0 {
		return nil
	}
	c := m.lost[m.rng.IntN(len(m.lost))]
	held, err := m.q.partitions[0].extend(context.Background(), time.Hour, []*claim{c})
	if err != nil {
		return err
	}
	s, err := settleOnce(c, verdict{outcome: []Outcome{OutcomeDone, OutcomeRetry}[m.rng.IntN(2)]})
	if err != nil {
		return err
	}
	m.happened["late settlements"]++
	if s.held || held[0] {
		return violated("a claim on %s that was lost is taken for held", c.message.ID)
	}
	return nil
}

// expire ends a running claim, as when its worker died.
func (m *model) expire() error {
	x := m.any(StateRunning)
	if x == nil {
		return nil
	}
	if err := m.q.rdb.ZAdd(context.Background(), m.q.partitions[0].base+":running", redis.Z{Score: 1, Member: x.id + " " + x.key}).Err(); err != nil {
		return err
	}
	b, err := m.look()
	if err != nil {
		return err
	}
	m.lost = append(m.lost, x.claim)
	m.happened["claims expired"]++
	x.losses++
	if x.attempts >= modelAttempts {
		m.end(x, StateDead)
		if b.buried != 1 {
			return violated("message %s is not buried", x.id)
		}
		return nil
	}
	x.state, x.claim, x.later = StateQueued, nil, false
	if b.redelivered != 1 {
		return violated("message %s is not redelivered", x.id)
	}
	return nil
}

func (m *model) nudge() error {
	key := []string{"a", "a", "b"}[m.rng.IntN(3)]
	found, err := m.q.partitions[0].nudge(context.Background(), []string{key})
	if err != nil {
		return err
	}
	want := int64(nudgeEmpty)
	if line := m.lines[key]; len(line) > 0 {
		want = nudgeBusy
		switch head := line[0]; {
		case head.state == StateRunning:
			head.nudged = true
		case head.waits:
			head.waits, head.later = false, false
			want = nudgeWoken
			m.happened["nudges"]++
		}
		if line[0].tooOld { // it may have expired already
			return nil
		}
	}
	if found[0] != want {
		return violated("a nudge of %s found %d, want %d", key, found[0], want)
	}
	return nil
}

func (m *model) cancel() error {
	if len(m.all) == 0 {
		return nil
	}
	x := m.all[m.rng.IntN(len(m.all))]
	words, err := m.q.partitions[0].cancel(context.Background(), x.id)
	if err != nil {
		return err
	}
	was := State(words[0])
	if was != x.state && (!x.tooOld || was != StateExpired) {
		return violated("cancel found %s %s, want %s", x.id, was, x.state)
	}
	if x.state == StateQueued {
		m.end(x, was)
		if was == StateQueued {
			x.state = StateCancelled
		}
		m.happened["cancelled"]++
	}
	return nil
}

// age makes a queued message too old.
func (m *model) age() error {
	x := m.any(StateQueued)
	if x == nil || x.tooOld {
		return nil
	}
	p := m.q.partitions[0]
	m.happened["aged"]++
	x.tooOld = true
	if err := m.q.rdb.HSet(context.Background(), p.recordName(x.id), "not_after", 1).Err(); err != nil || m.rng.IntN(2) == 0 {
		return err
	}
	if err := m.q.rdb.ZAdd(context.Background(), p.base+":open", redis.Z{Score: 1, Member: x.id + " " + x.key}).Err(); err != nil {
		return err
	}
	if _, err := m.look(); err != nil {
		return err
	}
	m.end(x, StateExpired)
	return nil
}

// compare holds records against the model: those of messages that have not ended, or all.
func (m *model) compare(all bool) error {
	pipe := m.q.rdb.Pipeline()
	cmds := map[*modelMessage]*redis.SliceCmd{}
	for _, x := range m.all {
		if all || !x.state.Ended() || m.rng.IntN(10) == 0 {
			cmds[x] = pipe.HMGet(context.Background(), m.q.partitions[0].recordName(x.id), statusFields...)
		}
	}
	if len(cmds) == 0 {
		return nil
	}
	if _, err := pipe.Exec(context.Background()); err != nil {
		return err
	}
	for x, cmd := range cmds {
		s := readRecord(statusFields, cmd.Val()).status(x.id)
		if x.tooOld && s.State == StateExpired {
			m.end(x, StateExpired)
		}
		if s.State != x.state || s.Attempts != x.attempts || s.Conflicts != x.conflicts || s.Losses != x.losses {
			return violated("message %s is %s after %d attempts, %d conflicts, %d losses; want %+v", x.id, s.State, s.Attempts, s.Conflicts, s.Losses, x)
		}
	}
	return nil
}

// pass lets time pass until all that waits is due.
func (m *model) pass() error {
	p := m.q.partitions[0]
	for _, x := range m.all {
		if x.state == StateQueued && x.later {
			x.later = false
			if err := m.q.rdb.HSet(context.Background(), p.recordName(x.id), "due", 1).Err(); err != nil {
				return err
			}
			if err := m.q.rdb.ZAddXX(context.Background(), p.base+":due", redis.Z{Score: 1, Member: x.id + " " + x.key}).Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain runs what is left to its end.
func (m *model) drain() error {
	p := m.q.partitions[0]
	for range 50 {
		for _, x := range m.all {
			switch {
			case x.state == StateRunning:
				if err := m.settleAs(x, verdict{outcome: OutcomeDone}); err != nil {
					return err
				}
			case x.tooOld:
				m.q.rdb.ZAddXX(context.Background(), p.base+":open", redis.Z{Score: 1, Member: x.id + " " + x.key})
			}
		}
		if err := m.pass(); err != nil {
			return err
		}
		if _, err := m.take(10); err != nil {
			return err
		}
		if err := m.compare(true); err != nil {
			return err
		}
		if !slices.ContainsFunc(m.all, func(x *modelMessage) bool { return !x.state.Ended() }) {
			break
		}
	}
	for _, set := range []string{":due", ":open", ":running"} {
		left, err := m.q.rdb.ZRange(context.Background(), p.base+set, 0, -1).Result()
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return violated("left in %s: %q", set, left)
		}
	}
	counts, err := m.q.rdb.HGetAll(context.Background(), p.base+":counts").Result()
	if err != nil {
		return err
	}
	if counts["enqueued"] != fmt.Sprint(len(m.all)) || m.done > 0 && counts["done"] != fmt.Sprint(m.done) {
		return violated("%d messages, %d done, and the counts say %v", len(m.all), m.done, counts)
	}
	return nil
}

// playModel makes random calls, and returns the first thing that was not as promised.
func playModel(t *testing.T, env *redistest.Env, seed uint64, calls int, hook redis.Hook) (happened map[string]int, err error) {
	t.Helper()
	rdb := env.Client(t)
	if hook != nil {
		rdb.AddHook(hook)
	}
	q, err := New(rdb, fmt.Sprint("model", seed), WithPrefix(env.Prefix), WithMaxAttempts(modelAttempts))
	require.NoError(t, err)
	m := &model{
		q: q, rng: rand.New(rand.NewPCG(seed, 0)), byID: map[string]*modelMessage{}, lines: map[string][]*modelMessage{},
		happened: map[string]int{},
	}
	var ops []func() error
	for _, op := range []struct {
		weight int
		call   func() error
	}{
		{5, m.enqueue}, {3, m.claim}, {6, m.settle}, {2, m.resend}, {1, m.stray}, {1, m.expire}, {4, m.nudge}, {1, m.cancel}, {1, m.age}, {1, m.pass},
	} {
		ops = append(ops, slices.Repeat([]func() error{op.call}, op.weight)...)
	}
	for i := range calls {
		if err := ops[m.rng.IntN(len(ops))](); err != nil {
			return m.happened, fmt.Errorf("call %d: %w", i, err)
		}
		if err := m.compare(false); err != nil {
			return m.happened, fmt.Errorf("after call %d: %w", i, err)
		}
	}
	return m.happened, m.drain()
}

func TestTheScriptsDoWhatTheModelSays(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		total := map[string]int{}
		for range 30 {
			seed := rand.Uint64N(1e9)
			happened, err := playModel(t, env, seed, 120, nil)
			require.NoError(t, err, "seed %d", seed)
			for what, n := range happened {
				total[what] += n
			}
		}
		t.Log(total)
		for _, what := range []string{"claims sent again", "settlements sent again", "late settlements", "claims expired", "next any", "next key", "nudges", "cancelled", "aged"} {
			require.Positive(t, total[what], what)
		}
	})
}
