package delayqueue

import (
	"errors"
	"time"
)

// The errors of this package, distinguished by [errors.Is]. If Redis fails the error wraps [core.ErrUnavailable], for a
// bad key [core.ErrInvalidKey], and for a bad option [core.ErrInvalidOption]. When the caller's own ctx ends, a call
// returns none of these but the ctx's error.
var (
	// ErrFull: the queue does not take the job now. It matches ErrKeyFull, ErrPrincipalFull and ErrQueueFull.
	ErrFull = errors.New("full")
	// ErrKeyFull: the queued and running messages of one key are too many, or too large;
	// see [WithMaxDepthPerKey] and [WithMaxBytesPerKey].
	ErrKeyFull error = &fullError{"the messages of this key are too many, or too large"}
	// ErrPrincipalFull: the queued and running messages of one principal are too large; see [WithMaxBytesPerPrincipal].
	ErrPrincipalFull error = &fullError{"the messages of this principal are too large"}
	// ErrQueueFull: the messages of the queue are too many, or take too much memory; see
	// [WithMaxDepth] and [WithMaxBytes].
	ErrQueueFull error = &fullError{"the messages of the queue are too many, or too large"}
	// ErrPayloadTooLarge: the payload is larger than [WithMaxPayload] allows.
	ErrPayloadTooLarge = errors.New("payload too large")
	// ErrInvalidJob: a field of the [Job] has a value that cannot work.
	ErrInvalidJob = errors.New("invalid job")
	// ErrNotFound: there is no message with this id, or it is no longer remembered.
	ErrNotFound = errors.New("message not found")
	// ErrRunning: the message is running, and cannot be cancelled now.
	ErrRunning = errors.New("message is running")
	// ErrEnded: the message has ended, and cannot be cancelled any more.
	ErrEnded = errors.New("message has ended")
	// ErrNotDead: the message is not a dead letter, or no longer one.
	ErrNotDead = errors.New("message is not a dead letter")
	// ErrDamaged: the record of a dead letter is damaged, so that it cannot be redriven.
	ErrDamaged = errors.New("message is damaged")
	// ErrInvalidArgument: an argument of the call has a value that cannot work.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrResultTooLarge: the result is larger than [WithMaxResult] allows.
	ErrResultTooLarge = errors.New("result too large")
	// ErrNoHandler: [SetResult] was called outside of a handler.
	ErrNoHandler = errors.New("not a handler's ctx")
	// ErrClaimLost: a worker's claim on a message ended before its handler did.
	// It is the cause of the handler's ctx; another worker may run the message.
	ErrClaimLost = errors.New("claim lost")
	// ErrOtherLayout: the queue has another number of partitions than this process was to use, see [WithPartitions]; or a
	// release with another layout has stored messages of it in Redis. This process neither reads
	// nor overtakes them. If that release is older, let it run the queue empty, and
	// purge its dead letters, first; if it is newer, update this process.
	ErrOtherLayout = errors.New("the queue has another layout")
	// ErrOtherService: the queue belongs to another service; see [WithService]. This process neither stores nor runs
	// messages: give one of the two services another queue name, or another prefix.
	ErrOtherService = errors.New("the queue is another service's")
	// ErrOtherEncryption: the queue is encrypted, and this process, which has no Keyring, was to store or run messages; or the
	// queue is not encrypted yet, and has messages that this process, which has one, would not open. See [WithEncryption].
	ErrOtherEncryption = errors.New("the queue is encrypted otherwise")
	// ErrNoQueue: no process has used a queue with this name and prefix; see [Open].
	ErrNoQueue = errors.New("no such queue")
	// ErrOperator: a Queue of [Open] cannot store messages.
	ErrOperator = errors.New("the queue was opened for its operator")
	// ErrStarted: the Worker was started before.
	ErrStarted = errors.New("worker was started before")
	// ErrStopped: the Worker was stopped. It is also the cause of a handler's ctx that [Worker.Stop] cancelled.
	ErrStopped = errors.New("worker stopped")
)

type fullError struct{ why string }

func (e *fullError) Error() string { return e.why }

// Is makes all kinds match ErrFull.
func (e *fullError) Is(target error) bool { return target == ErrFull }

// SkipRetry marks a handler's error as one that no further attempt can mend: the message becomes a
// dead letter at once. SkipRetry(nil) is nil.
func SkipRetry(err error) error {
	if err == nil {
		return nil
	}
	return &skipRetryError{err}
}

type skipRetryError struct{ err error }

func (e *skipRetryError) Error() string { return e.err.Error() }

func (e *skipRetryError) Unwrap() error { return e.err }

// HandBack marks a handler's error as one about this process and not about the message: this handler cannot run it, and
// has done nothing, but that of another process may, such as one of a newer release. The message goes back unchanged,
// without an attempt spent. Its delay doubles each time, from 1 s to 30 s, until a process runs it or it expires;
// beside thousands of such messages it is longer by up to 1 ms for each, but at most 30 s. Meanwhile its key is not
// reserved: fresh calls get it, and messages of the key that arrived later wait. The Worker hands it back without a
// lock and without the handler, except that it calls the handler for one message of a name every 30 s. HandBack(nil) is
// nil.
func HandBack(err error) error {
	if err == nil {
		return nil
	}
	return &handBackError{err}
}

// RetryLater marks a handler's error as one about something that it needs and that is unavailable
// for now, such as a service that answers 503. The message is tried again for as long as it may be
// started ([Job].MaxAge), however often: that spends no attempt.
//
// Its delay doubles from the first one of [WithRetryBackoff] up to 30 s, and is at most half of the
// time that is left. It is at least after: the time that the other side has asked for, or 0. If the
// message would be too old by then, it becomes a dead letter at once, with the handler's last
// result if that is short (see [SetResult]). While it waits its key is not reserved: fresh calls
// get it, and messages of the key that arrived later wait. RetryLater(nil, after) is nil.
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
