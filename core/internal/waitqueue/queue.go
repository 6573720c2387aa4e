package waitqueue

import (
	"iter"
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
	behind int64 // the greatest fence of a grant that a message said they wait behind

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
	// abandons its question, but the time without an answer goes on counting against Redis.
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

// Len is how many calls wait.
func (q *Queue) Len() int { return q.n }

// Calls are the calls that wait, in order.
func (q *Queue) Calls() iter.Seq[*Call] {
	return func(yield func(*Call) bool) {
		for c := q.first; c != nil; c = c.next {
			if !yield(c) {
				return
			}
		}
	}
}

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

// close leaves Redis's FIFO, since nobody waits.
func (q *Queue) close() {
	if q.token == "" || q.held != 0 { // its release takes the token along
		return
	}
	q.asked = "" // the answer comes to nobody
	q.cancel(q.token)
}

// inform has c, if it is not nil, and the calls before it know that the key is held.
func (q *Queue) inform(c *Call) {
	q.answered = q.answered || c != nil && c == q.last
	for ; c != nil && !c.informed; c = c.prev {
		c.informed = true
		q.act(Action{Kind: Wake, Call: c})
	}
}

// informAll records that Redis has answered, or this process has the key: the calls that wait know
// that they cannot have it.
func (q *Queue) informAll() {
	q.failure, q.silent = nil, time.Time{}
	q.inform(q.last)
}

func (q *Queue) begin() { q.actions = q.actions[:0] }

func (q *Queue) act(a Action) { q.actions = append(q.actions, a) }

// wake wakes the first call, to see when it has to ask.
func (q *Queue) wake() {
	if q.first != nil {
		q.act(Action{Kind: Wake, Call: q.first})
	}
}
