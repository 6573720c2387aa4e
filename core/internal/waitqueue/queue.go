package waitqueue

import (
	"slices"
	"time"
)

// A Queue is the calls of one process that wait for one key with one limit, in order of
// arrival. Its zero value but for Config and Limit is an empty queue.
//
// Each event is a method. What it returns is to be done, in order, before the next event of any
// queue that shares the Config. A Queue is not safe for concurrent use.
type Queue struct {
	*Config
	Limit int // how many may hold the key together; 1: exclusively; 0: no limit

	first, last *Call
	n           int

	held   int64 // the first fence of the exclusive grant that this process has; 0: none
	wanted bool  // calls of other processes wait too

	token string // ours in the key's FIFO, as far as we know; else ""
	// When token was last sent for, and the server's clock in ms as it answered: zero while
	// there is no answer. A grant to token is newer than sent.
	sent   time.Time
	server int64
	asked  string // the token that a question is under way about; else ""
	// Tokens that a message granted while a question about them was under way: its answer is
	// out of date.
	overtaken []overtaken

	// Whether the latest question of the calls that wait was answered. Then new calls know
	// that the key is held.
	answered bool
	failure  error // why the latest question had no answer; nil: it had one
	// When the oldest question was sent since the last answer; zero: none. A caller that leaves
	// gives up its question, but the time without an answer goes on counting against Redis.
	silent time.Time

	// Admissions under way, and until when the queue does not ask by itself meanwhile.
	admitting int
	admitBy   time.Time

	asks  int       // questions since the queue was last granted the key
	askAt time.Time // when to ask again
	// When to refresh token, if that comes before; zero: not at all, or a refresh is out.
	refreshAt time.Time
	still     int // refreshes in a row that found token in the same place

	until  time.Time // when the holder's lease ends, by the last refusal
	length int       // of the key's FIFO
	place  int       // of token in it, from 1
}

type overtaken struct {
	token string
	fence int64 // of the message's grant
}

// Len is how many calls wait.
func (q *Queue) Len() int { return q.n }

// Empty reports whether the queue can be forgotten.
func (q *Queue) Empty() bool {
	return q.n == 0 && q.held == 0 && q.token == "" && q.asked == "" && q.admitting == 0 && len(q.overtaken) == 0
}

// Informed is how many calls wait and have had an answer.
func (q *Queue) Informed() (n int) {
	for c := q.first; c != nil && c.informed; c = c.next {
		n++
	}
	return n
}

// Token is the one that is in the key's FIFO, as far as is known; else "".
func (q *Queue) Token() string { return q.token }

// Held is the first fence of the exclusive grant that this process has; 0 if there is none, or
// nobody waited when it was granted.
func (q *Queue) Held() int64 { return q.held }

// Known reports whether the key is known to be held.
func (q *Queue) Known() bool { return q.held != 0 || q.answered }

// Failure is why the latest question had no answer; nil: it had one.
func (q *Queue) Failure() error { return q.failure }

// Hint is what is known of the key: when its holder's lease ends, and how many wait.
func (q *Queue) Hint() (until time.Time, waiting int) {
	return q.until, max(q.length, 1) - 1 + q.n
}

// Join puts a call at the end of the queue.
func (q *Queue) Join(c *Call) {
	c.informed, c.err = q.Known(), nil
	q.insert(c, q.last, nil)
}

// Rejoin puts a call back at the head of the queue, after its grant, with this first fence, ended
// before it could be used.
func (q *Queue) Rejoin(c *Call, fence int64) {
	if q.held == fence {
		q.held = 0
	}
	c.informed, c.err = true, nil // it had the key
	q.insert(c, nil, q.first)
	q.askAt = time.Time{}
}

// Leave takes a call out of the queue.
func (q *Queue) Leave(c *Call) []Action {
	q.begin()
	if !c.queued {
		return q.actions
	}
	wasFirst := q.first == c
	q.dequeue(c)
	switch {
	case q.first == nil:
		q.close()
	case wasFirst:
		q.withdraw()
		q.wake()
	}
	return q.actions
}

