package waitqueue

import (
	"iter"
	"time"
)

// Queue is the calls of one process that wait for one key with one limit, in order of arrival. Its
// zero value with Config and Limit set is an empty queue.
//
// Each event is a method. The actions that it returns are to be done, in order, before the next
// event of any queue that shares the Config. A Queue is not safe for concurrent use.
type Queue struct {
	*Config
	Limit int // how many may hold the key together; 1: exclusively; 0: no limit

	first, last *Call
	n           int

	held           int64 // the first fence of the exclusive grant that this process has; 0: none
	wanted         bool  // calls of other processes wait too
	contendedFence int64 // the greatest fence of a grant for which, by a message, calls of other processes wait

	token string // the queue's token in the key's FIFO, as far as is known; else ""
	// When the latest request with token was sent, and the server's clock in ms in the reply: zero while
	// there is none. A grant to token is newer than sent.
	sent     time.Time
	server   int64
	inFlight string // the token of the request in flight; else ""
	// Tokens that a message granted the key while their request was in flight: its reply is out of date.
	overtaken []overtaken

	// Whether the latest request of the calls that wait was answered. If so, new calls know that the key is held.
	answered bool
	failure  error // why the latest request has no reply; nil: it has one
	// When the first request since the last reply was sent; zero: none. A caller that leaves
	// abandons its request, but the time without a reply still counts against Redis.
	silent time.Time

	// How many admissions are in flight, and until when the queue does not ask by itself meanwhile.
	admitting int
	admitBy   time.Time

	asks  int       // requests since the queue was last granted the key
	askAt time.Time // when to ask again
	// When to refresh token, if that is earlier; zero: not at all, or a refresh is in flight.
	refreshAt time.Time
	still     int // successive refreshes that found token in the same place

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
	return q.n == 0 && q.held == 0 && q.token == "" && q.inFlight == "" && q.admitting == 0 && len(q.overtaken) == 0
}

// Informed is how many calls wait and know that the key is held.
func (q *Queue) Informed() (n int) {
	for c := q.first; c != nil && c.informed; c = c.next {
		n++
	}
	return n
}

// Token is the token in the key's FIFO, as far as is known; else "".
func (q *Queue) Token() string { return q.token }

// Held is the first fence of the exclusive grant that this process has. It is 0 if there is none,
// or if no call waited when it was granted.
func (q *Queue) Held() int64 { return q.held }

// Known reports whether the key is known to be held.
func (q *Queue) Known() bool { return q.held != 0 || q.answered }

// Failure is why the latest request has no reply; nil: it has one.
func (q *Queue) Failure() error { return q.failure }

// Hint returns what is known of the key: when its holder's lease ends, and how many calls wait.
func (q *Queue) Hint() (until time.Time, waiting int) {
	return q.until, max(q.length, 1) - 1 + q.n
}

// Join puts a call at the end of the queue.
func (q *Queue) Join(c *Call) {
	c.informed, c.err = q.Known(), nil
	q.insert(c, q.last, nil)
}

// Rejoin puts a call back at the head of the queue. Its grant, with this first fence, has ended before it could be used.
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

// link makes b the successor of a; nil is an end of the queue.
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

// close leaves Redis's FIFO, since no call waits.
func (q *Queue) close() {
	if q.token == "" || q.held != 0 { // the release of the grant takes the token along
		return
	}
	q.inFlight = "" // no call waits for the reply
	q.cancel(q.token)
}

// inform records for c, if it is not nil, and for the calls before it that they know the key to be held.
func (q *Queue) inform(c *Call) {
	q.answered = q.answered || c != nil && c == q.last
	for ; c != nil && !c.informed; c = c.prev {
		c.informed = true
		q.act(Action{Kind: Wake, Call: c})
	}
}

// informAll records that Redis has replied, or that this process has the key: all calls that wait know that the key is held.
func (q *Queue) informAll() {
	q.failure, q.silent = nil, time.Time{}
	q.inform(q.last)
}

func (q *Queue) begin() { q.actions = q.actions[:0] }

func (q *Queue) act(a Action) { q.actions = append(q.actions, a) }

// wake wakes the first call, which then finds out when it has to ask.
func (q *Queue) wake() {
	if q.first != nil {
		q.act(Action{Kind: Wake, Call: q.first})
	}
}
