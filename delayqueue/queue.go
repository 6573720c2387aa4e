package delayqueue

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

// Queue stores jobs in Redis until a [Worker] runs them. It is safe for concurrent use, has goroutines only while calls
// are in progress, or while it checks for [WarnNoWorker], and needs no closing.
//
// The zero Queue is not useful: use [New].
type Queue struct {
	settings
	rdb       redis.UniversalClient
	store     *store.Store
	manifests *manifests
	reports   *reporter
	waits     *waits
	freed     *atomic.Pointer[func(key string)] // tells a Worker of this process that a key may be free; nil: there is none
}

// New makes a Queue on rdb, which stays the caller's to close. All Queues with one name and prefix
// are one queue, whatever process they are in. The name is 1 to 64 letters, digits, dots,
// underscores and hyphens. New does not talk to Redis. Its error wraps [core.ErrInvalidOption].
//
// What the processes of a queue must agree on is in its manifest in Redis, which the first of them writes: the layout,
// the service, the number of partitions, and whether it is encrypted. Each process reads it at its first use of the
// queue, and every minute. A process that must not use the queue gets [ErrOtherLayout], [ErrOtherService] or
// [ErrOtherEncryption] until that is corrected; its Workers claim nothing, and log why.
func New(rdb redis.UniversalClient, name string, opts ...Option) (*Queue, error) {
	if nilcheck.IsNil(rdb) {
		return nil, invalidOption("New: the redis client is nil")
	}
	if !validName(name) {
		return nil, invalidOption("New: name %q: want 1 to %d of A-Z a-z 0-9 . _ -", name, maxNameLen)
	}
	q := &Queue{
		settings: settings{
			name:              name,
			prefix:            ident.DefaultPrefix,
			maxAge:            15 * time.Minute,
			maxPayload:        1<<20 + 64<<10,
			maxResult:         64<<10 + 4<<10,
			maxDepth:          depthOf(rdb),
			maxDepthPerKey:    1000,
			maxAttempts:       5,
			retention:         time.Hour,
			deadRetention:     7 * 24 * time.Hour,
			reservationWindow: time.Minute,
			observer:          DefaultObserver(),
			countMost:         countMost,
		},
		rdb:   rdb,
		waits: &waits{},
		freed: &atomic.Pointer[func(key string)]{},
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalidOption("New: an option is nil")
		}
		if err := opt(&q.settings); err != nil {
			return nil, err
		}
	}
	if err := boundBytes(&q.settings); err != nil {
		return nil, err
	}
	q.reports = newReporter(name, q.observer)
	q.manifests = &manifests{settings: &q.settings, reader: make(chan struct{}, 1), size: q.split}
	q.store = newStore(rdb, q.manifests, q.reports)
	q.manifests.store, q.manifests.partitions = q.store, q.store.Partitions(cmp.Or(q.split, splitOf(rdb)))
	return q, nil
}

func newStore(rdb redis.UniversalClient, q *manifests, r *reporter) *store.Store {
	return store.New(store.Settings{
		Client: rdb, Prefix: q.prefix, Name: q.name, Retention: q.retention, DeadRetention: q.deadRetention,
		MaxDepth: q.maxDepth, MaxDepthPerKey: q.maxDepthPerKey,
		MaxBytes: q.maxBytes, MaxBytesPerKey: q.maxBytesPerKey, MaxBytesPerPrincipal: q.maxBytesPerPrincipal,
		Begin: func(ctx context.Context) error {
			m, err := q.reread(ctx, "enqueue")
			if err != nil {
				return err
			}
			return q.lacksKeys("enqueue", m)
		},
		Idle: r.noteClaim, Forgotten: r.noteForgotten, SetBack: r.noteSetBack,
	})
}

// pollFloor is the longest time between two claims of an idle worker, in case a message is lost. It also claims three times in a claim
// lease, so that it knows every claim before that ends.
const pollFloor = 10 * time.Second

// Name returns the queue's name, as its tickets have it.
func (q *Queue) Name() string { return q.name }

// Receipt is the result of [Queue.Enqueue].
type Receipt struct {
	// Ticket is the message's.
	core.Ticket
	// Stored: this call stored the job. It is true for at most one call with an ID, for as long
	// as the ID is remembered. False: a job with this ID was stored before, and the ticket is
	// that job's; or this call stored it, but the first reply was lost, and it was sent again.
	Stored bool

	over  bool // it is the ticket of a message that has ended, or is too old to be started
	rests bool // perhaps it could not run now, even if its key were free
}

