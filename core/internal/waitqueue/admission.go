package waitqueue

// Admissions: calls that are granted the key beside a holder of their process.

import "time"

const (
	// MaxFollowers bounds for how long one script occupies Redis.
	MaxFollowers = 128
	// admissionTimeout is how long a queue does not ask by itself while an admission is under way.
	admissionTimeout = time.Second
)

// Admission asks Redis to admit calls, the followers, beside the one that was granted the key, the
// leader.
//
// When the queue is granted the key, and not exclusively, the calls that wait with the leader are
// admitted too, all in one round trip, as admit.lua says. A call that joins the queue later asks again.
type Admission struct {
	Leader string // the token that was granted the key
	Fence  int64  // its own
	Sent   time.Time
	Calls  []Follower
}

// Follower is a call with the token by which it is to be admitted.
type Follower struct {
	Call  *Call
	Token string
}

// admit begins the admission of the calls that wait, or of as many as fit beside the leader.
func (q *Queue) admit(now time.Time, leader Grant) {
	q.admitBy = now.Add(admissionTimeout)
	q.wake() // to ask by then
	left := q.n
	if q.Limit != 0 {
		left = min(left, q.Limit-1)
	}
	for c := q.first; left > 0; {
		a := &Admission{Leader: leader.Token, Fence: leader.Fence, Sent: now, Calls: make([]Follower, 0, min(left, MaxFollowers))}
		for ; left > 0 && len(a.Calls) < MaxFollowers; c, left = c.next, left-1 {
			c.follower = q.NewToken(q.Limit)
			a.Calls = append(a.Calls, Follower{c, c.follower})
		}
		q.admitting++
		q.act(Action{Kind: Admit, Admission: a})
	}
}

// Admitted takes the reply to an admission: a fence for each of its calls, or zero if it was not
// admitted. It cancels a grant to a call that no longer waits, and, without a reply, all that may
// have been granted.
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

// withdraw takes back the token of a queue whose first call has left, if others may be granted the
// key along with it. The token may have been granted already; for a call that joined later its
// fence could be smaller than one that the call has seen.
func (q *Queue) withdraw() {
	if q.Limit != 1 && q.token != "" {
		q.cancel(q.token)
		q.askAt = time.Time{}
	}
}
