// Package store runs the scripts on the records of keys in Redis, and passes on the messages that Redis
// publishes. Only this package and its scripts know the format of records, owner tokens and messages.
//
// Its errors have the form in which core returns them.
package store

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/internal/along"
)

// Store is one deployment of Redis, or a quorum of several. It is safe for concurrent use. A record
// is the name of a key's record; see [RecordName].
type Store interface {
	// Acquire asks for a key. It waits until the caller's ctx ends, the request's timeout is over, or
	// stop is signalled because the caller was granted the key otherwise. A reply that then arrives goes to
	// Events.Orphaned.
	Acquire(ctx context.Context, req AcquireRequest, stop <-chan struct{}) (reply AcquireReply, stopped bool, err error)
	// AcquireAll asks for several keys by one token, all or none, if one node serves all keys.
	AcquireAll(ctx context.Context, records []string, req AcquireRequest) (AcquireAllReply, error)
	// Admit admits followers beside their leader, which was granted the key with fence. It calls done, perhaps
	// before it returns, with a fence for each follower, zero if it was not admitted. It does not block,
	// and does nothing when the Locker is closed. Only stores that queue have it.
	Admit(record, leader string, fence int64, followers []Follower, done func(fences []int64, err error))
	// Renew renews leases that one node serves; see NodeOf.
	Renew(ctx context.Context, batch []Renewal) []RenewalReply
	// Refresh tells Redis that tokens still wait, all on one node; see NodeOf.
	Refresh(ctx context.Context, batch []Refresh) []RefreshReply
	// Extend renews one lease for a caller that waits for it. It also reports whether another call waits for the key.
	Extend(ctx context.Context, op, record, token string, ttl time.Duration) (owned, waiting bool, err error)
	// Downgrade makes an exclusive holder a shared one. Downgrades returns why it cannot be used, or nil.
	Downgrade(ctx context.Context, req DowngradeRequest) (owned bool, err error)
	Downgrades() error
	// Release releases what a token has, even when ctx is dead.
	Release(ctx context.Context, req ReleaseRequest) (ReleaseReply, error)
	// Cancel is a release in the background. It retries for ttl, and calls done, if that is not nil, when
	// Redis has replied. It does not block, and reports false when
	// the Locker is closed.
	Cancel(req ReleaseRequest, ttl time.Duration, done func(owned bool)) bool
	// TellReleased tells the Locker that took a key that its grant was released. It is not an error if that Locker is gone.
	TellReleased(ctx context.Context, locker, key string, fence int64)

	// Replicates returns why Confirm cannot be used, or nil.
	Replicates() error
	// Confirm renews leases, all on one node, until so many replicas have them, or for wait. It
	// calls batch for each try. It reports which leases Redis knows, and how many replicas have them.
	Confirm(ctx context.Context, batch func() []Renewal, replicas int, wait time.Duration) (known []bool, acks int, err error)

	// Inspect reports on a key.
	Inspect(ctx context.Context, key string) (Info, error)
	// List reports on about count keys that are in use. cursor is empty for the first page, and next of the
	// page before for each further one; after the last page next is empty. Its error can wrap ErrInvalidCursor.
	List(ctx context.Context, cursor string, count int) (infos []Info, next string, err error)
	// Force takes the key from the holder whose grant has the fence. It returns the first fence of
	// that grant, or 0 if there is no such holder.
	Force(ctx context.Context, key string, fence int64) (first int64, err error)
	// Reserve reserves a key for parked work.
	Reserve(ctx context.Context, key string, req ReserveRequest) (ReserveReply, error)
	// Unreserve ends a reservation, and reports false if its stamp is greater.
	Unreserve(ctx context.Context, key string, stamp int64) (ended bool, err error)

	// Queues reports whether waiting calls of several processes are served in order, and keys can be reserved.
	Queues() bool
	// Single reports whether one node serves all keys.
	Single() bool
	// Fences is how many fences an exclusive grant may use up.
	Fences() int
	// Mark says how this Locker's calls learn of a grant.
	Mark() Mark
	// Listening reports whether every subscription is up, as far as is known.
	Listening() bool
	// NodeOf names the node that serves a record: renewals for different nodes do not wait for
	// one another. Nil: it is not known, or there is only one.
	NodeOf(record string) any
	// Heard returns nil if the node that serves a record has replied to anything within ReplyTimeout. If not, it is asked. The error wraps
	// ErrUnavailable, or the caller has left, or the Locker is closed.
	Heard(ctx context.Context, record string) error
	// SameAs reports whether two stores use the same servers.
	SameAs(other Store) bool
	// Evictions returns warnings about the primaries' eviction policies.
	Evictions(ctx context.Context) []Warning

	Start() // opens the subscriptions in the background; only the first call does anything
	Close() // ends what is in flight; the lifecycle is closed before
	Wait()  // waits for every goroutine, also those of the lifecycle
}