// Look tells a call what it may do now. Only the first one asks, with one question at a time,
// and none while this process holds the key exclusively: the release hands it over.
func (q *Queue) Look(now time.Time, c *Call) (v View) {
	v.Informed = c.informed
	switch {
	case !c.informed && c.err != nil:
		v.Err = c.err
		return v
	case q.first != c || q.held != 0 || q.asked != "":
		v.AskIn = -1
		return v
	}
	askAt := q.askAt
	if !q.refreshAt.IsZero() && q.refreshAt.Before(askAt) {
		switch {
		case q.refreshAt.After(now):
			askAt = q.refreshAt
		case q.token == "" || !q.Listening():
			askAt = now
		default:
			v.Refresh, q.refreshAt = q.token, time.Time{}
		}
	}
	if q.admitting > 0 && q.admitBy.After(askAt) {
		askAt = q.admitBy
	}
	if v.AskIn = askAt.Sub(now); v.AskIn > 0 {
		return v
	}
	v.Ask, v.Question.Fresh = true, q.ask(now)
	if q.silent.IsZero() {
		q.silent = now
	}
	v.Question.Token, v.Question.Sent = q.token, now
	v.Question.Timeout = max(c.Timeout-now.Sub(q.silent), time.Millisecond)
	return v
}

// AskNow lets the queue ask again without delay.
func (q *Queue) AskNow() { q.askAt = time.Time{} }

// AskAgain has the queue ask at once: messages may have been missed.
func (q *Queue) AskAgain() []Action {
	q.begin()
	q.asks, q.askAt = 0, time.Time{}
	q.wake()
	return q.actions
}

// Refused takes a refusal of the call's question.
func (q *Queue) Refused(now time.Time, c *Call, r *Refusal) []Action {
	q.begin()
	q.done(r.Token, c)
	q.informAll()
	if !q.settle(r.Token, 0, r.Server) {
		q.still = 0
		q.refused(now, r)
	}
	return q.actions
}

// Refreshed takes the answer to a refresh of a token. A place of 0 means that the token is not in the
// FIFO any more, or that the key can be had: then the queue asks at once. If there was no answer it
// asks soon.
func (q *Queue) Refreshed(now time.Time, r *Refusal, f Failure) []Action {
	q.begin()
	switch {
	case q.first == nil || q.token != r.Token || q.asked != "" || q.sent.After(r.Sent):
		return q.actions // it is out of date
	case f.Err != nil && !f.Unsent:
		q.failed(now, f)
	case f.Err != nil || r.Place == 0:
		q.askAt = time.Time{}
	default:
		if q.still++; r.Place != q.place {
			q.still = 0
		}
		q.refused(now, r)
	}
	q.wake()
	return q.actions
}

// Ends records that the holder's lease ends at a time which Redis did not tell before.
func (q *Queue) Ends(at time.Time) []Action {
	q.begin()
	q.until, q.askAt = at, at.Add(time.Millisecond)
	q.wake()
	return q.actions
}

// Granted takes a grant that answers the call's question.
func (q *Queue) Granted(now time.Time, c *Call, g Grant) []Action {
	q.begin()
	q.done(g.Token, c)
	switch {
	case q.settle(g.Token, g.Fence, 0):
	case q.token != g.Token || !c.queued:
		q.cancel(g.Token) // it is cancelled already, or another grant was handed over meanwhile
	default:
		q.give(now, c, g)
	}
	return q.actions
}

// Admitted takes the answer to an admission: a fence for each of its calls, zero if it was not
// admitted. What was granted to a call that does not wait any more is cancelled, and what may
// have been granted too.
func (q *Queue) Admitted(now time.Time, a *Admission, fences []int64, f Failure) []Action {
	q.begin()
	q.admitting--
	first, refused := q.first, (*Call)(nil)
	for i, m := range a.Calls {
		waits := m.Call.follower == m.Token
		if waits {
			m.Call.follower = ""
		}
		until := q.Validity(a.Sent, m.Call.Lease)
		switch {
		case f.Err != nil:
			if !f.Unsent {
				q.cancel(m.Token)
			}
		case fences[i] == 0:
			if waits {
				refused = m.Call
			}
		case !waits || q.Expired(until, now):
			q.cancel(m.Token)
		default:
			q.dequeue(m.Call)
			q.act(Action{Kind: Give, Call: m.Call, Token: m.Token, Fence: fences[i], Until: until})
		}
	}
	if f.Err != nil {
		q.failed(now, f)
	} else {
		q.failure, q.silent = nil, time.Time{}
		q.inform(refused)
	}
	if q.first == nil {
		q.close()
	} else if q.first != first {
		q.withdraw()
	}
	q.wake()
	return q.actions
}

