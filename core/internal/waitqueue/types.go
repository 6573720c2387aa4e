package waitqueue

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

const (
	// For how long after it was granted, and how often, an exclusive grant is handed over
	// within the process while calls of others wait. The number is for a fair share of
	// processes that are not equally fast.
	handOverWanted     = time.Millisecond
	handOversWanted    = 256
	handOverUnrivalled = MaxHandOver // the same while nobody is known to wait
	// MaxHandOver is for how long after it was granted an exclusive grant is handed over at
	// most: the message that others wait for the key may have been lost.
	MaxHandOver = 50 * time.Millisecond
	// Queues far back in the FIFO, and those whose place does not change, refresh less often, up
	// to this many times Poll.
	maxPolls = 5
	// Refreshes are at times that lie so far apart.
	refreshGrid = 250 * time.Millisecond
	// MaxFollowers bounds how long a script keeps Redis. More are admitted by several.
	MaxFollowers = 128
	// admissionTimeout is how long a queue does not ask by itself while an admission is under way.
	admissionTimeout = time.Second
)

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
	// Admit asks Redis whether followers of a holder are admitted; then Admitted follows.
	Admit
)

// Admission asks Redis to admit calls, the followers, beside the one that was granted the key, the
// leader.
//
// When the queue is granted the key other than exclusively, the calls that wait with the leader are
// admitted too, all in one round trip: readers past calls of other processes that wait, permits only
// if none does. A call that joins the queue later asks again: so at most two batches of readers enter
// before a writer that waits.
type Admission struct {
	Leader string // the token that was granted the key
	Sent   time.Time
	Calls  []Follower
}

// Follower is a call with the token by which it is to be admitted.
type Follower struct {
	Call  *Call
	Token string
}

// Grant is a key that Redis has granted to a token.
type Grant struct {
	Token  string
	Fence  int64
	Wanted bool // others wait
	Room   bool // for one more such holder; any number of readers has room
	Until  time.Time
}

// View is what a call may do.
type View struct {
	Err      error         // it fails
	Informed bool          // its policy may decide
	Ask      bool          // it is to ask Redis; then one of Refused, Granted and GaveUp follows
	AskIn    time.Duration // otherwise: when to look again; negative: it will be woken for it
	Refresh  string        // a token to be refreshed in Redis; then Refreshed follows
	Question Question
}

// Question is one to Redis, whether the key can be had.
type Question struct {
	Token   string
	Fresh   bool // the token was made for this question
	Sent    time.Time
	Timeout time.Duration // how long to wait for the answer
}

// Refusal is Redis's answer that a token cannot have the key.
type Refusal struct {
	Token     string
	Sent      time.Time // when the question was
	Polls     bool      // a message would not tell of a grant
	Remaining time.Duration
	Server    int64 // the server's clock in ms
	Place     int   // in the FIFO, from 1; 0: not in it
	Length    int   // of the FIFO
}

// Failure is why a question had no answer.
type Failure struct {
	Err    error // nil: its caller gave it up
	Unsent bool  // Redis never got the question
	Local  bool  // it says nothing of Redis: only the call that asked fails
}

// Held is an exclusive grant that its call has released.
type Held struct {
	Fence  int64         // the first that came with it
	Used   int           // how many after that were used
	TTL    time.Duration // 0: it must not be handed over
	Age    time.Duration // since it was granted
	Wanted bool          // others wait
}

// Release says how a grant is released in Redis: with a token of the queue's, which leaves the
// FIFO, or waits in it for the key; then ReleaseAnswered follows.
type Release struct {
	Token string // "": none
	Fresh bool   // it cannot be in the FIFO yet
	Waits *Call  // the call that it waits for; nil: it leaves
}
