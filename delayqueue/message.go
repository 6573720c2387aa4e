package delayqueue

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
)

const (
	maxIDLen        = 128 // of a job
	maxJobNameLen   = 256
	maxPrincipalLen = 256
	maxDuration     = 366 * 24 * time.Hour
)

// Job is a piece of work to be stored.
type Job struct {
	// ID names the work. Of two jobs with one id and key the second is not stored, for as long as the first is
	// remembered, and gets the ticket of the first. Do not use an id again for another key. 1 to 128 printable ASCII
	// bytes without spaces. Empty: 128 random bits.
	ID string
	// Key names what the work must have for itself; see core.ValidateKey. Messages of one key run one at a time, in the
	// order of their arrival. Empty: no lock, and no order.
	Key string
	// Name is the kind of work, such as a route or a task type. It may be empty, and is at most 256 bytes long.
	Name string
	// Principal identifies the user on whose behalf the work is done: for the handler, and to decide who may see the
	// message. It must never be a credential. It may be empty, and is at most 256 bytes of printable UTF-8.
	Principal string
	// Payload is the work itself. It may be empty.
	Payload []byte
	// Delay is how long the work must wait before it may start. It joins its key's FIFO when the delay is over, and
	// does not hold up other messages before. Zero: none. It must be shorter than MaxAge, in whole milliseconds.
	Delay time.Duration
	// MaxAge is how long after its arrival the work may be started; after that it
	// expires. Zero: the queue's; see [WithMaxAge]. At most 366 days.
	MaxAge time.Duration
	// Coalesce lets the job replace a queued job with the same Key, Name and Principal, if that was also
	// enqueued with Coalesce and was not given to a handler yet, or only to some whose error matched [core.ErrConflict]. The job takes its place in the FIFO, and its time.
	// The replaced job ends as StateSuperseded, with the new job's id in its Status. A job
	// that runs, or waits for a retry, is never replaced: the new job is queued after it. Needs a Key.
	Coalesce bool
	// QuietPeriod lets a job with Coalesce wait, as Delay does, until no other job has replaced it for this long: at least
	// 1 ms. MaxDelay bounds the wait, from the arrival of the first of the replaced jobs. After the wait the job has its place
	// in the FIFO, and is not postponed any more. Zero: no quiet period; then MaxDelay must be zero too. MaxDelay must be
	// shorter than MaxAge, and Delay zero.
	QuietPeriod, MaxDelay time.Duration
	// Trace is the W3C traceparent of the span that enqueues the job, such as
	// 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, for the span that runs it to link to. Empty: none, unless
	// [Observer].OnEnqueuing returns one.
	Trace string

	parked bool          // its key is held, and reserved for it
	wait   time.Duration // for its key, at most
	fresh  bool          // no other job has its id
}

// stored is the job as it is stored, but for its payload.
func (j Job) stored() store.Job {
	return store.Job{
		ID: j.ID, Key: j.Key, Name: j.Name, Principal: j.Principal, Delay: j.Delay + j.QuietPeriod, MostDelay: j.MaxDelay, MaxAge: j.MaxAge,
		Coalesces: j.Coalesce, Parked: j.parked, Wait: j.wait, Fresh: j.fresh,
	}
}

func (j Job) validate(maxPayload int) error {
	if err := checkID(j.ID); err != nil {
		return err
	}
	if j.Key != "" {
		if err := core.ValidateKey(j.Key); err != nil {
			return fmt.Errorf("delayqueue: enqueue: %w", err)
		}
	}
	switch {
	case len(j.Name) > maxJobNameLen:
		return invalidJob("Name is %d bytes long, at most %d are allowed", len(j.Name), maxJobNameLen)
	case len(j.Principal) > maxPrincipalLen:
		return invalidJob("Principal is %d bytes long, at most %d are allowed", len(j.Principal), maxPrincipalLen)
	case !utf8.ValidString(j.Principal) || strings.ContainsFunc(j.Principal, func(r rune) bool { return !unicode.IsPrint(r) }):
		return invalidJob("Principal is not printable UTF-8")
	case j.Trace != "" && !validTrace(j.Trace):
		return invalidJob("Trace is not a W3C traceparent")
	case j.Delay < 0:
		return invalidJob("Delay is negative: %s", j.Delay)
	case j.MaxAge < time.Millisecond || j.MaxAge > maxDuration:
		return invalidJob("MaxAge is %s: want %s to %s", j.MaxAge, time.Millisecond, maxDuration)
	case store.Milliseconds(j.Delay) >= store.Milliseconds(j.MaxAge): // it would be too old when it is due
		return invalidJob("Delay %s is not shorter than MaxAge %s", j.Delay, j.MaxAge)
	case j.Coalesce && j.Key == "":
		return invalidJob("Coalesce needs a Key")
	case (j.QuietPeriod != 0 || j.MaxDelay != 0) && (!j.Coalesce || j.Delay != 0):
		return invalidJob("QuietPeriod and MaxDelay need Coalesce, and no Delay")
	case (j.QuietPeriod != 0 || j.MaxDelay != 0) && checkQuiet(j.QuietPeriod, j.MaxDelay, j.MaxAge) != "":
		return invalidJob("QuietPeriod is %s and MaxDelay %s: %s", j.QuietPeriod, j.MaxDelay, checkQuiet(j.QuietPeriod, j.MaxDelay, j.MaxAge))
	case len(j.Payload) > maxPayload:
		return fmt.Errorf("delayqueue: enqueue: %w: %d bytes, at most %d are allowed", ErrPayloadTooLarge, len(j.Payload), maxPayload)
	}
	return nil
}