// GaveUp records that a question has no answer, or that nobody waits for it. If it was sent,
// its answer goes to Orphaned.
func (q *Queue) GaveUp(now time.Time, u *Question, f Failure) []Action {
	q.begin()
	q.done(u.Token, nil)
	if f.Err != nil {
		q.failed(now, f)
	}
	if f.Unsent {
		q.forget(u.Token)
	}
	if q.token == u.Token && (u.Fresh || !f.Unsent) {
		q.token = ""
	}
	return q.actions
}

// Orphaned takes the answer to a question that was given up. Its fence is zero if it was no
// grant, and the server's clock too if there is no answer.
func (q *Queue) Orphaned(token string, fence, server int64) []Action {
	q.begin()
	if fence != 0 || server != 0 {
		q.silent = time.Time{} // Redis does answer
	}
	if !q.settle(token, fence, server) {
		q.cancel(token) // a message must not grant what is cancelled
	}
	return q.actions
}

// GrantMessage takes a grant that was published, not before since, to the queue's token. The message
// says when the claim ends on the server's clock, in ms.
func (q *Queue) GrantMessage(now, since time.Time, g Grant, ends int64) []Action {
	q.begin()
	if q.token == "" || q.token != g.Token {
		return q.actions // it is cancelled
	}
	g.Until = q.Validity(since, q.Claim)
	// The grant was made after the token's question was sent, and when that was sent the
	// server's clock had not passed the time in the answer.
	length := q.Claim
	if q.server != 0 {
		length = time.Duration(ends-q.server) * time.Millisecond
	}
	if until := q.Validity(q.sent, length); until.Before(g.Until) {
		g.Until = until
	}
	q.accept(now, g)
	return q.actions
}

// Released takes an exclusive grant of this process, whose call is done. It is handed over to the
// first call if that may be. Otherwise the caller releases it in Redis, as the Release says.
func (q *Queue) Released(now time.Time, h Held) (r Release, handedOver []Action) {
	q.begin()
	if c := q.first; q.mayHandOver(&h) {
		q.dequeue(c)
		q.held = h.Fence
		q.informAll()
		q.act(Action{Kind: HandOver, Call: c})
		return r, q.actions
	}
	if q.held == h.Fence {
		q.held = 0
	}
	switch {
	case q.first == nil:
		r.Token, q.token = q.token, ""
	case q.asked == "" && q.Ordered: // else an answer is under way; or there is no FIFO
		r.Fresh = q.ask(now)
		r.Token, r.Waits = q.token, q.first
	}
	return r, nil
}

func (q *Queue) mayHandOver(h *Held) bool {
	longest, most := handOverUnrivalled, q.Fences-1
	if q.wanted || h.Wanted {
		longest, most = handOverWanted, min(handOversWanted, most)
	}
	return q.first != nil && h.TTL != 0 && q.first.HandOver == h.TTL && h.Used < most && h.Age <= longest
}

// ReleaseAnswered takes the answer to a release with a token that waits for the key: its fence, or
// else its place; or err, if there was no answer. The refusal's Sent is when the release was sent.
func (q *Queue) ReleaseAnswered(now time.Time, fence int64, r *Refusal, err error) []Action {
	q.begin()
	q.done(r.Token, nil)
	switch {
	case q.settle(r.Token, fence, r.Server):
	case q.token != r.Token || q.first == nil || err != nil:
		q.cancel(r.Token)
		q.askAt = time.Time{}
	case fence != 0:
		q.accept(now, Grant{Token: r.Token, Fence: fence, Wanted: r.Length > 0, Until: q.Validity(r.Sent, q.Claim)})
	default:
		q.informAll()
		q.still = 0
		q.refused(now, r)
	}
	return q.actions
}

// Freed takes the answer to any other release of this process.
func (q *Queue) Freed(now time.Time, r Release, err error) []Action {
	q.begin()
	q.askAt = time.Time{}
	if !q.Ordered {
		q.askAt = now.Add(q.Backoff(1)) // others have had no turn yet
	}
	q.wake()
	if err != nil && r.Token != "" {
		q.cancel(r.Token) // it has not left the FIFO
	}
	return q.actions
}