// Config is what a store has from its Locker.
type Config struct {
	ID, Prefix string
	TTL        time.Duration         // of renewed leases
	Renewer    redis.UniversalClient // for renewals; nil: one like the store's
	Life       *lifecycle.Lifecycle
	Events     Events
	// NodeTimeout is how long a quorum waits for its nodes; zero: a sixth of a lease, half a second at most.
	NodeTimeout time.Duration
}

// Events receives what happens without a request; the Locker implements it.
type Events interface {
	// Message is called with a message that a script published.
	Message(m Message)
	// LookAgain is called when messages may have been missed: all calls that wait have to ask again.
	LookAgain()
	// RenewSoon is called when leases may be gone from Redis: all of them have to be renewed.
	RenewSoon()
	// Orphaned is called with the reply to a request that its caller gave up; it is zero if there is none.
	Orphaned(key, token string, reply AcquireReply)
	// Unclaimed is called when a quorum has granted a key to a caller that has left.
	Unclaimed(key string)
	// Warn is called with a warning.
	Warn(w Warning)
}

// ReplyTimeout bounds how long a call waits for a reply from Redis.
const ReplyTimeout = 3 * time.Second

// Mark says how a token waits in a key's FIFO; MARK in record.lua.
type Mark uint8

const (
	// NotQueued is that of a token that does not wait.
	NotQueued Mark = iota
	// Listens is that of a token whose Locker learns of a grant by a message, and is gone if the server has no subscription of it.
	Listens
	// Elsewhere is as Listens, but the subscription may be to another node.
	Elsewhere
	// Polls is that of a token whose Locker has no subscription.
	Polls
)

var marks = [...]any{NotQueued: "", Listens: "@", Elsewhere: "+", Polls: "~"} // boxed once

// AcquireRequest asks for a key.
type AcquireRequest struct {
	Record, Token string
	Fresh         bool          // the token was made for this request
	Lease         time.Duration // of a grant, until its first renewal
	What          string        // the call, for people; see [Describe]
	Mark          Mark
	Watch         string        // the Locker to be told when the key is free; "": none
	Reserve       time.Duration // for parked work: for how long its key is reserved
	Sent          time.Time
	Timeout       time.Duration // how long to wait for the reply
	Along         along.Rider   // nil: nobody
	again         bool          // it was refused as one that came late
}

// AcquireReply says whether the key was granted.
type AcquireReply struct {
	Granted       bool
	Fence         int64
	Waiting       bool // granted: others wait
	Room          bool // granted: nobody waits, and one more with a limit above 1 fits
	Reserved      bool // granted: the key is reserved
	UnknownFormat bool // refused: the record is not of this version, and has no FIFO
	Standing           // refused; but Server can be there, too, if granted
}

// Standing is where a token stands in a key's FIFO.
type Standing struct {
	Remaining time.Duration // of a holder's lease, at least; zero: not known
	Server    int64         // the server's clock in ms
	Latest    int64         // the key's latest fence
	Place     int           // from 1; 0: not in it; -1: not known, since the request came late
	Queued    int           // the FIFO's length
}

