package delayqueue

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/perkey-go/perkey/core"
)

// Job is a piece of work to be stored.
type Job struct {
	// ID names the work: of two jobs with one id and key the second is not stored, for
	// as long as the first is remembered, and gets the first one's ticket. An id is
	// not used again for another key. 1 to 128 printable ASCII bytes without spaces.
	// Empty: 128 random bits.
	ID string
	// Key is what the work must have for itself; see core.ValidateKey. Messages
	// of one key run one at a time, in the order of their arrival. Empty: no
	// lock, and no order.
	Key string
	// Name says what kind of work it is, such as a route or a task type. It may
	// be empty, and is at most 256 bytes long.
	Name string
	// Principal is on whose behalf the work is done, such as a user's id: for the
	// handler, and for who may see the message. It is an id, and never a credential.
	// It may be empty, and is at most 256 bytes of printable UTF-8.
	Principal string
	// Payload is the work itself. It may be empty.
	Payload []byte
	// Delay is how long the work must wait before it may start. It joins its key's FIFO when
	// that is over, and until then holds up nothing. Zero: none. It must be shorter than
	// MaxAge, in whole milliseconds.
	Delay time.Duration
	// MaxAge is how long after its arrival the work may be started; older, it
	// expires. Zero: the queue's. At most 366 days.
	MaxAge time.Duration
	// Coalesce has the job replace the queued one of the same Key, Name and Principal, if there is one that was
	// enqueued with Coalesce and that no handler was given yet: in its place in line, and due when that
	// was. The replaced one ends as StateSuperseded, with the new one's id in its Status. One
	// that runs, or waits for a retry, is never replaced: the job then comes after it. Needs a Key.
	Coalesce bool
	// Quiet has a job with Coalesce wait, as Delay does, until no other has replaced it for this long, at least
	// 1 ms, and for MaxDelay at most since the first of those came that it replaced. What has waited so long has its place
	// in line, and is postponed no more. Zero: no quiet period, and MaxDelay is zero too. MaxDelay must be shorter
	// than MaxAge, and Delay zero.
	Quiet, MaxDelay time.Duration
	// Trace is the W3C traceparent of the span that enqueues the job, such as
	// 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, for the span that runs it to link to. Empty: none, unless
	// the Queue's Observer has one (OnEnqueuing).
	Trace string

	parked bool // its key is held, and reserved for it
	fresh  bool // no other job has its id
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
	case ceilMilliseconds(j.Delay) >= ceilMilliseconds(j.MaxAge): // it would be too old when it is due
		return invalidJob("Delay %s is not shorter than MaxAge %s", j.Delay, j.MaxAge)
	case j.Coalesce && j.Key == "":
		return invalidJob("Coalesce needs a Key")
	case (j.Quiet != 0 || j.MaxDelay != 0) && (!j.Coalesce || j.Delay != 0):
		return invalidJob("Quiet and MaxDelay need Coalesce, and no Delay")
	case (j.Quiet != 0 || j.MaxDelay != 0) && checkQuiet(j.Quiet, j.MaxDelay, j.MaxAge) != "":
		return invalidJob("Quiet is %s and MaxDelay %s: %s", j.Quiet, j.MaxDelay, checkQuiet(j.Quiet, j.MaxDelay, j.MaxAge))
	case len(j.Payload) > maxPayload:
		return fmt.Errorf("delayqueue: enqueue: %w: %d bytes, at most %d are allowed", ErrPayloadTooLarge, len(j.Payload), maxPayload)
	}
	return nil
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

// Message is a stored Job, as its handler gets it.
type Message struct {
	ID, Key, Name, Principal string
	Payload                  []byte
	// Trace is the Job's, unless a Middleware gives the handler that of its span. It is empty in events of a message that has not come to its handler.
	Trace string
	// Attempt counts how often a handler was given the message, this time
	// included: 1 at first. What ended as RetryLater or HandBack does not count.
	Attempt int
	// Conflicts counts how often the message had its turn and met a held key.
	Conflicts int
	// Losses counts the attempts whose outcome is unknown: the worker died, lost its
	// claim or the key's lease, or was stopped before the handler was through. If it is not zero the work, or part of
	// it, may have been done before.
	Losses int
	// EnqueuedAt is when the queue took the message, and ExpiresAt when it
	// becomes too old to be started; both by the clock of Redis.
	EnqueuedAt, ExpiresAt time.Time

	queuedAfter bool   // others of its key came later, when it was claimed
	parked      bool   // until now it waited for nothing but its key
	handed      int    // how often it went back by HandBack or RetryLater
	size        int    // of its record and its payload in Redis
	coalesces   bool   // a newer job might have replaced it
	body        bool   // its payload is too long for its record
	seq         string // its place in its key's FIFO
	state       string // what Redis has of its attempts
	cause       string // of its last failed attempt, as it is stored
	due         string // since when it could be started, in ms of Redis; empty: not known
	damage      string // why it cannot be run: it is junk
}

func (m Message) sealedOf() sealedOf { return sealedOf{m.ID, m.Key, m.Name, m.Principal} }

// Handler does the work of a message. It is called on a goroutine of its own.
//
// Nil ends the message as done. An error that matches core.ErrConflict puts it
// back without spending an attempt: some other key that it needs was held.
// SkipRetry makes it a dead letter, HandBack leaves it to another Worker, and RetryLater tries it
// again until it is too old. Any other error, a panic, and runtime.Goexit are failed attempts.
//
// ctx works under the lease of the message's key. It ends when the lease is
// lost (core.ErrLeaseLost), the claim is lost (ErrClaimLost), or the Worker is
// stopped for good (ErrStopped): context.Cause tells which. The key and the
// Worker's Stop wait for the handler all the same.
type Handler func(ctx context.Context, m Message) error

// State is where a message is in its life.
type State string

// The states of a message. All but the first two are final.
const (
	// StateQueued: it waits for its time, its turn, its key, or a worker.
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
	// StateSuperseded: a newer job replaced it before it was started: see Job.Coalesce.
	StateSuperseded State = "superseded"
)

// Ended reports whether the message's life is over.
func (s State) Ended() bool { return s != StateQueued && s != StateRunning }

// Status is what the queue remembers of a message.
type Status struct {
	ID, Key, Name, Principal    string
	State                       State
	Attempts, Conflicts, Losses int
	EnqueuedAt, ExpiresAt       time.Time
	// Cause is why the last attempt failed, or why the message is dead. It may
	// hold a handler's error or stack: it is for operators, not for clients.
	Cause string
	// SupersededBy is the id of the job that replaced a superseded one. It may be superseded too.
	SupersededBy string
}
