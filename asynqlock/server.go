package asynqlock

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// server is what Configure has for the tasks of one asynq server.
type server struct {
	rdb       redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector
}

func newServer(rdb redis.UniversalClient) *server {
	return &server{
		rdb:       rdb,
		client:    asynq.NewClientFromRedisClient(rdb),
		inspector: asynq.NewInspectorFromRedisClient(rdb),
	}
}

// patience is how long a task on its last attempt stays in its handler while asynq's Redis
// has trouble: returned without its clone it is archived. It is shorter than asynq's lease of
// 30 s, and asynq can fetch no other task meanwhile.
const (
	patience    = 10 * time.Second
	betweenAsks = 250 * time.Millisecond
)

// postpone has a task that was not run come back later, or ends its wait.
func (s *server) postpone(ctx context.Context, m *middleware, r *refusal) error {
	d := &deferredError{refusal: *r, delay: m.delay(r.remaining)}
	start := time.Now()
	for {
		outcome, err := s.settle(ctx, m, d, start)
		if err == nil {
			return outcome
		}
		if !lastAttempt(ctx) {
			m.log().WarnContext(ctx, "asynqlock: the Redis that Configure was given does not say how long a task has been deferred: "+
				"its age counts from now; if this goes on the Redis is not that of the server's queues", "error", err)
			d.wait = wait{refusals: 1, since: start} // for all that is known
			return d
		}
		if time.Since(start) > patience || !sleep(ctx, betweenAsks) {
			return notCloned(d, err)
		}
	}
}

// settle finds out how long the task has waited, and clones it if it must be. The outcome is
// what its handler returns; err is that asynq's Redis could not be asked.
func (s *server) settle(ctx context.Context, m *middleware, d *deferredError, now time.Time) (outcome, err error) {
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	info, err := s.inspector.GetTaskInfo(queue, id)
	if errors.Is(err, asynq.ErrTaskNotFound) {
		return d, nil // deleted, or another copy has ended it
	}
	if err != nil {
		return nil, err
	}
	d.wait = waitOf(info, now)
	d.wait.refusals++
	left := m.maxAge - now.Sub(d.wait.since)
	if left <= 0 {
		return tooOld(d, m.maxAge), nil
	}
	d.delay = min(d.delay, max(left, m.minDelay)) // asked once more when its time is over
	if !lastAttempt(ctx) {
		return d, nil
	}
	if err := s.clone(ctx, info, d); err != nil {
		return nil, err
	}
	return d, nil
}

// sleep reports whether ctx did not end meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// lastAttempt reports whether asynq archives the task at any error: it does not ask
// IsFailure then.
func lastAttempt(ctx context.Context) bool {
	retried, _ := asynq.GetRetryCount(ctx)
	most, ok := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}
