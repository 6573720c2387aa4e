package httplock

import (
	"errors"
	"fmt"
	"os"
)

var (
	// errBodyTooLarge: the body is longer than the cap, so it cannot be parked, or is
	// not looked into for a key.
	errBodyTooLarge = errors.New("httplock: the body is too large")
	// errBodyUnreadable: the client's body could not be read to its end.
	errBodyUnreadable = errors.New("httplock: the body could not be read")
	// errBodyGone: middleware in front of the guard has read it.
	errBodyGone = errors.New("httplock: the body was read in front of the guard, and cannot be made whole again: put the guard in " +
		"front of what reads it, or have that put it back")
	// errBodySlow: it did not arrive within WithBodyTimeout.
	errBodySlow = fmt.Errorf("httplock: the body did not arrive in time: %w", os.ErrDeadlineExceeded)
	// errBodiesFull is about WithMaxWaitingBytes.
	errBodiesFull = errors.New("httplock: the limit for the bodies of waiting requests is reached")
	// errPrincipalWaits is about WithMaxWaitersPerPrincipal.
	errPrincipalWaits = errors.New("httplock: the limit of the principal's waiting requests is reached")
	// errNotReplayable: what was read shows that the request cannot be parked.
	errNotReplayable = errors.New("httplock: the request cannot be replayed")
	// errCredentials: the request must not be parked without a principal.
	errCredentials = errors.New("httplock: the request carries credentials, and nothing says whose they are")
	// errUnknownForm: a later release stored it.
	errUnknownForm   = errors.New("a form that this release does not know")
	errMisconfigured = errors.New("httplock: the guard is misconfigured")
	// errReplayWaits: a replay met a conflict and would have waited for the key.
	errReplayWaits = errors.New("httplock: a replay does not wait for a key")
)

// ErrForbidden is returned by the functions of WithPrincipal and WithReauthorize: the request may
// not be parked, or its principal may no longer have it run. An error that wraps it is answered
// with 403.
var ErrForbidden = errors.New("httplock: forbidden")

// NoKey is a [KeyFunc]'s error for a request that needs no key: it runs without one, as if [WithSkip] let it pass, and its
// Idempotency-Key is not looked at. So one guard can stand in front of a whole engine:
//
//	order := httplock.ParamInt("order:", "order")
//	key := func(r *http.Request) (string, error) {
//		if r.PathValue("order") == "" {
//			return "", httplock.NoKey
//		}
//		return order(r)
//	}
var NoKey = errors.New("httplock: the request needs no key") //nolint:errname,staticcheck // as fs.SkipDir, it is not a failure

// BadKey marks the error of a key function as the client's fault: the answer is
// 400, and not 500. The text of err is not sent to the client.
func BadKey(err error) error { return &badKeyError{err} }

type badKeyError struct{ err error }

func (e *badKeyError) Error() string {
	if e.err == nil {
		return "httplock: no usable key in the request"
	}
	return fmt.Sprintf("httplock: no usable key in the request: %v", e.err)
}

func (e *badKeyError) Unwrap() error { return e.err }