// Lost records that a grant of this process, with this first fence, has ended without a release,
// or will not be handed over: the queue asks for itself.
func (q *Queue) Lost(fence int64) []Action {
	q.begin()
	if q.held == fence {
		q.held = 0
	}
	if q.first == nil {
		q.close()
	}
	q.askAt = time.Time{}
	q.wake()
	return q.actions
}

// Wanted records that calls of other processes wait for the key.
func (q *Queue) Wanted() { q.wanted = true }

func (q *Queue) begin() { q.actions = q.actions[:0] }

func (q *Queue) act(a Action) { q.actions = append(q.actions, a) }

// wake wakes the first call, to see when it has to ask.
func (q *Queue) wake() {
	if q.first != nil {
		q.act(Action{Kind: Wake, Call: q.first})
	}
}

func (q *Queue) insert(c, prev, next *Call) {
	c.prev, c.next, c.queued = prev, next, true
	q.link(prev, c)
	q.link(c, next)
	q.n++
}

// link has b follow a; nil is an end of the queue.
func (q *Queue) link(a, b *Call) {
	if a == nil {
		q.first = b
	} else {
		a.next = b
	}
	if b == nil {
		q.last = a
	} else {
		b.prev = a
	}
}

func (q *Queue) dequeue(c *Call) {
	q.link(c.prev, c.next)
	c.prev, c.next, c.queued, c.follower = nil, nil, false, ""
	q.n--
	q.answered = q.answered && q.n > 0
}

// close gives up the queue's place in Redis's FIFO, since nobody waits.
func (q *Queue) close() {
	if q.token == "" || q.held != 0 { // its release takes the token along
		return
	}
	q.asked = "" // the answer comes to nobody
	q.cancel(q.token)
}

// cancel gives up a token.
func (q *Queue) cancel(token string) {
	if q.token == token {
		q.token = ""
	}
	q.act(Action{Kind: Cancel, Token: token})
}

// ask begins a question. It reports whether the queue's token is new.
func (q *Queue) ask(now time.Time) (fresh bool) {
	if q.token == "" {
		q.token, fresh = q.NewToken(q.Limit), true
		q.sent, q.server = now, 0
	}
	q.asked = q.token
	return fresh
}

// done ends the question about a token, which c had asked if it is not nil. Whoever is the
// first meanwhile may ask.
func (q *Queue) done(token string, c *Call) {
	if q.asked == token {
		q.asked = ""
	}
	if q.first != c {
		q.wake()
	}
}

// settle records the answer to a question about a token. It reports whether a grant message
// arrived first. If so, and the answer is a grant with another fence, or a refusal from after the
// grant, then the question reached Redis only after that grant was released: the token has a place
// or a grant that nobody uses.
func (q *Queue) settle(token string, fence, server int64) bool {
	granted := q.forget(token)
	if granted != 0 && (fence != 0 && fence != granted || fence == 0 && server*1000 > granted) {
		q.cancel(token)
	}
	return granted != 0
}

// forget returns the fence of a message that overtook an answer, once.
func (q *Queue) forget(token string) (fence int64) {
	for i, o := range q.overtaken {
		if o.token == token {
			q.overtaken = slices.Delete(q.overtaken, i, i+1)
			return o.fence
		}
	}
	return 0
}

// accept takes a grant to the queue's token that does not answer a question. It is valid until
// g.Until.
func (q *Queue) accept(now time.Time, g Grant) {
	if q.first == nil || q.Expired(g.Until, now) {
		// This process was stopped, or the message late: Redis knows whether the grant still
		// stands.
		q.askAt = time.Time{}
		q.wake()
		return
	}
	if q.asked == g.Token {
		q.overtaken, q.asked = append(q.overtaken, overtaken{g.Token, g.Fence}), ""
	}
	q.give(now, q.first, g)
}