// Enqueue stores a job, and blocks for one round trip; for three if it is the first of its partition. Once it has
// returned nil the message is run at least once, becomes a dead letter, expires, is cancelled or is superseded. A job
// whose ID is remembered is not stored again, and that is not an error: see [Receipt].Stored.
//
// If the queue is full the error is [ErrKeyFull], [ErrPrincipalFull] or [ErrQueueFull]. After an
// error that wraps [core.ErrUnavailable], or ctx's own, it is not known whether the job was stored:
// enqueue it again with the same ID to make sure that it is stored, once.
func (q *Queue) Enqueue(ctx context.Context, job Job) (Receipt, error) {
	began := time.Now()
	if job.fresh = job.ID == ""; job.fresh {
		job.ID = ident.Random(16)
	}
	ctx, job.Trace = q.reports.enqueuing(ctx, job)
	receipt, err := q.enqueue(ctx, job)
	receipt = Receipt{Ticket: receipt.Ticket, Stored: receipt.Stored || job.fresh && err == nil} // nobody else has the id
	q.reports.enqueued(ctx, job, receipt, err, began)
	return receipt, err
}

func (q *Queue) enqueue(ctx context.Context, job Job) (Receipt, error) {
	if job.MaxAge == 0 {
		job.MaxAge = q.maxAge
	}
	if err := job.validate(q.maxPayload); err != nil {
		return Receipt{}, err
	}
	if left := job.MaxAge - job.Delay; job.Delay > 0 && left < min(pollFloor, job.MaxAge/10) { // a busy Worker may be as late
		q.reports.delayTold.Do(func() {
			slog.Warn("delayqueue: a job's Delay is just below its MaxAge, so it may expire before a worker is free to run it: raise its MaxAge",
				slog.String("queue", q.name), slog.String("name", job.Name), slog.Duration("delay", job.Delay), slog.Duration("max_age", job.MaxAge))
		})
	}
	if ctx.Err() != nil {
		return Receipt{}, store.CallerGone(ctx, "enqueue")
	}
	payload, err := q.sealer.seal(kindPayload, sealedOf{job.ID, job.Key, job.Name, job.Principal}, withTrace(job.Trace, job.Payload))
	if err != nil {
		return Receipt{}, err
	}
	m, err := q.manifests.agreed(ctx, "enqueue")
	if err == nil {
		err = q.manifests.lacksKeys("enqueue", m)
	}
	if err != nil {
		return Receipt{}, err
	}
	j := job.stored()
	j.Payload, j.Kept = payload, q.sealer.seals()
	stored, err := m.of(job.Key, job.ID).Enqueue(ctx, j)
	switch full := fullErrors[stored.Full]; {
	case err != nil:
		return Receipt{}, err
	case stored.Full == store.KeyFull:
		return Receipt{}, fmt.Errorf("delayqueue: enqueue in %q for key %q: %w: %s", q.name, job.Key, full, fullBecause(&q.settings, full))
	case full != nil:
		return Receipt{}, fmt.Errorf("delayqueue: enqueue in %q: %w: %s", q.name, full, fullBecause(&q.settings, full))
	}
	return Receipt{core.Ticket{ID: job.ID, Queue: q.name, ExpiresAt: stored.Expires}, stored.Now, stored.Over, stored.Rests || !stored.Now}, nil
}

// Cancel ends a queued message as cancelled, before it is run. To cancel it twice is not an error. The error is
// [ErrRunning] for a message that runs, [ErrEnded] for one that has ended in another way, and [ErrNotFound] for one
// that is not known. It blocks for two round trips, three with a long payload.
func (q *Queue) Cancel(ctx context.Context, id string) error {
	if checkID(id) != nil {
		return fmt.Errorf("delayqueue: cancel: %w", ErrNotFound)
	}
	s, p, err := q.find(ctx, "cancel", id)
	for ; err == nil; s, p, err = q.find(ctx, "cancel", id) {
		switch s.State {
		case store.Cancelled:
			return nil
		case store.Running:
			return fmt.Errorf("delayqueue: cancel of message %q in queue %q: %w", id, q.name, ErrRunning)
		case store.Queued:
			cancelled, err := p.Cancel(ctx, id)
			if err != nil || cancelled[0] {
				return err
			}
		default:
			return fmt.Errorf("delayqueue: cancel of message %q in queue %q: %w: it is %s", id, q.name, ErrEnded, states[s.State])
		}
	}
	return err
}

// wake reports whether a message of a key runs, or could run now: if so the key stays reserved. If the key is free, a message
// that waits for that is due.
func (q *Queue) wake(ctx context.Context, key string, free bool) (left bool, err error) {
	m, err := q.manifests.agreed(ctx, "look at a key")
	if err != nil {
		return false, err
	}
	found, err := m.of(key, "").Wake(ctx, []string{key}, free)
	return err == nil && found[0] != store.WakeNone && found[0] != store.WakeHalt, err
}

// wakeChannel is the channel on which the scripts publish what workers may claim.
func wakeChannel(q *settings) string { return fmt.Sprintf("%s:queue:{%s}:wake", q.prefix, q.name) }

// endedChannel is the channel on which the scripts publish the messages that have ended, while a call waits for one.
func endedChannel(q *settings) string { return fmt.Sprintf("%s:queue:{%s}:ended", q.prefix, q.name) }
