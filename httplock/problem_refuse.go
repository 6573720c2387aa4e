package httplock

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/idempotency"
)

// statusClientClosedRequest, as nginx has it, is for access logs: the client
// that it is for has left.
const statusClientClosedRequest = 499

// refuse writes the response to a request that did not run. If it was encoded a
// queue may have stored it, although the policy failed. It is long as it is one table: of two
// cases that an error has, the first counts.
func (m *Middleware) refuse(x Exchange, err error, encoded bool) {
	x = x.because(m, err)
	var (
		deferred *core.DeferredError
		conflict *core.ConflictError
		bad      *badKeyError
	)
	switch ctx := x.Request.Context(); {
	case errors.As(err, &deferred):
		m.accepted(x, deferred.Ticket)
	case errors.Is(err, errNoIdempotencyKey):
		respond(x, problemNoIdempotencyKey.document(0))
	case errors.Is(err, errBadIdempotencyKey):
		respond(x, problemBadIdempotencyKey.document(0))
	case errors.Is(err, idempotency.ErrMismatch):
		respond(x, problemKeyReused.document(0))
	case errors.Is(err, errNotReplayable):
		m.refuseUnparked(x, err)
	case errors.Is(err, errNoPrincipal), errors.Is(err, errNoTee), errors.Is(err, idempotency.ErrSealed), errors.Is(err, errBodyGone),
		errors.Is(err, core.ErrUpgrade):
		m.logger().ErrorContext(ctx, "httplock: misconfigured: request refused", "name", x.Name, "error", err)
		respond(x, problemMisconfigured.document(0))
	case errors.Is(err, ErrForbidden):
		respond(x, problemForbidden.document(0))
	case errors.Is(err, errSelfCall):
		m.warnSelfCall.Do(func() {
			m.logger().ErrorContext(ctx, "httplock: request refused", "name", x.Name, "error", err)
		})
		respond(x, problemSelfCall.document(0))
	case errors.Is(err, errCredentials):
		m.warnCredentials.Do(func() {
			m.logger().WarnContext(ctx, "httplock: requests with credentials are not parked here, and are answered with 409: "+
				"have the function of WithPrincipal say whose they are, or give the guard WithAnonymous if it does not look at them", "name", x.Name)
		})
		respond(x, problemConflict.document(soon()))
	case errors.As(err, &conflict):
		respond(x, problemConflict.document(conflictRetryAfter(conflict.Remaining, m.holds.usual())))
	case errors.Is(err, core.ErrConflict), errors.Is(err, errReplayWaits),
		errors.Is(err, idempotency.ErrStaleFence):
		respond(x, problemConflict.document(soon()))
	case errors.Is(err, errBodySlow), errors.Is(err, errBodiesFull), errors.Is(err, errPrincipalWaits):
		refuseBody(x, err)
	case clientGone(ctx):
		endGone(x)
	case ctx.Err() != nil:
		// A deadline of the server's: the client is still there, and silence
		// would read as 200.
		respond(x, mayBeQueued(problemTimeout, encoded).document(soon()))
	case errors.Is(err, core.ErrInvalidKey), errors.As(err, &bad):
		respond(x, problemBadKey.document(0))
	case errors.Is(err, errTooLargeToCompare):
		respond(x, problemTooLargeToCompare.document(0))
	case errors.Is(err, errBodyTooLarge), errors.Is(err, delayqueue.ErrPayloadTooLarge):
		respond(x, problemBodyTooLarge.document(0))
	case errors.Is(err, errBodyUnreadable):
		respond(x, problemUnreadableBody.document(0))
	case errors.Is(err, delayqueue.ErrKeyFull):
		respond(x, problemKeyFull.document(soon()))
	case errors.Is(err, delayqueue.ErrPrincipalFull):
		respond(x, problemPrincipalFull.document(soon()))
	case errors.Is(err, delayqueue.ErrQueueFull):
		respond(x, problemQueueFull.document(soon()))
	case errors.Is(err, core.ErrUnavailable):
		m.logger().WarnContext(ctx, "httplock: request refused", "name", x.Name, "error", err)
		respond(x, mayBeQueued(problemUnavailable, encoded).document(soon()))
	case errors.Is(err, core.ErrClosed):
		respond(x, problemUnavailable.document(soon()))
	default:
		m.logger().ErrorContext(ctx, "httplock: request refused", "name", x.Name, "error", err)
		respond(x, problemInternal.document(0))
	}
}

