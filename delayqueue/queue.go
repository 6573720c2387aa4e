package delayqueue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ident"
)

// Queue stores jobs in Redis until a Worker runs them. It is safe for
// concurrent use, holds no goroutine, and needs no closing.
//
// The zero Queue is not useful: use New.
type Queue struct {
	rdb    redis.UniversalClient
	name   string
	prefix string
	base   string // what the names of its keys begin with

	maxAge         time.Duration
	maxPayload     int
	maxResult      int
	maxDepth       int
	maxDepthPerKey int
	maxAttempts    int
	retention      time.Duration
	deadRetention  time.Duration
}

// New makes a Queue on rdb, which stays the caller's to close. Queues of one
// name and prefix are one queue, whatever process they are in. The name is 1 to
// 64 letters, digits, dots, underscores and hyphens. New does not talk to Redis.
// Its error wraps core.ErrInvalidOption.
func New(rdb redis.UniversalClient, name string, opts ...Option) (*Queue, error) {
	if rdb == nil {
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
		maxAge:         15 * time.Minute,
		maxPayload:     1<<20 + 64<<10,
		maxResult:      defaultMaxResult,
		maxDepth:       100_000,
		maxDepthPerKey: 1000,
		maxAttempts:    5,
		retention:      time.Hour,
		deadRetention:  7 * 24 * time.Hour,
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalidOption("New: an option is nil")
		}
		if err := opt(q); err != nil {
			return nil, err
		}
	}
	// Redis Cluster hashes what is between the first braces: ours, since neither
	// prefix nor name can hold any.
	q.base = q.prefix + ":queue:{" + q.name + "}"
	return q, nil
}

// Name is the queue's name, as its tickets carry it.
func (q *Queue) Name() string { return q.name }

// Enqueue stores a job, and blocks for one round trip. Once it returned nil the
// message is run at least once, becomes a dead letter, or expires.
//
// A full queue is ErrKeyFull or ErrQueueFull. After any error that wraps
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
	if err := q.storePrincipal(ctx, job); err != nil {
		return core.Ticket{}, err
	}
	expires, err := q.enqueue(ctx, job)
	if err != nil {
		return core.Ticket{}, err
	}
	return core.Ticket{ID: job.ID, Queue: q.name, ExpiresAt: expires}, nil
}

// Status tells where a message is in its life. Ids that were never stored, or
// are remembered no more, are ErrNotFound.
func (q *Queue) Status(ctx context.Context, id string) (Status, error) {
	if checkID(id) != nil {
		return Status{}, fmt.Errorf("delayqueue: status: %w", ErrNotFound)
	}
	cmd := q.rdb.HMGet(ctx, q.recordName(id), statusFields...)
	if err := cmd.Err(); err != nil {
		if redis.HasErrorPrefix(err, "WRONGTYPE") { // a worker will make it a dead letter
			return Status{}, fmt.Errorf("delayqueue: status: %w", ErrNotFound)
		}
		return Status{}, redisError(ctx, "status", err)
	}
	r := readRecord(statusFields, cmd.Val())
	if r.text("state") == "" {
		return Status{}, fmt.Errorf("delayqueue: status: %w", ErrNotFound)
	}
	principal, err := q.principalOf(ctx, id)
	if err != nil {
		return Status{}, err
	}
	return Status{
		Principal: principal, ID: id, Name: r.text("name"), State: State(r.text("state")),
		Attempts: r.count("attempts"), Conflicts: r.count("conflicts"), Losses: r.count("losses"),
		EnqueuedAt: r.time("enqueued"), ExpiresAt: r.time("not_after"), Cause: r.text("cause"),
	}, nil
}

// maxDeadLetters bounds one call of DeadLetters.
const maxDeadLetters = 1000

// DeadLetters returns the newest dead letters, newest first, at most limit and
// at most 1000. What is not known of a letter, because its record was junk, is
// zero.
func (q *Queue) DeadLetters(ctx context.Context, limit int) ([]DeadLetter, error) {
	if limit < 1 {
		return nil, nil
	}
	ids, err := q.rdb.ZRevRange(ctx, q.base+":dead", 0, int64(min(limit, maxDeadLetters))-1).Result()
	if err != nil {
		return nil, redisError(ctx, "dead letters", err)
	}
	cmds := make([]*redis.SliceCmd, len(ids))
	pipe := q.rdb.Pipeline()
	for i, id := range ids {
		cmds[i] = pipe.HMGet(ctx, q.recordName(id), letterFields...)
	}
	if len(ids) > 0 {
		_, _ = pipe.Exec(ctx) // each command has its own error
	}
	letters := make([]DeadLetter, 0, len(ids))
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil {
			if redis.HasErrorPrefix(err, "WRONGTYPE") {
				continue
			}
			return nil, redisError(ctx, "dead letters", err)
		}
		r := readRecord(letterFields, cmd.Val())
		if State(r.text("state")) != StateDead {
			continue // its time was up
		}
		letters = append(letters, DeadLetter{
			Message: Message{
				ID: ids[i], Key: r.text("key"), Name: r.text("name"), Payload: []byte(r.text("payload")),
				Attempt: r.count("attempts"), Conflicts: r.count("conflicts"), Losses: r.count("losses"),
				EnqueuedAt: r.time("enqueued"), ExpiresAt: r.time("not_after"),
			},
			Cause: r.text("cause"), DiedAt: r.time("died"),
		})
	}
	return letters, nil
}

// Stats counts the queue's messages.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	pipe := q.rdb.Pipeline()
	open, running, dead := pipe.ZCard(ctx, q.base+":open"), pipe.ZCard(ctx, q.base+":running"), pipe.ZCard(ctx, q.base+":dead")
	if _, err := pipe.Exec(ctx); err != nil {
		return Stats{}, redisError(ctx, "stats", err)
	}
	return Stats{Queued: open.Val(), Running: running.Val(), Dead: dead.Val()}, nil
}

func (q *Queue) recordName(id string) string { return q.base + ":message:" + id }

func (q *Queue) wakeChannel() string { return q.base + ":wake" }
