// Package store asks Redis for the records of keys, and hands on what Redis sends without being
// asked. How records, owner tokens and messages are written is known here and in the scripts only.
//
// Errors of calls for a key are worded as core returns them.
package store

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
)

// Store is one deployment of Redis, or a quorum of several. It is safe for concurrent use. A record is
// the name of a key's record; see [RecordName].
type Store interface {
	// Acquire asks for a key. It waits no longer than the caller's ctx lasts, than the request's
	// timeout, and until stop: the caller got the key otherwise. A reply that nobody takes goes to
	// Events.Orphaned.
	Acquire(ctx context.Context, req AcquireRequest, stop <-chan struct{}) (reply AcquireReply, stopped bool, err error)
	// AcquireAll asks for several keys by one token, all or none, if one node serves all keys.
	AcquireAll(ctx context.Context, records []string, req AcquireRequest) (AcquireAllReply, error)
	// Admit admits followers beside their leader, which was granted the key with fence, and calls done
	// with a fence for each, zero if it was not admitted: perhaps before it returns. It does not block,
	// and does nothing when the Locker is closed. It is for stores that queue.
	Admit(record, leader string, fence int64, followers []Follower, done func(fences []int64, err error))
	// Renew renews leases that one node serves; see NodeOf.
	Renew(ctx context.Context, batch []Renewal) []RenewalReply
	// Refresh tells Redis that tokens still wait which one node serves; see NodeOf.
	Refresh(ctx context.Context, batch []Refresh) []RefreshReply
	// Extend renews one lease for a caller who waits for it. It reports also whether somebody
	// waits for the key.
	Extend(ctx context.Context, op, record, token string, ttl time.Duration) (owned, waiting bool, err error)
	// Downgrade makes an exclusive holder a shared one. Downgrades is why it cannot be used; nil: it can.
	Downgrade(ctx context.Context, req DowngradeRequest) (owned bool, err error)
	Downgrades() error
	// Release releases what a token has, even when ctx is dead.
	Release(ctx context.Context, req ReleaseRequest) (ReleaseReply, error)
	// Cancel is a release that nobody waits for. It goes on trying for ttl, and calls done when
	// Redis has answered; a nil done is not called. It does not block, and reports false when
	// the Locker is closed.
	Cancel(req ReleaseRequest, ttl time.Duration, done func(owned bool)) bool
	// TellReleased tells another Locker that a grant is released that it had. It is not an error if
	// nobody is told.
	TellReleased(ctx context.Context, locker, key string, fence int64)

	// Replicates is why Confirm cannot be used; nil: it can.
	Replicates() error
	// Confirm renews leases that one node serves until so many replicas have them, or for wait. It
	// calls batch for each try. It reports which leases Redis knows, and how many replicas have them.
	Confirm(ctx context.Context, batch func() []Renewal, replicas int, wait time.Duration) (known []bool, acks int, err error)

	// Inspect reports on a key.
	Inspect(ctx context.Context, key string) (Info, error)
	// List reports on about count keys that are in use, beginning with an empty cursor and then with
	// each next one, which is empty after the last. Its error can wrap ErrInvalidCursor.
	List(ctx context.Context, cursor string, count int) (infos []Info, next string, err error)
	// Force takes the key from the holder whose grant has the fence. It returns the first fence of
	// that grant; 0: there is no such holder.
	Force(ctx context.Context, key string, fence int64) (first int64, err error)
	// Reserve reserves a key for parked work, and returns the reservation's stamp.
	Reserve(ctx context.Context, key string, span time.Duration) (stamp int64, err error)
	// Unreserve ends a reservation, and reports false if its stamp is greater.
	Unreserve(ctx context.Context, key string, stamp int64) (ended bool, err error)

	// Queues reports whether waiting calls of several processes are served in order, and keys
	// can be reserved.
	Queues() bool
	// Single reports whether one node serves all keys.
	Single() bool
	// Fences is how many fences an exclusive grant may use up.
	Fences() int
	// Mark is how this Locker's calls learn of a grant.
	Mark() Mark
	// Listening reports whether every subscription is up, as far as is known.
	Listening() bool
	// NodeOf names the node that serves a record: renewals of different ones do not wait for
	// one another. Nil: it is not known, or there is but one.
	NodeOf(record string) any
	// SameAs reports whether two stores are of the same servers.
	SameAs(other Store) bool
	// Evictions is what is to be warned of about the primaries' eviction policy.
	Evictions(ctx context.Context) []Warning

	Start() // opens the subscriptions in the background; only the first call does anything
	Close() // ends what is under way; the lifecycle is closed before
	Wait()  // waits for every goroutine, those of the lifecycle too
}

