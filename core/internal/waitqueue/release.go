package waitqueue

// The end of an exclusive grant: it is handed over within the process, or released in Redis.

import "time"

const (
	// For how long after it was granted, and how often, an exclusive grant is handed over
	// within the process while calls of other processes wait. The bound on the number keeps a fast process from
	// taking more than its share.
	handOverContended   = time.Millisecond
	handOversContended  = 256
	handOverUncontended = MaxHandOver // the same while nobody is known to wait
	// MaxHandOver is the longest time after its grant at which an exclusive grant is handed
	// over: the message that others wait for the key may have been lost.
	MaxHandOver = 50 * time.Millisecond
)

// Held is an exclusive grant that its lease has released.
type Held struct {
	Fence  int64         // the first that came with it
	Used   int           // how many fences after that were used
	TTL    time.Duration // 0: it must not be handed over
	Age    time.Duration // since it was granted
	Wanted bool          // others wait
}

// Release says how a grant is released in Redis: perhaps along with the queue's token, which either
// leaves the FIFO, or waits in it for the key (then ReleaseAnswered follows).
type Release struct {
	Token string // "": none
	Fresh bool   // it cannot be in the FIFO yet
	Waits *Call  // the call for which it waits; nil: it leaves

	Wanted bool // calls of other processes wait too, as far as is known
}

// Released takes an exclusive grant of this process whose lease is released. It hands the grant
// over to the first call if that is allowed: briefly, and less briefly while no other process
// waits. Otherwise the caller releases it in Redis, as the Release says.
func (q *Queue) Released(now time.Time, h Held) (r Release, handedOver []Action) {
	q.begin()
	r.Wanted = q.wanted || h.Wanted || q.contendedFence >= h.Fence
	if c := q.first; q.mayHandOver(&h, r.Wanted) {
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
	case q.inFlight == "" && q.Ordered: // else a request is in flight, or there is no FIFO
		r.Fresh = q.ask(now)
		r.Token, r.Waits = q.token, q.first
	}
	return r, nil
}

func (q *Queue) mayHandOver(h *Held, wanted bool) bool {
	longest, most := handOverUncontended, q.Fences-1
	if wanted {
		longest, most = handOverContended, min(handOversContended, most)
	}
	return q.first != nil && h.TTL != 0 && q.first.HandOver == h.TTL && h.Used < most && h.Age <= longest
}

// ReleaseAnswered takes the reply to a release with a token that waits for the key: its fence, or
// its place; or err, if there is no reply. The refusal's Sent is when the release was sent.
func (q *Queue) ReleaseAnswered(now time.Time, fence int64, r *Refusal, err error) []Action {
	q.begin()
	q.done(r.Token, nil)
	switch {
	case q.settle(r.Token, fence, r.Latest):
	case q.token != r.Token || q.first == nil || err != nil:
		q.cancel(r.Token)
		q.askAt = time.Time{}
	case fence != 0:
		q.accept(now, Grant{Token: r.Token, Fence: fence, Wanted: r.Length > 0, Asked: r.Sent, Until: q.Validity(r.Sent, q.Claim)})
	case r.Place < 0:
		q.askAt = time.Time{}
	default:
		q.informAll()
		q.still = 0
		q.refused(now, r)
	}
	return q.actions
}

// Freed takes the reply to any other release of this process: whether Redis found the grant. If it
// did not, or did not reply, r.Token may still wait, or may have been granted the key meanwhile.
func (q *Queue) Freed(now time.Time, r Release, owned bool) []Action {
	q.begin()
	q.askAt = time.Time{}
	if !q.Ordered {
		q.askAt = now.Add(q.Backoff(1)) // others have had no turn yet
	}
	q.wake()
	if !owned && r.Token != "" {
		q.cancel(r.Token)
	}
	return q.actions
}

// Lost records that a grant of this process, with this first fence, has ended without a release, or
// will not be handed over: the queue asks Redis itself.
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

// Wanted records that calls of other processes wait for the grant with this first fence to end. The
// message that says so can arrive before the grant.
func (q *Queue) Wanted(fence int64) { q.contendedFence = max(q.contendedFence, fence) }
