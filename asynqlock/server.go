package asynqlock

import (
	"context"
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

// postpone has a task that was not run come back later, or ends its wait.
func (s *server) postpone(ctx context.Context, m *middleware, r *refusal) error {
	d := &deferredError{refusal: *r, delay: m.delay(r.remaining)}
	now := time.Now()
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	info, err := s.inspector.GetTaskInfo(queue, id)
	if err != nil {
		// Its age is not known now, and asynq's Redis, which would have to be told
		// of the end, is out of reach.
		d.wait = wait{refusals: 1, since: now}
		if lastAttempt(ctx) {
			return notCloned(d, err)
		}
		return d
	}
	d.wait = waitOf(info, now)
	d.wait.refusals++
	left := m.maxAge - now.Sub(d.wait.since)
	if left <= 0 {
		return tooOld(d, m.maxAge)
	}
	d.delay = min(d.delay, max(left, m.minDelay)) // asked once more when its time is over
	if !lastAttempt(ctx) {
		return d
	}
	if ctx.Err() != nil || info.State != asynq.TaskStateActive {
		return d // asynq has given this copy up, and does not look at what it returns
	}
	if err := s.clone(ctx, info, d); err != nil {
		return notCloned(d, err)
	}
	return d
}

// lastAttempt reports whether asynq archives the task at any error: it does not ask
// IsFailure then.
func lastAttempt(ctx context.Context) bool {
	retried, _ := asynq.GetRetryCount(ctx)
	most, ok := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}
