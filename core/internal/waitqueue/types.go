package waitqueue

// What the queue and its user tell one another.

import "time"

// Config is what the queues of one process have in common.
type Config struct {
	// Ordered: Redis keeps a FIFO for each key, and publishes grants. Otherwise each question
	// is about the moment.
	Ordered bool
	// Listening reports whether grants that are published arrive.
	Listening func() bool
	// NewToken makes an owner token.
	NewToken func(limit int) string
	// Claim is for how long a grant stands that was not asked for just then.
	Claim time.Duration
	// Validity is until when a grant is relied on that lasts d and was not made before sent;
	// Expired reports whether that is over.
	Validity func(sent time.Time, d time.Duration) time.Time
	Expired  func(until, now time.Time) bool
	// Backoff is how long to wait after n questions while no message is to be expected.
	Backoff func(n int) time.Duration
	// Spread makes d a little shorter, at random.
	Spread func(d time.Duration) time.Duration
	// Poll is how long a queue relies on being woken, at first.
	Poll time.Duration
	// Epoch is when the queues' clock began. They refresh their tokens at the same times after
	// it, so that many can be refreshed together.
	Epoch time.Time
	// Fences is how many fences come with an exclusive grant.
	Fences int

	actions []Action
}

// Call is a call that waits. The fields are set before it joins, and not changed while it waits.
type Call struct {
	Of       any           // the caller's own value for it
	Lease    time.Duration // of a grant to it, until its first renewal
	Timeout  time.Duration // how long it waits for an answer
	HandOver time.Duration // the TTL that a grant must have to be handed over to it; 0: none can be

	prev, next *Call
	queued     bool
	// It has had an answer, and so knows that the key is held: its policy decides. Calls that
	// have not are behind those that have. They fail when a question fails.
	informed bool
	err      error // it fails, unless it is informed

	follower string // its token in an admission under way; else ""
}

// Queued reports whether the call waits in a queue.
func (c *Call) Queued() bool { return c.queued }

// Action is what is to be done.
type Action struct {
	Kind  Kind
	Call  *Call
	Token string    // to Cancel, or of the grant to Give
	Fence int64     // of that
	Until time.Time // until when that is relied on
	// Calls of other processes wait behind the grant.
	Wanted bool

	Admission *Admission // to Admit
}

// Kind is what an Action does.
type Kind uint8

const (
	// Wake has the call Look again.
	Wake Kind = iota
	// Give makes a grant of Redis the call's, which waits no longer.
	Give
	// HandOver makes the grant that is being released the call's, which waits no longer.
	HandOver
	// Cancel has Redis forget the token, whatever that has.
	Cancel
	// Admit asks Redis whether the followers of a grant are admitted; then Admitted follows.
	Admit
)

// View is what a call may do.
type View struct {
	Err      error         // it fails
	Informed bool          // its policy may decide
	Ask      bool          // it is to ask Redis; then one of Refused, Granted and Unanswered follows
	AskIn    time.Duration // otherwise: when to look again; negative: it will be woken for it
	Refresh  string        // a token to be refreshed in Redis; then Refreshed follows
	Question Question
}
