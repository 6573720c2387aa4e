package delayqueue

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

const (
	minClaimLease = 100 * time.Millisecond
	maxClaimLease = time.Hour
)

// WorkerOption configures a [Worker].
type WorkerOption func(*Worker) error

// workerSettings are what options set.
type workerSettings struct {
	handler     Handler
	middleware  []Middleware
	concurrency int
	lockOptions []core.AcquireOption
	ownLeases   bool // each message has a lease of its own
	lease       time.Duration
	retry       bounds // after failed attempts
	conflict    bounds // while a key is held
	log         *slog.Logger
	observer    Observer
	heartbeats  redis.UniversalClient // the client of heartbeats that the user gave, or nil
}

// WithConcurrency sets how many messages the Worker runs at once. Default 8; 1 to 10,000.
//
// The Worker claims no more messages than that, except while its handlers have lately taken less than 0.5 ms on
// average: then it claims up to three times as many ahead, so that Redis and handlers need not wait for one another. A
// message that was claimed ahead and has waited for 10 ms goes back, without an attempt spent. If the process dies,
// messages that waited have spent an attempt, like those that ran. So none waits beside a message that has a loss, nor
// with WithMaxAttempts(1).
func WithConcurrency(n int) WorkerOption {
	return func(w *Worker) error {
		w.concurrency = n
		return checkCount("WithConcurrency", n, 10_000)
	}
}

// WithClaimLease sets the length of a claim: a message of a worker that was killed is run again after it. A Worker
// renews its claims at a third of it, for as long as handlers run. Default 30 s; 100 ms to 1 h.
func WithClaimLease(d time.Duration) WorkerOption {
	return func(w *Worker) error {
		w.lease = d
		if d < minClaimLease || d > maxClaimLease {
			return invalidOption("WithClaimLease(%s): want %s to %s", d, minClaimLease, maxClaimLease)
		}
		return nil
	}
}

// WithHeartbeatClient sets the client over which the Worker renews its claims: a client of the queue's Redis, which
// stays the caller's to close, after the Worker was stopped. Default: a client like the queue's, without its hooks and
// with up to 9 connections of its own to each node, so that other commands that use up the pool cost no claim. The
// default client follows a Sentinel failover. A client that is given has to do so itself, as go-redis's failover client
// does. Nil is a core.ErrInvalidOption.
func WithHeartbeatClient(rdb redis.UniversalClient) WorkerOption {
	return func(w *Worker) error {
		if nilcheck.IsNil(rdb) {
			return invalidOption("WithHeartbeatClient(nil)")
		}
		w.heartbeats = rdb
		return nil
	}
}

// WithAcquireOptions sets the options with which the Worker takes the keys of its messages, as [core.Locker.Guard] does
// for its calls: [core.MinHold], [core.MaxHold], [core.FixedLease], [core.LeaseTTL], [core.WaitReplicas] and
// [core.Named]. The Worker does not know the options of the guards that parked its messages: what a guard's MinHold or
// WaitReplicas promises holds for parked calls only if it is also given here. The options apply to all messages that
// have a key: routes that need others need a queue of their own.
//
// With options, each message has its own lease; without, messages of one key share one for up to 100 ms. A message that
// outlasts MaxHold has lost its lease: a failed attempt. MinHold counts from each grant, also if the message failed or
// is handed back. Shared, and Counted of more than one, are refused, since a message has its key for itself. If given
// again it adds to the options. Default: none.
func WithAcquireOptions(opts ...core.AcquireOption) WorkerOption {
	return func(w *Worker) error {
		w.lockOptions = append(w.lockOptions, opts...)
		switch guard := w.locker.Guard(core.RejectConflicts, w.lockOptions...); {
		case guard.Err() != nil:
			return fmt.Errorf("delayqueue: WithAcquireOptions: %w", guard.Err())
		case !guard.Exclusive():
			return invalidOption("WithAcquireOptions: Shared and Counted: a message has its key for itself")
		}
		w.ownLeases = len(w.lockOptions) > 0
		return nil
	}
}

// WithRetryBackoff sets the delay after a message's first failed attempt. It doubles with each
// further one, up to most, and is shortened by up to a fifth at random. Default 1 s to 1 min;
// initial is at least 1 ms, and most at least initial.
func WithRetryBackoff(initial, most time.Duration) WorkerOption {
	return func(w *Worker) error {
		w.retry = bounds{initial, most}
		if initial < time.Millisecond || most < initial || most > maxDuration {
			return invalidOption("WithRetryBackoff(%s, %s): want at least %s, and at most %s, in this order",
				initial, most, time.Millisecond, maxDuration)
		}
		return nil
	}
}

// Middleware wraps a Handler, such as for tracing or a time limit.
type Middleware func(Handler) Handler

// WithMiddleware wraps the Worker's Handler: the first Middleware is the outermost. If given again, it adds inner ones.
func WithMiddleware(ms ...Middleware) WorkerOption {
	return func(w *Worker) error {
		for _, m := range ms {
			if m == nil {
				return invalidOption("WithMiddleware: one is nil")
			}
			w.middleware = append(w.middleware, m)
		}
		return nil
	}
}

// WithLogger sets the logger for errors: the Worker has no caller to return them to. Default
// [slog.Default]. Nil is a core.ErrInvalidOption.
func WithLogger(log *slog.Logger) WorkerOption {
	return func(w *Worker) error {
		if log == nil {
			return invalidOption("WithLogger(nil)")
		}
		w.log = log
		return nil
	}
}

// WithObserver sets the [Observer] of the Worker. Default: the Queue's observer. Nil is a core.ErrInvalidOption.
func WithObserver(o Observer) WorkerOption {
	return func(w *Worker) error {
		if nilcheck.IsNil(o) {
			return invalidOption("WithObserver(nil)")
		}
		w.observer = o
		return nil
	}
}

// bounds are the first and the longest delay of an exponential backoff.
type bounds struct{ initial, most time.Duration }