// give gives a grant of the queue's token to a call.
func (q *Queue) give(now time.Time, c *Call, g Grant) {
	q.token = ""
	q.dequeue(c)
	q.act(Action{Kind: Give, Call: c, Token: g.Token, Fence: g.Fence, Until: g.Until})
	q.failure, q.silent = nil, time.Time{}
	q.asks, q.askAt = 0, time.Time{}
	q.wanted = g.Wanted
	switch {
	case q.first == nil:
	case q.Limit == 1:
		q.inform(q.last)
		q.held = g.Fence
	case q.Ordered && (q.Limit == 0 || g.Room):
		q.admit(now, g.Token)
	default:
		q.inform(q.last)
		q.wake() // it may hold the key too
	}
}

// admit begins the admission of the calls that wait, or of as many as fit beside the leader.
func (q *Queue) admit(now time.Time, leader string) {
	q.admitBy = now.Add(admissionTimeout)
	q.wake() // to ask by then
	left := q.n
	if q.Limit != 0 {
		left = min(left, q.Limit-1)
	}
	for c := q.first; left > 0; {
		a := &Admission{Leader: leader, Sent: now, Calls: make([]Follower, 0, min(left, MaxFollowers))}
		for ; left > 0 && len(a.Calls) < MaxFollowers; c, left = c.next, left-1 {
			c.follower = q.NewToken(q.Limit)
			a.Calls = append(a.Calls, Follower{c, c.follower})
		}
		q.admitting++
		q.act(Action{Kind: Admit, Admission: a})
	}
}

// withdraw takes back the token of a queue whose first call is gone, if others may be granted the
// key along with it: it may have been granted already, and to a call that came later its fence
// could be smaller than one seen before.
func (q *Queue) withdraw() {
	if q.Limit != 1 && q.token != "" {
		q.cancel(q.token)
		q.askAt = time.Time{}
	}
}

// informAll records that Redis has answered, or this process has the key: the calls that wait know
// that they cannot have it.
func (q *Queue) informAll() {
	q.failure, q.silent = nil, time.Time{}
	q.inform(q.last)
}

// inform has c, if it is not nil, and the calls before it know that the key is held.
func (q *Queue) inform(c *Call) {
	q.answered = q.answered || c != nil && c == q.last
	for ; c != nil && !c.informed; c = c.prev {
		c.informed = true
		q.act(Action{Kind: Wake, Call: c})
	}
}

// failed records that a question failed. The calls that are not informed end, since they know
// nothing of the key, and no others: those wait on, and the first of them asks again.
func (q *Queue) failed(now time.Time, f Failure) {
	q.asks++
	q.askAt, q.refreshAt = now.Add(q.Backoff(q.asks)), time.Time{}
	if f.Local {
		return
	}
	q.answered, q.failure, q.silent = false, f.Err, time.Time{}
	for c := q.last; c != nil && !c.informed; c = c.prev {
		c.err = f.Err
		q.act(Action{Kind: Wake, Call: c})
	}
}

// refused records what Redis said of the queue's token, and when to ask again or to refresh it. A
// release wakes the queue; both are for messages that were lost and for holders that died.
func (q *Queue) refused(now time.Time, r *Refusal) {
	if q.token != r.Token { // it was cancelled while the question was under way
		q.cancel(r.Token)
		return
	}
	q.sent, q.server = r.Sent, r.Server
	q.until = r.Sent.Add(r.Remaining)
	q.place, q.length = r.Place, r.Length
	q.wanted = r.Length > min(r.Place, 1)
	q.asks++
	q.refreshAt = time.Time{}
	if r.Place == 0 {
		q.token = "" // Redis does not know it
	}
	if !q.Ordered || r.Polls || q.token == "" {
		q.askAt = now
		if !q.Ordered || q.token == "" || !q.Listening() { // else the next answer tells by message
			q.askAt = now.Add(q.Backoff(q.asks))
		}
		return
	}
	// The first few notice one another's deaths, and look less and less often while nothing
	// changes. Those behind them have time.
	polls := min(max(1<<min(q.still, 3), q.place-2), maxPolls)
	q.refreshAt = now.Add(q.Spread(time.Duration(polls) * q.Poll))
	q.refreshAt = q.refreshAt.Add(-(q.refreshAt.Sub(q.Epoch) % refreshGrid))
	if q.place <= 3 && q.until.After(now) && q.until.Before(q.refreshAt) {
		q.refreshAt = q.until.Add(time.Millisecond)
	}
	q.askAt = q.refreshAt.Add(maxPolls * q.Poll) // should the refresh have no answer
}
