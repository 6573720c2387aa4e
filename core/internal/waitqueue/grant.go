package waitqueue

// Grants, whether they answer a question or come by a message.

import "time"

// Grant is a key that Redis has granted to a token.
type Grant struct {
	Token  string
	Fence  int64
	Wanted bool // others wait
	Room   bool // for one more such holder; any number of readers has room
	Until  time.Time
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
	q.act(Action{Kind: Give, Call: c, Token: g.Token, Fence: g.Fence, Until: g.Until, Wanted: g.Wanted})
	q.failure, q.silent = nil, time.Time{}
	q.asks, q.askAt = 0, time.Time{}
	q.wanted = g.Wanted
	switch {
	case q.first == nil:
	case q.Limit == 1:
		q.inform(q.last)
		q.held = g.Fence
	case q.Ordered && (q.Limit == 0 || g.Room):
		q.admit(now, g)
	default:
		q.inform(q.last)
		q.wake() // it may hold the key too
	}
}
