package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// Why a task did not run, told apart by errors.Is; for middleware in front of PerKey.
var (
	// ErrDeferred: the task was not run, since its key could not be acquired, and asynq
	// hands it out again. It is not a failure. The error that wraps it also wraps the
	// reason: core.ErrConflict, core.ErrUnavailable, core.ErrClosed or
	// core.ErrInvalidOption. If the task goes on as a clone it wraps asynq.RevokeTask as
	// well.
	ErrDeferred = errors.New("task deferred")
	// ErrTooOld: the task was refused its key for longer than WithMaxAge allows, and is archived.
	// The error that wraps it also wraps asynq.SkipRetry and the reason of the last refusal.
	ErrTooOld = errors.New("task was deferred for too long")
)

// refusal is why a task was not run.
type refusal struct {
	key       string // "": not known
	why       string // for people; never has the key in it
	cause     error
	remaining time.Duration // of the holder's lease; zero: not known
	mayWait   time.Duration // in its worker, if it is the next for its key; zero: it may not
}

// deferredError is a task that was not run, and comes back. It is the one error that the
// hooks of Configure know.
type deferredError struct {
	refusal
	since time.Time // when it was first refused; zero: not known
	delay time.Duration
	clone string // the id that the task goes on under, if not its own
	next  bool   // it is not put aside yet, since it may wait

	trouble error // why the Redis that Configure was given was of no use, or nil
	stays   bool  // then: its worker keeps it, since asynq would archive it
}

// Error is the task's last error, as asynq's tools show it.
func (e *deferredError) Error() string {
	text := "asynqlock: not run: " + e.why
	if e.trouble != nil {
		text += ": " + e.trouble.Error()
	}
	if e.clone != "" {
		text += ": goes on as task " + e.clone
	}
	if !e.since.IsZero() {
		text += " (waiting since " + e.since.UTC().Format(waitTime) + ")"
	}
	return text
}

func (e *deferredError) Unwrap() []error {
	if e.clone != "" {
		return []error{ErrDeferred, e.cause, asynq.RevokeTask}
	}
	return []error{ErrDeferred, e.cause}
}

const waitTime = "2006-01-02T15:04:05.000Z"

func isDeferred(err error) (*deferredError, bool) {
	var d *deferredError
	return d, errors.As(err, &d)
}

// textError has a text of its own: those of what it wraps would show a key, or say less.
type textError struct {
	text  string
	errs  []error
	since time.Time // of a wait that ended

	endedBeforeRun bool // the task was not run, and its ctx ended while it asked for its key
}

func (e *textError) Error() string   { return e.text }
func (e *textError) Unwrap() []error { return e.errs }

func withText(text string, errs ...error) error { return &textError{text: text, errs: errs} }

func endedBeforeRun(err error) bool {
	e, ok := errors.AsType[*textError](err)
	return ok && e.endedBeforeRun
}

// redact is the text of one of core's errors without the key.
func redact(err error, key string) string {
	return strings.ReplaceAll(err.Error(), strconv.Quote(key), "the key")
}

// lost is the failure of a task that lost its lease while it ran.
func lost(err, result error, key string) error {
	text := "asynqlock: the lease was lost while the task ran: its outcome is unknown"
	if result != nil {
		text += ": " + redact(result, key)
	}
	return withText(text, errors.Join(result, err))
}

// tooOld ends the wait of a task.
func tooOld(d *deferredError, maxAge time.Duration) error {
	text := fmt.Sprintf("asynqlock: %v: it has waited since %s, longer than %s: %s", ErrTooOld, d.since.UTC().Format(waitTime), maxAge, d.why)
	return &textError{text: text, errs: []error{ErrTooOld, d.cause, asynq.SkipRetry}, since: d.since}
}

// outOfTime ends a task that stayed in its worker for as long as its ctx lasts.
func outOfTime(ctx context.Context, d *deferredError) error {
	cause := context.Cause(ctx)
	return withText(fmt.Sprintf("asynqlock: not run: %s: no retry is left, it could not be cloned, and its time ran out: %v: %v",
		d.why, cause, d.trouble), d.cause, d.trouble, cause)
}
