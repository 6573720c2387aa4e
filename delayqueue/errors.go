package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ctxerr"
)

// What can go wrong, told apart by errors.Is. Redis trouble wraps
// core.ErrUnavailable, a bad key core.ErrInvalidKey, a bad option
// core.ErrInvalidOption. A caller's own ctx that ended is none of these: it is
// reported as the ctx's error.
var (
	// ErrFull: the queue does not take the job now. Matches ErrKeyFull, ErrPrincipalFull and
	// ErrQueueFull.
	ErrFull = errors.New("full")
	// ErrKeyFull: the messages of one key that are queued or running are too many, or too large:
	// see WithMaxDepthPerKey and WithMaxBytesPerKey.
	ErrKeyFull error = &fullError{"the messages of this key are too many, or too large"}
	// ErrPrincipalFull: the messages of one principal that are queued or running are too large:
	// see WithMaxBytesPerPrincipal.
	ErrPrincipalFull error = &fullError{"the messages of this principal are too large"}
	// ErrQueueFull: the messages of the queue are too many, or take too much memory: see
	// WithMaxDepth and WithMaxBytes.
	ErrQueueFull error = &fullError{"the messages of the queue are too many, or too large"}
	// ErrPayloadTooLarge: the payload is over the queue's limit.
	ErrPayloadTooLarge = errors.New("payload too large")
	// ErrInvalidJob: a Job has a field that cannot work.
	ErrInvalidJob = errors.New("invalid job")
	// ErrNotFound: there is no message of this id, or not any more.
	ErrNotFound = errors.New("message not found")
	// ErrRunning: the message runs, and cannot be cancelled now.
	ErrRunning = errors.New("message is running")
	// ErrEnded: the message's life is over.
	ErrEnded = errors.New("message has ended")
	// ErrNotDead: the message is no dead letter, or not any more.
	ErrNotDead = errors.New("message is not a dead letter")
	// ErrDamaged: what Redis holds of a dead letter cannot be run.
	ErrDamaged = errors.New("message is damaged")
	// ErrInvalidArgument: a call was given something that cannot work.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrResultTooLarge: the result is over the queue's limit.
	ErrResultTooLarge = errors.New("result too large")
	// ErrNoHandler: SetResult was called outside of a handler.
	ErrNoHandler = errors.New("not a handler's ctx")
	// ErrClaimLost: a worker's claim on a message ended before its handler did.
	// It is the cause of the handler's ctx; another worker may run the message.
	ErrClaimLost = errors.New("claim lost")
	// ErrOtherLayout: Redis has messages of the queue that a release with another layout has
	// stored. They are neither read nor overtaken. If that release is older, let it run the queue empty, and
	// purge its dead letters, first; if it is newer, update this process.
	ErrOtherLayout = errors.New("messages of another layout are stored")
	// ErrOtherService: the queue is another service's, by WithService. Nothing is stored in it or run
	// from it: give one of the two another queue name, or another prefix.
	ErrOtherService = errors.New("the queue is another service's")
	// ErrOtherEncryption: the queue is encrypted, and a process that has no Keyring would store or run messages; or it
	// is not encrypted yet, and has messages that a process with a Keyring would not open. See WithEncryption.
	ErrOtherEncryption = errors.New("the queue is encrypted otherwise")
	// ErrNoQueue: no process has used a queue of this name under the prefix. See Open.
	ErrNoQueue = errors.New("no such queue")
	// ErrOperator: a Queue that Open returned was to store something, or to be changed.
	ErrOperator = errors.New("the queue was opened for its operator")
	// ErrDraining: too many older numbers of partitions still hold something. See Queue.Repartition.
	ErrDraining = errors.New("older partitions are not empty")
	// ErrStarted: the Worker was started before.
	ErrStarted = errors.New("worker was started before")
	// ErrStopped: the Worker was stopped. It is also the cause of a handler's
	// ctx that Stop ended.
	ErrStopped = errors.New("worker stopped")
)