// Config is what a store needs to know of its Locker.
type Config struct {
	ID, Prefix string
	TTL        time.Duration         // of renewed leases
	Renewer    redis.UniversalClient // for renewals; nil: one like the store's
	Life       *lifecycle.Lifecycle
	Events     Events
	// NodeTimeout is how long the nodes of a quorum are waited for; zero: a sixth of a lease, half a
	// second at most.
	NodeTimeout time.Duration
}

// Events takes what Redis sends without being asked: the Locker does.
type Events interface {
	// Message takes what a script published.
	Message(m Message)
	// LookAgain has all calls that wait ask again: messages may have been missed.
	LookAgain()
	// RenewSoon has all leases renewed that are renewed at all: they may be gone from Redis.
	RenewSoon()
	// Orphaned takes the reply to a request that was given up. Its fence is zero if it was no grant.
	Orphaned(key, token string, fence, server int64)
	Warn(w Warning)
}

// ReplyTimeout bounds how long a call waits for a reply from Redis.
const ReplyTimeout = 3 * time.Second

// Mark is how a token waits in a key's FIFO; MARK in record.lua.
type Mark uint8

const (
	// NotQueued does not wait.
	NotQueued Mark = iota
	// Listens learns of its grant by a message, and is gone if the server has no subscription for it.
	Listens
	// Elsewhere learns of it by a message too, but its subscription may be to another node.
	Elsewhere
	// Polls has no subscription.
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
	Reserve       time.Duration // parked work: how long its key is reserved
	Sent          time.Time
	Timeout       time.Duration // how long to wait for the reply
}

// AcquireReply says whether the key was granted.
type AcquireReply struct {
	Granted  bool
	Fence    int64
	Waiting  bool // granted: somebody else waits
	Room     bool // granted: nobody waits, and one more with a limit above 1 fits
	Reserved bool // granted: the key is reserved
	Foreign  bool // refused: the record is not of this version, and has no FIFO
	Standing      // refused
}

// Standing is where a token stands in a key's FIFO.
type Standing struct {
	Remaining time.Duration // at least, of a holder's lease; zero: not known
	Server    int64         // the server's clock in ms
	Place     int           // from 1; 0: not in it
	Queued    int           // the FIFO's length
}

// AcquireAllReply has a grant for each key, or says which one cannot be had.
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

// Refresh tells Redis that a token still waits, and asks for its place. It costs Redis a fraction of
// an [AcquireRequest], and many go into one command.
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
	Used          int64         // greatest fence used; zero: none
	Stay          time.Duration // how long the key is to stay held after the release
	Asked         bool          // another token has asked for the key: its record is not thin
	Wanted        bool          // calls of other processes wait for the message that the release publishes
	Holder        Rekeyed       // whose token it is; nil: it is the only one
	Requeue
}

// Rekeyed is a holder whose token can be another one since a Downgrade.
type Rekeyed interface {
	// Rekeyed is called when Redis does not know a token of the holder. It returns the one by which
	// Redis may know it, and whether that is another one.
	Rekeyed(from string) (token string, ok bool)
}

// rekeyed names the holder by another token, if it has one.
func (r *ReleaseRequest) rekeyed() (ok bool) {
	if r.Holder != nil {
		if r.Token, ok = r.Holder.Rekeyed(r.Token); ok {
			r.Fresh = false
		}
	}
	return ok
}

// Requeue is another token of this process that goes to Redis along with a release.
type Requeue struct {
	Other string
	Mark  Mark   // how it is to wait; NotQueued: it leaves the FIFO
	What  string // what it is
	Fresh bool   // it cannot be in the FIFO yet
}

// ReleaseReply says whether the token had the key; and, if another was to wait, that one's fence if
// it was granted, or else where it stands.
type ReleaseReply struct {
	Owned bool
	Fence int64
	Standing
}

// Warning is core's, which documents its fields.
type Warning struct {
	Kind, Node, Detail string
	Err                error
	Resolved           bool
}

// What a Warning is about.
const (
	WarnEviction        = "eviction"
	WarnEvictionUnknown = "eviction unknown"
	WarnNoSubscription  = "no subscription"
	WarnUnreachable     = "unreachable"
)
