package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/backoff"
)

// lockPause is how long a message waits whose key could not be asked for.
const lockPause = time.Second

var errGoexit = errors.New("delayqueue: the handler called runtime.Goexit")

// panicError is a handler's panic, with its stack.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.value, e.stack) }

// process takes a claimed message through its lock and its handler to the end
// of the claim.
func (w *Worker) process(c *claim) {
	if w.isStopping() { // claimed while Stop was called
		w.settle(c, verdict{outcome: OutcomeReturned, err: ErrStopped})
		return
	}
	ctx, result := withResult(c.ctx, w.queue)
	c.result = result
	var err error
	if c.message.Principal, err = w.queue.principalOf(ctx, c.message.ID); err != nil {
		w.settle(c, verdict{outcome: OutcomeReturned, err: err, delay: backoff.Spread(lockPause)})
		return
	}
	var lease *core.Lease
	if key := c.message.Key; key != "" {
		var err error
		if lease, err = w.locker.TryAcquire(ctx, key, core.NotifyRelease(w.released)); err != nil {
			w.settle(c, w.judgeLock(c, err))
			return
		}
		ctx = lease.Context()
	}

	err = errGoexit
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
		var lost error
		if lease != nil {
			// The lock goes first, while the claim still keeps the message, and with
			// it the line of its key, where it is. Were the message to end first,
			// the next of its key would be claimed at once and meet our own lock.
			if lost = lease.Release(ctx); !errors.Is(lost, core.ErrLeaseLost) {
				lost = nil // the work was done within the lease; Redis frees the key by itself
			}
		}
		w.settle(c, w.judge(c, legible(err), lost))
	}()
	w.observer.OnStarted(c.message)
	err = w.handler(ctx, c.message)
}

// legible is err, or the panic that asking it ends in, as a typed nil may: a
// handler's error must not take the worker down.
func legible(err error) (is error) {
	defer func() {
		if p := recover(); p != nil {
			is = &panicError{p, debug.Stack()}
		}
	}()
	if err != nil {
		var skip *skipRetryError
		_, _, _ = err.Error(), errors.Is(err, core.ErrConflict), errors.As(err, &skip)
	}
	return err
}

// verdict is how a claim is to end.
type verdict struct {
	outcome   Outcome
	err       error // why the message is not done
	delay     time.Duration
	lost      bool // the attempt's outcome is unknown
	awaitsKey bool // a nudge makes it due
}

// maxCause bounds what is stored of an error or a stack, in bytes.
const maxCause = 4 << 10

func (v verdict) cause() string {
	if v.err == nil {
		return ""
	}
	s := v.err.Error()
	return strings.ToValidUTF8(s[:min(len(s), maxCause)], "\uFFFD")
}

// judgeLock decides about a message whose key was not granted. No handler ran,
// so no attempt is spent, unless there can be none.
func (w *Worker) judgeLock(c *claim, err error) verdict {
	var conflict *core.ConflictError
	switch {
	case errors.As(err, &conflict):
		// The release of the key is announced, and the nudge that follows makes
		// the message due: see passOn. The delay is for announcements that are
		// lost, and for a holder that dies: its lease ends without one.
		delay := w.conflictDelay(c)
		if conflict.Remaining > 0 {
			delay = min(delay, conflict.Remaining+50*time.Millisecond)
		}
		return verdict{outcome: OutcomeConflict, err: err, delay: delay, awaitsKey: true}
	case errors.Is(err, core.ErrInvalidKey):
		return verdict{outcome: OutcomeDead, err: err}
	case errors.Is(context.Cause(c.ctx), ErrStopped):
		return verdict{outcome: OutcomeReturned, err: ErrStopped}
	default:
		return verdict{outcome: OutcomeReturned, err: err, delay: backoff.Spread(lockPause)}
	}
}

// judge decides about a message whose handler returned err. lost is set if the
// key's lease ended before the handler did.
func (w *Worker) judge(c *claim, err, lost error) verdict {
	var (
		panicked *panicError
		skip     *skipRetryError
		gone     = context.Cause(c.ctx) // nil while the claim and the Worker live
	)
	v := verdict{outcome: OutcomeRetry, err: err}
	v.lost = lost != nil || errors.Is(err, core.ErrLeaseLost) || errors.Is(gone, ErrClaimLost)
	switch {
	case err == nil && lost == nil:
		// Also when the claim seems lost: if nobody has taken the message since,
		// the queue takes the result.
		return verdict{outcome: OutcomeDone}
	case err == nil:
		v.err = lost
	case errors.As(err, &panicked):
	case errors.As(err, &skip):
		v.outcome = OutcomeDead
		return v
	case errors.Is(gone, ErrStopped):
		v.outcome = OutcomeReturned
		return v
	case errors.Is(err, core.ErrConflict):
		v.outcome, v.delay = OutcomeConflict, w.conflictDelay(c)
		return v
	}
	if c.message.Attempt >= w.queue.maxAttempts {
		v.outcome = OutcomeDead
		return v
	}
	v.delay = backoff.Spread(backoff.Exponential(c.message.Attempt, w.retry.initial, w.retry.most))
	return v
}

func (w *Worker) conflictDelay(c *claim) time.Duration {
	return backoff.Spread(backoff.Exponential(c.message.Conflicts+1, w.conflict.initial, w.conflict.most))
}

const (
	settleBefore = 20 * time.Millisecond // backoff while Redis does not answer
	settleMost   = time.Second
)

// settle ends a claim. While Redis does not answer it tries again, until the
// claim is over anyway or Stop's time is.
func (w *Worker) settle(c *claim, v verdict) {
	deadline := w.claims.settling(c)
	defer c.cancel(nil)
	for try := 1; ; try++ {
		s, err := w.queue.settle(context.Background(), c, v)
		if err == nil {
			switch {
			case !s.held:
				v = verdict{outcome: OutcomeLate, err: errors.Join(ErrClaimLost, v.err)}
			case s.expired:
				v = verdict{outcome: OutcomeExpired, err: v.err}
			}
			if s.anyDue {
				w.look() // without waiting for our own announcement
			}
			break
		}
		pause := backoff.Full(try, settleBefore, settleMost)
		if time.Now().Add(pause).After(deadline) || !w.sleep(pause) {
			v = verdict{outcome: OutcomeLate, err: errors.Join(ErrClaimLost, err, v.err)}
			break
		}
	}
	w.logSettled(c, v)
	w.observer.OnSettled(Settled{
		Message: c.message, Outcome: v.outcome, Err: v.err, Delay: v.delay, Took: time.Since(c.taken),
	})
}

// sleep waits for d. It reports false when Stop's time is over.
func (w *Worker) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

func (w *Worker) logSettled(c *claim, v verdict) {
	level := slog.LevelDebug
	switch v.outcome {
	case OutcomeDead, OutcomeExpired, OutcomeLate:
		level = slog.LevelWarn
	case OutcomeRetry:
		level = slog.LevelInfo
	default:
	}
	if !w.log.Enabled(context.Background(), level) {
		return
	}
	m := c.message
	attrs := []slog.Attr{
		slog.String("id", m.ID), slog.String("key", m.Key), slog.String("name", m.Name),
		slog.String("outcome", string(v.outcome)), slog.Int("attempt", m.Attempt), slog.Duration("took", time.Since(c.taken)),
	}
	if v.err != nil {
		attrs = append(attrs, slog.String("error", v.cause()))
	}
	w.log.LogAttrs(context.Background(), level, "delayqueue: message settled", attrs...)
}
