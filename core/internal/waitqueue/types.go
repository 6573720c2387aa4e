package waitqueue

// The types that a queue shares with package core.

import "time"

// Config is what all queues of one process share.
type Config struct {
	// Ordered: Redis keeps a FIFO for each key, and publishes grants. If not, each request only asks for the key at that moment.
	Ordered bool
	// Listening reports whether messages that are published arrive.
	Listening func() bool
	// NewToken makes an owner token.
	NewToken func(limit int) string
	// Claim is the length of a grant that a release hands over to a token that waits.
	Claim time.Duration
	// Validity returns until when a grant can be relied on that lasts d and was made at sent or later;
	// Expired reports whether that time is over.
	Validity func(sent time.Time, d time.Duration) time.Time
	Expired  func(until, now time.Time) bool
	// Backoff returns how long to wait after n requests while no message is to be expected.
	Backoff func(n int) time.Duration
	// Spread makes d a little shorter, at random.
	Spread func(d time.Duration) time.Duration
	// Poll is for how long a queue relies on being woken, at first.
	Poll time.Duration
	// Epoch is the origin of the times at which queues refresh their tokens, which are the same for all
	// queues, so that many can be refreshed together.
	Epoch time.Time
	// Fences is how many fences an exclusive grant has.
	Fences int

	actions []Action
}

// Call is a call that waits. The exported fields are set before it joins, and not changed while it waits.
type Call struct {
	Of       any           // the user's own value for it
	Lease    time.Duration // of a grant to it, until its first renewal
	Timeout  time.Duration // how long it waits for a reply
	HandOver time.Duration // the TTL that a grant must have to be handed over to it; 0: none can be

	prev, next *Call
	queued     bool
	// It knows that the key is held, by a reply: its policy decides. Calls that are not informed
	// are queued after those that are, and fail when a request fails.
	informed bool
	err      error // it fails with this, unless it is informed

	follower string // its token in an admission in flight; else ""
}

// Queued reports whether the call waits in a queue.
func (c *Call) Queued() bool { return c.queued }

// Action is one thing for package core to do.
type Action struct {
	Kind  Kind
	Call  *Call
	Token string    // to Cancel, or of the grant to Give
	Fence int64     // of that grant
	Asked time.Time // that grant was made after this
	Until time.Time // until when that grant is relied on
	// Calls of other processes wait for that grant to end.
	Wanted bool

	Admission *Admission // to Admit
}

// Kind is what an Action does.
type Kind uint8

const (
	// Wake wakes the call, which then calls Next.
	Wake Kind = iota
	// Give gives a new grant to the call, which has left the queue.
	Give
	// HandOver gives the grant that is being released to the call, which has left the queue.
	HandOver
	// Cancel has Redis forget the token, whether it has a grant or a place.
	Cancel
	// Admit sends an admission to Redis; then Admitted follows.
	Admit
)

// Step is what a call may do now.
type Step struct {
	Err      error         // it fails with this
	Informed bool          // its policy may decide
	Ask      bool          // it is to send the request; then one of Refused, Granted and Unanswered follows
	AskIn    time.Duration // otherwise: after how long to call Next again; negative: it will be woken
	Refresh  string        // a token to be refreshed in Redis; then Refreshed follows
	Request  Request
}
