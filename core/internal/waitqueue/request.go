package waitqueue

// Requests to Redis for the key, and their replies.

import (
	"slices"
	"time"
)

// Request asks Redis for the key.
type Request struct {
	Token   string
	Fresh   bool // the token was made for this request
	Sent    time.Time
	Timeout time.Duration // how long to wait for the reply
}

// Refusal is Redis's reply that a token cannot have the key.
type Refusal struct {
	Token     string
	Sent      time.Time // when the request was
	Polls     bool      // no message would tell of a grant
	Remaining time.Duration
	Server    int64 // the server's clock in ms
	Latest    int64 // the key's latest fence
	Place     int   // in the FIFO, from 1; 0: not in it; -1: not known, since the request came late
	Length    int   // of the FIFO
}

// Failure is why a request has no reply.
type Failure struct {
	Err    error // nil: its caller no longer waits
	Unsent bool  // Redis never got the request
	Local  bool  // it says nothing about Redis: only the call that asked fails
}

// Next returns what a call may do now: its policy may decide, or it is to ask Redis, or to wait.
// Only the first call asks, with one request at a time, and not while this process holds the key
// exclusively: then the release hands it over.
func (q *Queue) Next(now time.Time, c *Call) (v Step) {
	v.Informed = c.informed
	switch {
	case !c.informed && c.err != nil:
		v.Err = c.err
		return v
	case q.first != c || q.held != 0 || q.inFlight != "":
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
	v.Ask, v.Request.Fresh = true, q.ask(now)
	if q.silent.IsZero() {
		q.silent = now
	}
	v.Request.Token, v.Request.Sent = q.token, now
	v.Request.Timeout = max(c.Timeout-now.Sub(q.silent), time.Millisecond)
	return v
}

// AskNow lets the queue ask without delay.
func (q *Queue) AskNow() { q.askAt = time.Time{} }

// AskAgain lets the queue ask at once: messages may have been missed.
func (q *Queue) AskAgain() []Action {
	q.begin()
	q.asks, q.askAt = 0, time.Time{}
	q.wake()
	return q.actions
}

// Refused takes a refusal of the call's request.
func (q *Queue) Refused(now time.Time, c *Call, r *Refusal) []Action {
	q.begin()
	q.done(r.Token, c)
	q.informAll()
	if !q.settle(r.Token, 0, r.Latest) {
		q.still = 0
		q.refused(now, r)
	}
	return q.actions
}

// Unanswered records that a request has no reply, or that no call waits for it. If it was sent, its reply goes to Orphaned.
func (q *Queue) Unanswered(now time.Time, req *Request, f Failure) []Action {
	q.begin()
	q.done(req.Token, nil)
	if f.Err != nil {
		q.failed(now, f)
	}
	if f.Unsent {
		q.forget(req.Token)
	}
	if q.token == req.Token && (req.Fresh || !f.Unsent) {
		q.token = ""
	}
	return q.actions
}

// Orphaned takes the reply to a request that no call waits for: a fence, or a refusal's latest fence and the server's clock; all
// of them are zero if there is no reply.
func (q *Queue) Orphaned(token string, fence, latest, server int64) []Action {
	q.begin()
	if fence != 0 || server != 0 {
		q.silent = time.Time{} // Redis does reply
	}
	if !q.settle(token, fence, latest) {
		q.cancel(token) // no message may grant the key to it
	}
	return q.actions
}

// Claimed reports whether a message had given a call the grant that a reply to Orphaned tells of.
func (q *Queue) Claimed(token string, fence int64) bool {
	return slices.Contains(q.overtaken, overtaken{token, fence})
}

// ask begins a request. It reports whether the queue's token is new.
func (q *Queue) ask(now time.Time) (fresh bool) {
	if q.token == "" {
		q.token, fresh = q.NewToken(q.Limit), true
		q.sent, q.server = now, 0
	}
	q.inFlight = q.token
	return fresh
}

// done ends the request of a token, which c sent if that is not nil. The call that is the first by now may ask.
func (q *Queue) done(token string, c *Call) {
	if q.inFlight == token {
		q.inFlight = ""
	}
	if q.first != c {
		q.wake()
	}
}

// failed records that a request failed. The calls that are not informed fail, since they know
// nothing about the key. The others wait on, and the first of them asks again.
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

// cancel has Redis forget a token.
func (q *Queue) cancel(token string) {
	if q.token == token {
		q.token = ""
	}
	q.act(Action{Kind: Cancel, Token: token})
}

// overtaken is a token that a message granted the key before the reply to its request arrived.
type overtaken struct {
	token string
	fence int64 // of the message's grant
}

// settle records the reply to a request: its fence, or the key's latest when it was refused. It reports whether a grant message
// arrived first. If so, and the reply's fence is another, or there was a later one, then
// the request reached Redis only after that grant was released: the token has a place in the FIFO,
// or a grant, that no call uses, and is cancelled. Times would not tell: the server's clock may have been set back.
func (q *Queue) settle(token string, fence, latest int64) bool {
	granted := q.forget(token)
	if granted != 0 && (fence != 0 && fence != granted || fence == 0 && latest >= granted) {
		q.cancel(token)
	}
	return granted != 0
}

// forget returns the fence of the message that overtook a token's reply, only once; 0 if none did.
func (q *Queue) forget(token string) (fence int64) {
	for i, o := range q.overtaken {
		if o.token == token {
			q.overtaken = slices.Delete(q.overtaken, i, i+1)
			return o.fence
		}
	}
	return 0
}
