// Package along is how work is recorded in Redis along with the commands of its lock, in the same round trip.
package along

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Rider adds commands of its own to those of a lock on one server. They may be sent more than once. It is safe for concurrent use.
type Rider interface {
	// Client is the rider's: its commands are sent only if it is the lock's too.
	Client() redis.UniversalClient
	// Acquire is sent right after the acquire of a token, which may have been refused; lock is the lock's name in Redis.
	Acquire(ctx context.Context, lock, token string) *redis.Cmd
	// Acquired is called with the reply if the lock was granted.
	Acquired(reply *redis.Cmd)
	// Pending reports whether Release has anything to send: then the lock is released in Redis, and not handed over in its process.
	Pending() bool
	// Release is sent right before each release; nil: nothing is.
	Release(ctx context.Context) *redis.Cmd
	// Released is called with the reply, if there is one.
	Released(reply *redis.Cmd)
}

// Work is a piece of work with a record of its own.
type Work interface {
	Rider
	// Begin and Finish are those of an idempotency.Store.
	Begin(ctx context.Context, fence int64) (outcome []byte, err error)
	Finish(ctx context.Context, fence int64, outcome []byte) error
	// Finished is called when the lock was released, and returns why the outcome was not stored since Finish.
	Finished(ctx context.Context) error
}

var (
	// Of returns work of an *idempotency.Store. Package idempotency sets it.
	Of func(store any, name, fingerprint string) Work
	// With lets a rider ride along with a *core.Call. Package core sets it.
	With func(call any, rider Rider)
)