// AcquireAllReply has a grant for each key, or names the key that cannot be had.
type AcquireAllReply struct {
	Grants []AcquireReply // nil: none was granted
	Held   int            // the first that cannot be had
	Standing
}

// Follower is a call to be admitted beside a holder of its process.
type Follower struct {
	Token string
	Lease time.Duration
	What  string
}

// Renewal is one lease in a batch.
type Renewal struct {
	Record, Token string
	TTL           time.Duration
}

// RenewalReply says whether a lease was renewed.
type RenewalReply struct {
	TTL     time.Duration // what was asked for
	Owned   bool
	Waiting bool // somebody waits for the key
	Err     error
}

// Refresh tells Redis that a token still waits, and asks for its place. It costs Redis a fraction
// of an [AcquireRequest], and many go into one command.
type Refresh struct{ Record, Token string }

// RefreshReply is where a token stands; place 0: it has to ask.
type RefreshReply struct {
	Standing
	Err error
}

// DowngradeRequest gives an exclusive holder another token, a shared one.
type DowngradeRequest struct {
	Record, Token string
	Shared        string        // the token from now on
	Fence         int64         // the greatest used
	Timeout       time.Duration // how long to wait for the reply
}

// ReleaseRequest releases what a token has.
type ReleaseRequest struct {
	Record, Token string
	Used          int64       // greatest fence used; zero: none
	KeptUntil     time.Time   // the end of a MinHold: until when the key stays held after the release
	Asked         bool        // another token has asked for the key, so its record is not thin
	Wanted        bool        // calls of other processes wait for the message that the release publishes
	Unreserve     bool        // the key's reservation ends too, unless it was made after the fence Used
	Briefly       bool        // it is tried once if the node is down
	Holder        Rekeyed     // whose token it is; nil: it has no other
	Along         along.Rider // nil: nobody
	Requeue
}

// Rekeyed is a holder whose token may have changed, by a Downgrade.
type Rekeyed interface {
	// Rekeyed is called when Redis does not know the token from. It returns the holder's present token,
	// and whether that is another one.
	Rekeyed(from string) (token string, ok bool)
}

// rekeyed puts the holder's present token into the request. It reports whether that is another one.
func (r *ReleaseRequest) rekeyed() (ok bool) {
	if r.Holder != nil {
		if r.Token, ok = r.Holder.Rekeyed(r.Token); ok {
			r.Fresh = false
		}
	}
	return ok
}

// Requeue is another token of this process that is sent along with a release.
type Requeue struct {
	Other string
	Mark  Mark   // how it is to wait; NotQueued: it leaves the FIFO
	What  string // the call, for people; see [Describe]
	Fresh bool   // it cannot be in the FIFO yet
}

// ReleaseReply says whether the token held the key. If another token was to wait, it has that one's
// fence if it was granted the key, and otherwise its standing.
type ReleaseReply struct {
	Owned    bool
	Reserved bool // the reservation was to end, and stays
	Fence    int64
	Standing
}

// ReserveRequest is a request to reserve a key for parked work.
type ReserveRequest struct {
	Span  time.Duration
	Watch string // id of a Locker that gets a message when nobody holds the key; "": none
	Fence int64  // the latest one that is known
}

// ReserveReply says what a reservation found.
type ReserveReply struct {
	Stamp int64 // the reservation's
	Held  bool  // the key is held, and nobody was granted it since the fence of the request
}

// Warning is documented in core.
type Warning struct {
	Kind, Node, Detail string
	Err                error
	Resolved           bool
}

// The kinds of a Warning.
const (
	WarnEviction        = "eviction"
	WarnEvictionUnknown = "eviction unknown"
	WarnNoSubscription  = "no subscription"
	WarnUnreachable     = "unreachable"
)
