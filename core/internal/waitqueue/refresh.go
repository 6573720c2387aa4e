package waitqueue

// When a queue asks again, or has its token refreshed, while no message arrives.

import "time"

const (
	// The longest time between two refreshes, in multiples of Poll: for queues far back in the FIFO, and those
	// whose place does not change.
	maxPolls = 5
	// Refreshes are sent at multiples of this time, so that many can be sent together.
	refreshGrid = 250 * time.Millisecond
)

// Refreshed takes the reply to a refresh of a token. If the token is not in the FIFO any more, or
// the key can be had (place 0), the queue asks at once. If the refresh failed, it asks soon.
func (q *Queue) Refreshed(now time.Time, r *Refusal, f Failure) []Action {
	q.begin()
	switch {
	case q.first == nil || q.token != r.Token || q.inFlight != "" || q.sent.After(r.Sent):
		return q.actions // the reply is out of date
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

// Ends records when the holder's lease ends, by a message.
func (q *Queue) Ends(at time.Time) []Action {
	q.begin()
	q.until, q.askAt = at, at.Add(time.Millisecond)
	q.wake()
	return q.actions
}

// refused records what Redis replied about the queue's token, and when to ask again or to refresh
// it. A release wakes the queue; both are for messages that were lost and for holders that died.
func (q *Queue) refused(now time.Time, r *Refusal) {
	if q.token != r.Token { // it was cancelled while the request was in flight
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
		q.token = "" // it is not in the FIFO
	}
	if !q.Ordered || r.Polls || q.token == "" {
		q.askAt = now
		if !q.Ordered || q.token == "" || !q.Listening() { // else the next request tells Redis to send messages
			q.askAt = now.Add(q.Backoff(q.asks))
		}
		return
	}
	// The first few queues notice one another's deaths; they refresh less and less often while nothing
	// changes. The queues after them have time.
	polls := min(max(1<<min(q.still, 3), q.place-2), maxPolls)
	q.refreshAt = now.Add(q.Spread(time.Duration(polls) * q.Poll))
	q.refreshAt = q.refreshAt.Add(-(q.refreshAt.Sub(q.Epoch) % refreshGrid))
	if q.place <= 3 && q.until.After(now) && q.until.Before(q.refreshAt) {
		q.refreshAt = q.until.Add(time.Millisecond)
	}
	q.askAt = q.refreshAt.Add(maxPolls * q.Poll) // in case the refresh has no reply
}
