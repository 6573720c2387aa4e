package delayqueue

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/absent"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/ident"
)

// Queue stores jobs in Redis until a Worker runs them. It is safe for
// concurrent use, has goroutines only while commands are under way, and needs no
// closing.
//
// The zero Queue is not useful: use New.
type Queue struct {
	rdb        redis.UniversalClient
	name       string
	prefix     string
	partitions []*partition

	maxAge         time.Duration
	maxPayload     int
	maxResult      int
	maxDepth       int
	maxDepthPerKey int
	maxAttempts    int
	// In bytes; 0: the default.
	maxBytes, maxBytesPerKey, maxBytesPerPrincipal int64
	halt                                           Halt
	retention                                      time.Duration
	deadRetention                                  time.Duration
	precedence                                     time.Duration
	split                                          int // into so many partitions
	sealer                                         *sealer
}

// New makes a Queue on rdb, which stays the caller's to close. Queues of one
// name, prefix and number of partitions are one queue, whatever process they are
// in. The name is 1 to 64 letters, digits, dots, underscores and hyphens. New does
// not talk to Redis. Its error wraps core.ErrInvalidOption.
func New(rdb redis.UniversalClient, name string, opts ...Option) (*Queue, error) {
	if absent.Is(rdb) {
		return nil, invalidOption("New: the redis client is nil")
	}
	if name == "" || len(name) > maxNameLen || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}) {
		return nil, invalidOption("New: name %q: want 1 to %d of A-Z a-z 0-9 . _ -", name, maxNameLen)
	}
	q := &Queue{
		rdb:            rdb,
		name:           name,
		prefix:         ident.DefaultPrefix,
		split:          1,
		maxAge:         15 * time.Minute,
		maxPayload:     1<<20 + 64<<10,
		maxResult:      64<<10 + 4<<10,
		maxDepth:       100_000,
		maxDepthPerKey: 1000,
		maxAttempts:    5,
		retention:      time.Hour,
		deadRetention:  7 * 24 * time.Hour,
		precedence:     time.Minute,
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalidOption("New: an option is nil")
		}
		if err := opt(q); err != nil {
			return nil, err
		}
	}
	if err := q.boundBytes(); err != nil {
		return nil, err
	}
	q.makePartitions()
	return q, nil
}

// Name is the queue's name, as its tickets carry it.
func (q *Queue) Name() string { return q.name }

// Enqueue stores a job, and blocks for one round trip. Once it returned nil the
// message is run at least once, becomes a dead letter, expires, or is cancelled.
//
// A full queue is ErrKeyFull, ErrPrincipalFull or ErrQueueFull. After any error that wraps
// core.ErrUnavailable, or ctx's own, it is not known whether the job was stored:
// enqueue it again under the same ID to make sure that it is, once.
func (q *Queue) Enqueue(ctx context.Context, job Job) (core.Ticket, error) {
	if job.ID == "" {
		job.ID = ident.Random(16)
	}
	if job.MaxAge == 0 {
		job.MaxAge = q.maxAge
	}
	if err := job.validate(q.maxPayload); err != nil {
		return core.Ticket{}, err
	}
	if ctx.Err() != nil {
		return core.Ticket{}, callerGone(ctx, "enqueue")
	}
	payload, err := q.sealer.seal(kindPayload, sealedOf{job.ID, job.Key, job.Name, job.Principal}, job.Payload)
	if err != nil {
		return core.Ticket{}, err
	}
	job.Payload = payload
	if q.sealer == nil {
		job.Payload = bytes.Clone(payload) // the caller may use it again before it was sent, if ctx ends
	}
	e := &enqueueing{ctx: ctx, job: job, done: make(chan struct{})}
	p := q.partitionOf(job.Key, job.ID)
	_ = p.enqueues.Add(e) // never closed
	select {
	case <-e.done:
	case <-ctx.Done():
		p.enqueues.Forget()
		return core.Ticket{}, callerGone(ctx, "enqueue")
	}
	if e.err != nil {
		return core.Ticket{}, e.err
	}
	return core.Ticket{ID: job.ID, Queue: q.name, ExpiresAt: e.expires}, nil
}

const minWait, maxWait = 5 * time.Millisecond, 500 * time.Millisecond // between two looks

// Wait returns the status of a message when it has ended. It asks for it again and
// again, each 500 ms at last. If ctx ends first its error is ctx's.
func (q *Queue) Wait(ctx context.Context, id string) (Status, error) {
	for try := 1; ; try++ {
		s, err := q.Status(ctx, id)
		if err != nil || s.State.Ended() {
			return s, err
		}
		timer := time.NewTimer(backoff.Spread(backoff.Exponential(try, minWait, maxWait)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return s, callerGone(ctx, fmt.Sprintf("wait for message %q, which is %s", id, s.State))
		}
	}
}

// Cancel keeps a message from being run that is queued: it ends as cancelled. To
// cancel it twice is no error. A message that runs is ErrRunning, one that has ended
// in another way ErrEnded, and one that is not known ErrNotFound. It blocks for two
// round trips.
func (q *Queue) Cancel(ctx context.Context, id string) error {
	if checkID(id) != nil {
		return fmt.Errorf("delayqueue: cancel: %w", ErrNotFound)
	}
	s, p, err := q.find(ctx, "cancel", id)
	for ; err == nil; s, p, err = q.find(ctx, "cancel", id) {
		switch s.State {
		case StateCancelled:
			return nil
		case StateRunning:
			return fmt.Errorf("delayqueue: cancel of message %q in queue %q: %w", id, q.name, ErrRunning)
		case StateQueued:
			cancelled, err := p.cancel(ctx, id)
			if err != nil || cancelled[0] {
				return err
			}
		default:
			return fmt.Errorf("delayqueue: cancel of message %q in queue %q: %w: it is %s", id, q.name, ErrEnded, s.State)
		}
	}
	return err
}

// mayRun reports whether a message of a key runs, or could run now: then the key stays reserved.
func (q *Queue) mayRun(ctx context.Context, key string) (bool, error) {
	found, err := q.partitionOf(key, "").wake(ctx, []string{key}, false)
	return err == nil && found[0] != wakeNone, err
}

func (q *Queue) wakeChannel() string { return fmt.Sprintf("%s:queue:{%s}:wake", q.prefix, q.name) }
