package waitqueue

// Grants, by the reply to a request or by a message.

import "time"

// Grant says that Redis has granted the key to a token.
type Grant struct {
	Token  string
	Fence  int64
	Wanted bool      // others wait
	Room   bool      // one more such holder fits; for readers always
	Asked  time.Time // it was made after this
	Until  time.Time
}

// Granted takes a grant in reply to the call's request.
func (q *Queue) Granted(now time.Time, c *Call, g Grant) []Action {
	q.begin()
	q.done(g.Token, c)
	switch {
	case q.settle(g.Token, g.Fence, 0):
	case q.token != g.Token || !c.queued:
		q.cancel(g.Token) // the token was cancelled, or another grant was handed over meanwhile
	default:
		q.give(now, c, g)
	}
	return q.actions
}

// GrantMessage takes a grant to the queue's token by a message that was published at since or
// later. The message says when the claim ends on the server's clock, in ms.
func (q *Queue) GrantMessage(now, since time.Time, g Grant, ends int64) []Action {
	q.begin()
	if q.token == "" || q.token != g.Token {
		return q.actions // the token was cancelled
	}
	g.Until = q.Validity(since, q.Claim)
	// The grant was made after the token's request was sent, and at that time the
	// server's clock had not passed the time in the reply.
	length := q.Claim
	if q.server != 0 {
		length = time.Duration(ends-q.server) * time.Millisecond
	}
	waited := max(length-q.Claim, 0)
	if g.Asked = q.sent.Add(waited - waited/100); g.Asked.After(since) { // the server's clock was set forward
		g.Asked = since
	}
	if until := q.Validity(q.sent, length); until.Before(g.Until) {
		g.Until = until
	}
	q.accept(now, g)
	return q.actions
}

// accept takes a grant to the queue's token that is not the reply to a request. It is valid until g.Until.
func (q *Queue) accept(now time.Time, g Grant) {
	if q.first == nil || q.Expired(g.Until, now) {
		// This process was stopped, or the message was late: ask Redis whether the grant is still valid.
		q.askAt = time.Time{}
		q.wake()
		return
	}
	if q.inFlight == g.Token {
		q.overtaken, q.inFlight = append(q.overtaken, overtaken{g.Token, g.Fence}), ""
	}
	q.give(now, q.first, g)
}

// give gives a grant of the queue's token to a call: dequeue it → Give → admit those that fit beside it.
func (q *Queue) give(now time.Time, c *Call, g Grant) {
	q.token = ""
	q.dequeue(c)
	q.act(Action{Kind: Give, Call: c, Token: g.Token, Fence: g.Fence, Asked: g.Asked, Until: g.Until, Wanted: g.Wanted})
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