// refuseUnparked answers a request that met a conflict, and cannot be parked. The log says why, once.
func (m *Middleware) refuseUnparked(x Exchange, err error) {
	if m.unparked.first(err.Error()) {
		m.logger().WarnContext(x.Request.Context(), "httplock: a request was not parked, and was answered with 409", "name", x.Name, "error", err)
	}
	respond(x, problemConflict.document(soon()))
}

// mayBeQueued takes back that a request was not started if a queue may have stored it: its answer
// was lost.
func mayBeQueued(k problemKind, encoded bool) problemKind {
	if encoded {
		k.detail = "It could not be confirmed that the request was queued. If it was, it will run: send it again only if it may run twice."
	}
	return k
}

// refuseKey writes the response to a request without a key.
func (m *Middleware) refuseKey(x Exchange, err error) {
	x = x.because(m, err)
	var bad *badKeyError
	switch ctx := x.Request.Context(); {
	case errors.Is(err, errBodySlow), errors.Is(err, errBodiesFull):
		refuseBody(x, err)
	case errors.As(err, &bad), errors.Is(err, core.ErrInvalidKey):
		respond(x, problemBadKey.document(0))
	case errors.Is(err, errBodyTooLarge), isCapped(err):
		respond(x, problemKeyBodyTooLarge.document(0))
	case clientGone(ctx):
		endGone(x)
	case errors.Is(err, errBodyUnreadable):
		respond(x, problemUnreadableBody.document(0))
	default:
		m.logger().ErrorContext(ctx, "httplock: the key function failed", "name", x.Name, "error", err)
		respond(x, problemInternal.document(0))
	}
}

// clientGone reports whether the client has closed its connection.
func clientGone(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && errors.Is(context.Cause(ctx), context.Canceled)
}

// lost writes the response of a request that ran and lost its lease, if its
// handler has not begun one.
func (m *Middleware) lost(x Exchange, err error) {
	x = x.because(m, err)
	if x.Written == nil || x.Written() {
		x.ends(OutcomeLost, 0)
		return
	}
	respond(x, problemOutcomeUnknown.document(0))
}

// accepted writes the receipt of a parked request.
func (m *Middleware) accepted(x Exchange, t core.Ticket) {
	x.ends(OutcomeParked, http.StatusAccepted)
	if x.outcome != nil {
		x.outcome.Ticket = t.ID
	}
	if written(x) {
		return
	}
	if m.statusPath != "" {
		at := m.statusPath + t.ID
		x.Writer.Header().Set("Location", at)
		x.Writer.Header().Add("Link", "<"+at+`>; rel="status"`)
	}
	writeJSON(x.Writer, x.Request, http.StatusAccepted, "application/json", ticketRetryAfter, struct {
		ID        string `json:"id"`
		State     string `json:"state"`
		ExpiresAt string `json:"expires_at,omitempty"`
	}{t.ID, "queued", timestamp(t.ExpiresAt)})
}

// endGone ends the exchange with a client that has left.
func endGone(x Exchange) {
	x.ends(OutcomeCancelled, statusClientClosedRequest)
	if !written(x) {
		x.Writer.WriteHeader(statusClientClosedRequest)
	}
}

// refuseBody answers a request whose body is not to be read, or arrives too slowly. What is left of it would have to be read
// before the connection could be used again.
func refuseBody(x Exchange, err error) {
	if x.Request.ProtoMajor == 1 && !isEmpty(x.Request) && !written(x) {
		x.Writer.Header().Set("Connection", "close")
	}
	switch {
	case errors.Is(err, errBodySlow):
		respond(x, problemSlowBody.document(0))
	case errors.Is(err, errPrincipalWaits):
		respond(x, problemPrincipalWaitingFull.document(soon()))
	default:
		respond(x, problemWaitingFull.document(soon()))
	}
}

func respond(x Exchange, p problem) {
	x.ends(p.outcome, p.Status)
	if !written(x) && !handled(x, p) {
		p.write(x.Writer, x.Request)
	}
}

// written reports whether middleware in front of ours has begun a response.
func written(x Exchange) bool { return x.Written != nil && x.Written() }

// timestamp is RFC 3339 in UTC, to the millisecond.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
