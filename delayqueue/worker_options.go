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

// WorkerOption configures a Worker.
type WorkerOption func(*Worker) error

// WithConcurrency sets how many messages the Worker runs at once. It claims no
// more than that, but while its handlers take less than 0.5 ms on average, lately, it claims up to
// three times as many ahead, so that Redis and handlers need not wait for one another. What was claimed
// ahead goes back when it has waited for 10 ms, without an attempt spent. If the process dies, what waited has spent one,
// as what ran: so nothing waits beside a message that has a loss, nor with WithMaxAttempts(1). Default 8; 1 to 10,000.
func WithConcurrency(n int) WorkerOption {
	return func(w *Worker) error {
		w.concurrency = n
		return checkCount("WithConcurrency", n, 10_000)
	}
}

// WithClaimLease sets how long a message stays with a Worker that says nothing
// more: a message of a killed worker is run again after it. A Worker renews its
// claims at a third of it, for as long as handlers run. Default 30 s; 100 ms to
// 1 h.
func WithClaimLease(d time.Duration) WorkerOption {
	return func(w *Worker) error {
		w.lease = d
		if d < minClaimLease || d > maxClaimLease {
			return invalidOption("WithClaimLease(%s): want %s to %s", d, minClaimLease, maxClaimLease)
		}
		return nil
	}
}

// WithHeartbeatClient sets the client over which the Worker renews its claims: a client of the
// queue's Redis, which stays the caller's to close, after the Worker was stopped. Default: one
// like the queue's, with up to 9 connections of its own to each node and without its hooks, so
// that commands of others that use up the pool cost no claim. The default follows a Sentinel
// failover; one that is given has to do so itself, as go-redis's failover client does.
func WithHeartbeatClient(rdb redis.UniversalClient) WorkerOption {
	return func(w *Worker) error {
		if nilcheck.IsNil(rdb) {
			return invalidOption("WithHeartbeatClient(nil)")
		}
		w.heartbeats = rdb
		return nil
	}
}

// WithAcquireOptions has the Worker take the keys of its messages with these options, as [core.Locker.Guard]
// takes those of its calls: [core.MinHold], [core.MaxHold], [core.FixedLease], [core.LeaseTTL],
// [core.WaitReplicas] and [core.Named]. The Worker does not know the options of the guards that parked its
// messages: what a guard's MinHold or WaitReplicas promises holds for these only if it is
// given here too. The options are for all messages that have a key: routes that need others need a queue of their own.
//
// Each message has a lease of its own then, where otherwise messages of one key share one for up to
// 100 ms. One that outlasts MaxHold has lost its lease: a failed attempt. MinHold counts from each grant, also where
// the message failed or is handed back. Shared, and Counted of more
// than one, are refused: a message has its key for itself. Given again it adds to them. Default: none.
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

// WithRetryBackoff sets the delay after a message's first failed attempt, which
// doubles with each further one up to most. It is spread by a fifth, downwards.
// Default 1 s to 1 min; initial is 1 ms or more, and most no less than initial.
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

// WithCheck has check asked about messages of a name of which the Handler has handed one back, before anything is done for
// them: an error hands the message back as [HandBack] does, without a lock and without the Handler, so that thousands of messages that
// this process cannot run cost it little from the first on. Nil lets it take its way to the Handler, which decides. check must not do
// the work, as the key is not held; it is called by many goroutines. httplock.CheckReplay is one for httplock.Replay. Default:
// none; then the first look at each such message takes its key's lock.
func WithCheck(check func(m Message) error) WorkerOption {
	return func(w *Worker) error {
		if check == nil {
			return invalidOption("WithCheck(nil)")
		}
		w.check = check
		return nil
	}
}

// Middleware wraps a Handler, such as for tracing or a time limit.
type Middleware func(Handler) Handler

// WithMiddleware wraps the Worker's Handler: the first is the outermost. Given again it
// adds within.
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

// WithLogger sets where the Worker reports what goes wrong: it has no caller to
// return errors to. Default slog.Default.
func WithLogger(log *slog.Logger) WorkerOption {
	return func(w *Worker) error {
		if log == nil {
			return invalidOption("WithLogger(nil)")
		}
		w.log = log
		return nil
	}
}

// WithObserver sets who is told what the Worker does. Default: the Queue's observer.
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
