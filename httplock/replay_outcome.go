package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// WithRetryStatuses adds statuses after which a parked request is tried again, as it is after 429
// and 503: see [Replay]. Other statuses are results. It is for routes whose handlers may run any
// number of times, and have done nothing when they answer with these. 400 to 599; given again it
// adds more.
func WithRetryStatuses(statuses ...int) Option {
	return func(m *Middleware) error {
		for _, status := range statuses {
			if status < http.StatusBadRequest || status > 599 {
				return invalid("WithRetryStatuses(%d): want 400 to 599", status)
			}
		}
		m.retryStatuses = append(m.retryStatuses, statuses...)
		return nil
	}
}

// noResultError is a response that is no result: why. The ticket shows its beginning if the request becomes a dead letter.
type noResultError struct {
	id, why string
	status  int
}

func (e *noResultError) Error() string {
	return fmt.Sprintf("httplock: replay of %s: answered with status %d%s", e.id, e.status, e.why)
}

// tryAgain is the outcome of a response after which a request is tried again.
func tryAgain(id, why string, w *recorder) error {
	return delayqueue.RetryLater(&noResultError{id, why, w.status}, retryAfter(w.sent, time.Now()))
}

const isTriedAgain = ", which is tried again"

// errTimedOut: the handler of a replay was interrupted by Timeout.
var errTimedOut = errors.New("the time limit of httplock.Timeout ran out")

// outcome classifies a response: nil is a result.
func (p *replayer) outcome(ctx context.Context, m delayqueue.Message, replay *replay, at place, w *recorder) error {
	replay.mu.Lock()
	defer replay.mu.Unlock()
	wroteNothing := w.status == http.StatusOK && len(w.body) == 0 && !w.truncated
	seen := replay.reached || replay.skipped
	if seen {
		wroteNothing = replay.wroteNothing && w.status == http.StatusOK
	}
	interrupted := (ctx.Err() != nil || replay.late) && (wroteNothing || w.status >= http.StatusBadRequest) // told to give up, the handler did
	switch {
	case replay.panicked != nil:
		return replay.panicked
	case replay.conflict != nil:
		return replay.conflict
	case replay.failure != nil:
		return p.refusedBy(ctx, m, replay.failure, seen)
	case interrupted:
		cause := cmp.Or(context.Cause(ctx), errTimedOut)
		return fmt.Errorf("httplock: replay of %s: interrupted, and answered with status %d: %w", m.ID, w.status, cause)
	case !seen:
		return p.unguardedOutcome(ctx, m, at, w)
	case w.status == http.StatusTooManyRequests, w.status == http.StatusServiceUnavailable, slices.Contains(replay.statuses, w.status):
		return tryAgain(m.ID, isTriedAgain, w)
	default:
		return nil
	}
}

// refusedBy classifies the failure of a guard that did not run its handler. If a handler in
// front of it ran, the attempt has failed.
func (p *replayer) refusedBy(ctx context.Context, m delayqueue.Message, failure error, ran bool) error {
	switch {
	case ctx.Err() != nil:
		return failure
	case errors.Is(failure, core.ErrUnavailable), errors.Is(failure, core.ErrClosed), errors.Is(failure, errNotAuthorized):
		return delayqueue.RetryLater(failure, 0)
	case ran:
		return failure
	default:
		return p.handBack(ctx, m, failure)
	}
}