// checkQuiet returns what is wrong with a quiet period and its bound, or "".
func checkQuiet(quiet, maxDelay, maxAge time.Duration) string {
	switch {
	case quiet < time.Millisecond || quiet > maxDelay:
		return "want a quiet period of at least 1ms, and no longer than the longest delay"
	case store.Milliseconds(maxDelay) >= store.Milliseconds(maxAge): // it would be too old when it is due
		return "the longest delay is not shorter than the max age, " + maxAge.String()
	}
	return ""
}

func checkID(id string) error {
	if id == "" || len(id) > maxIDLen {
		return invalidJob("ID is %d bytes long: want 1 to %d", len(id), maxIDLen)
	}
	for i := range len(id) {
		if b := id[i]; b <= ' ' || b > '~' {
			return invalidJob("ID has byte 0x%02x at offset %d", b, i)
		}
	}
	return nil
}

func invalidJob(format string, args ...any) error {
	return fmt.Errorf("delayqueue: enqueue: %w: %s", ErrInvalidJob, fmt.Sprintf(format, args...))
}

// Message is a stored [Job], as its [Handler] gets it.
type Message struct {
	ID, Key, Name, Principal string
	Payload                  []byte
	// Trace is the Job's, unless a Middleware passes that of its own span to the handler. It is empty in the events of a message
	// that was not given to its handler.
	Trace string
	// Attempt counts how often the message was given to a handler, this time
	// included: 1 at first. Attempts that ended as [RetryLater] or [HandBack] do not count.
	Attempt int
	// Conflicts counts how often the message was to run and its key was held.
	Conflicts int
	// Losses counts the attempts whose outcome is unknown: the worker died, lost its claim or the key's lease, or was
	// stopped before the handler was through. If it is not zero the work, or part of it, may have been done before.
	Losses int
	// EnqueuedAt is when the queue took the message, and ExpiresAt when it
	// becomes too old to be started; both by the clock of Redis.
	EnqueuedAt, ExpiresAt time.Time
}

// messageOf is a claimed message as its Handler gets it, but for its Trace and its Payload.
func messageOf(m *store.Message) Message {
	return Message{
		ID: m.ID, Key: m.Key, Name: m.Name, Principal: m.Principal, Payload: m.Payload, Attempt: m.Attempts, Conflicts: m.Conflicts,
		Losses: m.Losses, EnqueuedAt: m.EnqueuedAt, ExpiresAt: m.ExpiresAt,
	}
}

// sealedOf is the message that something sealed belongs to.
type sealedOf struct{ id, key, name, principal string }

func (m Message) sealedOf() sealedOf { return sealedOf{m.ID, m.Key, m.Name, m.Principal} }

// Handler does the work of a message. It is called on a goroutine of its own.
//
// Nil ends the message as done. An error that matches core.ErrConflict puts it back without spending an attempt: some
// other key that it needs was held. [SkipRetry] makes it a dead letter, [HandBack] leaves it to another Worker, and
// [RetryLater] tries it again until it is too old. Any other error, a panic, and runtime.Goexit are failed attempts.
//
// ctx works under the lease of the message's key. It ends when the lease is lost (core.ErrLeaseLost), the claim is lost
// ([ErrClaimLost]), or the time of [Worker.Stop] is over ([ErrStopped]); context.Cause tells which. Even then the key
// and Stop wait for the handler to return.
type Handler func(ctx context.Context, m Message) error

// State is where a message is in its life.
type State string

// The states of a message. All but the first two are final.
const (
	// StateQueued: it waits for its time, for the messages before it, for its key, or for a worker.
	StateQueued State = "queued"
	// StateRunning: a worker has claimed it.
	StateRunning State = "running"
	// StateDone: its handler returned nil.
	StateDone State = "done"
	// StateDead: it is a dead letter, with a cause.
	StateDead State = "dead"
	// StateExpired: it became too old before it could be started, or started again.
	StateExpired State = "expired"
	// StateCancelled: it was cancelled before it was started, or started again.
	StateCancelled State = "cancelled"
	// StateSuperseded: a newer job replaced it before it was started; see [Job].Coalesce.
	StateSuperseded State = "superseded"
)

var states = [...]State{
	store.Queued: StateQueued, store.Running: StateRunning, store.Done: StateDone, store.Dead: StateDead, store.Expired: StateExpired,
	store.Cancelled: StateCancelled, store.Superseded: StateSuperseded,
}

// Ended reports whether the state is final.
func (s State) Ended() bool { return s != StateQueued && s != StateRunning }

// Status is what the queue stores about a message.
type Status struct {
	ID, Key, Name, Principal    string
	State                       State
	Attempts, Conflicts, Losses int
	EnqueuedAt, ExpiresAt       time.Time
	// Cause is why the last attempt failed, or why the message is dead. It may
	// contain a handler's error or stack: it is for operators, not for clients.
	Cause string
	// SupersededBy is the id of the job that replaced a superseded one. That may be superseded too.
	SupersededBy string
}
