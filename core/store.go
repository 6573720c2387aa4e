package core

import (
	"context"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/internal/trust"
)

// store asks Redis for the records of keys: a [deployment], or a [quorum] of several. It is
// safe for concurrent use.
type store interface {
	// acquire asks for a key. It waits no longer than the caller's ctx lasts, than the
	// question's timeout, and until stop: the caller got the key otherwise. A reply that
	// nobody takes goes to events.orphaned.
	acquire(ctx context.Context, q question, stop <-chan struct{}) (reply acquireReply, stopped bool, err error)
	// renew renews leases that one node serves; see nodeOf.
	renew(ctx context.Context, batch []renewal) []renewalReply
	// refresh tells Redis that entries still wait which one node serves; see nodeOf.
	refresh(ctx context.Context, batch []refresh) []refreshReply
	// extend renews one lease for a caller who waits for it. It reports also whether
	// somebody waits for the key.
	extend(ctx context.Context, op, record, entry string, ttl time.Duration) (owned, waiting bool, err error)
	// release gives up what an entry has, even when ctx is dead.
	release(ctx context.Context, req releaseRequest) (releaseReply, error)
	// admit admits followers beside their leader, a holder of the key, and calls done with a
	// fence for each, zero if it was not admitted: perhaps before it returns. It does not block,
	// and reports false when the Locker is closed. It is for stores that queue.
	admit(record, leader string, followers []follower, done func(fences []int64, err error)) bool
	// cancel is a release that nobody waits for. It goes on trying for ttl, and calls done when
	// Redis has answered; a nil done is not called. It does not block, and reports false when
	// the Locker is closed.
	cancel(req releaseRequest, ttl time.Duration, done func()) bool
	// publish sends a message to another Locker. It is not an error if nobody receives it.
	publish(ctx context.Context, locker, text string)

	// replicates is why WaitReplicas cannot be used; nil: it can.
	replicates() error
	// confirm waits until as many replicas as o wants have the grants of holds, all on one
	// node. It reports which of them Redis knows, and how many replicas have them.
	confirm(ctx context.Context, holds []*hold, o *acquireOptions) (known []bool, copies int, err error)

	// queues reports whether waiting calls of several processes are served in order, and keys
	// can be reserved.
	queues() bool
	// mark says how this Locker's calls learn of a grant.
	mark() any
	// listening reports whether every subscription is up, as far as is known.
	listening() bool
	// nodeOf names the node that serves a record: renewals of different ones do not wait for
	// one another. Nil: it is not known, or there is but one.
	nodeOf(record string) any

	// sameAs reports whether two stores are of the same servers.
	sameAs(other store) bool
	// evictions is what is to be warned of about the primaries' eviction policy.
	evictions(ctx context.Context) []Warning
	start() // opens the subscriptions in the background; only the first call does anything
	close() // ends what is under way; the lifecycle is closed before
	wait()  // waits for every goroutine, those of the lifecycle too
}

// question asks for a key in the name of an entry.
type question struct {
	key, record, entry string
	limit              int
	lease              time.Duration // of a grant, until its first renewal
	what               string        // the call, for people
	mark               any           // how the entry waits; notQueued: it does not
	watch              string        // the locker to be told when the key is free; "": none
	fresh              bool          // the entry was made for this question
	keep               time.Duration // parked work: how long its key is reserved
	sent               time.Time
	timeout            time.Duration // how long to wait for the reply
}

// late is why a grant, whose reply just came, is of no use: the caller has left, or it took
// too long.
func (q *question) late(ctx context.Context) error {
	if ctx.Err() != nil {
		return callerGone(ctx, "acquire", q.key)
	}
	if trust.Passed(trust.Until(q.sent, q.lease), time.Now()) {
		return unavailable("acquire", q.key, fmt.Errorf("the reply took %s, longer than the first lease", time.Since(q.sent)))
	}
	return nil
}

// events takes what Redis sends without being asked: the Locker does.
type events interface {
	// message takes what a script published.
	message(text string)
	// lookAgain has all calls that wait ask again: messages may have been missed.
	lookAgain()
	// renewSoon has all leases renewed that are renewed at all: they may be gone from Redis.
	renewSoon()
	// orphaned takes the reply to a question that was given up. Its fence is zero if it was
	// no grant.
	orphaned(key, entry string, fence, server int64)
	warn(w Warning)
}
