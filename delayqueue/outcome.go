package delayqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/keytext"
	"github.com/perkey-go/perkey/internal/observing"
)

// unreachablePause is how long a message waits at most if Redis could not be reached.
const unreachablePause = time.Second

var errTooOld = errors.New("delayqueue: the message became too old before it could be started")

// Why a message may not be run now.
var (
	errNoSlot   = errors.New("delayqueue: the Worker has no free slot for the message")
	errPaused   = errors.New("delayqueue: the Worker was paused while it claimed the message")
	errNotAlone = errors.New("delayqueue: the message is to run alone, and another one runs alone in the Worker")
)

var errGoexit = errors.New("delayqueue: the handler, its error or a check called runtime.Goexit")

// panicError is a handler's panic, with its stack.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.value, e.stack) }

// unopenedError is why a message has no payload for the handler.
type unopenedError struct{ error }

func (e *unopenedError) Unwrap() error { return e.error }

// safeError returns err, or, if its own methods panic (a typed nil) or end their goroutine, an error for that: a
// handler's error must not take the worker down.
func safeError(err error) error {
	if err == nil {
		return nil
	}
	return cmp.Or(aside(func() {
		var skip *skipRetryError
		_, _, _ = err.Error(), errors.Is(err, core.ErrConflict), errors.As(err, &skip)
	}), err)
}

// aside calls a user's function on a goroutine of its own. It returns nil, or why it did not return: it panicked, or
// ended its goroutine, as a test's require does.
func aside(f func()) error {
	switch e := observing.Aside(f); {
	case e.Returned:
		return nil
	case e.Panicked != nil:
		return &panicError{e.Panicked, e.Stack}
	default:
		return errGoexit
	}
}

// outcome is how a claim is to end.
type outcome struct {
	end    store.End
	err    error // why the message is not done
	delay  time.Duration
	lost   bool // whether the attempt ran to its end is not known
	result []byte
	last   bool   // no other message is claimed next
	ofKey  bool   // the next of its key is claimed next
	next   string // token to claim it with; "" not to
}

// outcomes are what an Observer is told.
var outcomes = [...]Outcome{
	store.Finished: OutcomeDone, store.Died: OutcomeDead, store.Outlived: OutcomeExpired, store.Failed: OutcomeRetry, store.Postponed: OutcomeRetry,
	store.Conflicted: OutcomeConflict, store.KeyHeld: OutcomeConflict, store.Returned: OutcomeReturned, store.Unreachable: OutcomeReturned,
	store.HandedBack: OutcomeReturned,
}

// maxCause bounds what is stored of an error or a stack, in bytes.
const maxCause = 4 << 10

func (v outcome) cause() string {
	if v.err == nil {
		return ""
	}
	return keytext.Cut(v.err.Error(), maxCause)
}

// judge decides how attempts end.
type judge struct {
	retry, conflict bounds
	maxAttempts     int
	handsBack       atomic.Bool // the last message was handed back
}

// ofLock decides about a message whose key was not granted. No handler ran, so no attempt is
// spent, unless the key is invalid.
func (j *judge) ofLock(c *claim, err error) outcome {
	var conflict *core.ConflictError
	switch {
	case errors.As(err, &conflict):
		// The release of the key is announced, and the wake that follows makes
		// the message due: see wakeReleased. The delay is for announcements that are
		// lost, and for a holder that dies: its lease ends without one.
		delay := j.conflictDelay(c)
		if conflict.Remaining > 0 {
			delay = min(delay, conflict.Remaining+afterLease)
		}
		return outcome{end: store.KeyHeld, err: err, delay: delay}
	case errors.Is(err, core.ErrInvalidKey):
		return outcome{end: store.Died, err: err}
	case errors.Is(context.Cause(c.ctx), ErrStopped):
		return outcome{end: store.Returned, err: ErrStopped}
	default:
		return unreachable(c, err)
	}
}

// unreachable is the outcome of a message that could not be run since Redis did not answer. It waits
// for a moment, and for its key, which stays reserved: it is to run next.
func unreachable(c *claim, err error) outcome {
	v := outcome{end: store.Unreachable, err: err, delay: backoff.Spread(unreachablePause)}
	if c.message.Key == "" {
		v.end = store.Returned
	}
	return v
}

// of decides about a message whose handler returned err. lost is not nil if the key's lease
// ended before the handler did.
func (j *judge) of(c *claim, err, lost error) outcome {
	if err == nil && lost == nil {
		// Also if the claim seems lost: unless another worker has claimed the message since,
		// the result is stored.
		return outcome{end: store.Finished}
	}
	var (
		panicked *panicError
		skip     *skipRetryError
		unopened *unopenedError
		handBack *handBackError
		later    *retryLaterError
		gone     = context.Cause(c.ctx) // nil while the claim and the Worker live
	)
	v := outcome{end: store.Failed, err: err}
	v.lost = lost != nil || errors.Is(err, core.ErrLeaseLost) || errors.Is(gone, ErrClaimLost)
	switch {
	case err == nil:
		v.err = lost
	case errors.As(err, &panicked):
	case errors.As(err, &skip):
		v.end = store.Died
		return v
	case errors.As(err, &handBack):
		return j.handedBack(c, err)
	case errors.As(err, &unopened):
		v.end = store.Died
		return v
	case errors.As(err, &later) && !v.lost:
		delay, inTime := laterDelay(c.stored.Handed+1, j.retry, later.after, c.left())
		if v.end, v.delay = store.Postponed, delay; !inTime {
			v.end, v.delay = store.Died, 0
		}
		return v
	case errors.Is(gone, ErrStopped): // the handler may have done a part
		v.end, v.lost = store.Returned, true
		return v
	case errors.Is(err, core.ErrConflict):
		v.end, v.delay = store.Conflicted, j.conflictDelay(c)
		return v
	}
	if c.message.Attempt >= j.maxAttempts {
		v.end = store.Died
		return v
	}
	v.delay = backoff.Spread(backoff.Exponential(c.message.Attempt, j.retry.initial, j.retry.most))
	return v
}

// The delay of what is handed back doubles between these.
const handBackFirst, handBackMost = time.Second, 30 * time.Second

// handedBack is the outcome of a message that another Worker may be able to run. One that nobody has opened in most of its time
// dies: so its payload is kept.
func (j *judge) handedBack(c *claim, err error) outcome {
	j.handsBack.Store(true)
	delay := backoff.Spread(backoff.Exponential(c.stored.Handed+1, handBackFirst, handBackMost))
	if errors.Is(err, ErrSealed) && delay >= c.left()/2 {
		return outcome{end: store.Died, err: err}
	}
	return outcome{end: store.HandedBack, err: err, delay: delay}
}

// laterMost bounds the delay of RetryLater, unless the other side says when to come back.
const laterMost = 30 * time.Second

// laterDelay is how long a message waits after the n-th RetryLater. left is for how long it may
// still be started: inTime is false if that is too short.
func laterDelay(n int, b bounds, after, left time.Duration) (delay time.Duration, inTime bool) {
	initial := min(b.initial, laterMost)
	delay = backoff.Exponential(n, initial, min(b.most, laterMost))
	delay = backoff.Spread(max(min(delay, left/2), initial))
	delay = max(delay, after)
	return delay, delay < left
}

func (j *judge) conflictDelay(c *claim) time.Duration {
	return backoff.Spread(backoff.Exponential(c.message.Conflicts+1, j.conflict.initial, j.conflict.most))
}