type fullError struct{ why string }

func (e *fullError) Error() string { return e.why }

// Is makes all kinds match ErrFull.
func (e *fullError) Is(target error) bool { return target == ErrFull }

// SkipRetry marks a handler's error as one that no further attempt can mend:
// the message becomes a dead letter at once. A nil err stays nil.
func SkipRetry(err error) error {
	if err == nil {
		return nil
	}
	return &skipRetryError{err}
}

type skipRetryError struct{ err error }

func (e *skipRetryError) Error() string { return e.err.Error() }

func (e *skipRetryError) Unwrap() error { return e.err }

// HandBack marks a handler's error as one that is about this process and not about the
// message: the handler does not know how to run it, and has done nothing, but the handler
// of another process may know, such as one of a newer release. The message goes back
// untouched, without an attempt spent. Its delay doubles each time, from 1 s to 30 s, until
// a process runs it or it expires; beside thousands of such messages it is longer by up to 1 ms for each, and 30 s at most. Meanwhile its key is not reserved, so fresh calls get
// it; messages of the key that came later wait. The Worker hands it back without a lock and without
// the handler, which it asks about one message of a name at most every 30 s. A nil err stays nil.
func HandBack(err error) error {
	if err == nil {
		return nil
	}
	return &handBackError{err}
}

// RetryLater marks a handler's error as one about something that it needs and that is
// unavailable for now, such as a service that answers 503. The message is tried again for as
// long as it may be started (Job.MaxAge), however often: that spends no attempt. Its delay
// doubles from the first of WithRetryBackoff up to 30 s, and is at most half of the time that
// is left; it is no shorter than after, if the other side has said when it will be back. If the
// message would be too old by then it becomes a dead letter at once, with the handler's last
// result if that is short (see SetResult). While it waits its key is not reserved: fresh calls
// get it, and messages of the key that came later wait. A nil err stays nil.
func RetryLater(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryLaterError{err, after}
}

type retryLaterError struct {
	err   error
	after time.Duration
}

func (e *retryLaterError) Error() string { return e.err.Error() }

func (e *retryLaterError) Unwrap() error { return e.err }

type handBackError struct{ err error }

func (e *handBackError) Error() string { return e.err.Error() }

func (e *handBackError) Unwrap() error { return e.err }

// OutcomeOf is how a claim ends whose handler returned err, as far as err alone says: OutcomeDone for nil, OutcomeConflict,
// OutcomeReturned for HandBack, OutcomeDead for SkipRetry, and else OutcomeRetry. A Middleware can tell by it what is no
// failure. An [Observer] is told how it really ended.
func OutcomeOf(err error) Outcome {
	var (
		skip    *skipRetryError
		foreign *handBackError
		later   *retryLaterError
	)
	switch {
	case err == nil:
		return OutcomeDone
	case errors.As(err, &skip):
		return OutcomeDead
	case errors.As(err, &foreign):
		return OutcomeReturned
	case !errors.As(err, &later) && errors.Is(err, core.ErrConflict):
		return OutcomeConflict
	}
	return OutcomeRetry
}

// redisError reports a command that failed: as the caller's own ctx if that has
// ended, else as Redis trouble.
func redisError(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return callerGone(ctx, op)
	}
	if isMoving(err) {
		return fmt.Errorf("delayqueue: %s: %w: the queue's slot is being moved to another node: %w", op, core.ErrUnavailable, err)
	}
	return fmt.Errorf("delayqueue: %s: %w: %w", op, core.ErrUnavailable, err)
}

// isMoving reports whether part of the keys are on another node, to which their slot is being moved, or
// whether they moved while go-redis followed them, which it does three times.
func isMoving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN ") || redis.HasErrorPrefix(err, "ASK ") || redis.HasErrorPrefix(err, "MOVED ")
}

func callerGone(ctx context.Context, op string) error {
	return fmt.Errorf("delayqueue: %s: %w", op, ctxerr.Of(ctx))
}
