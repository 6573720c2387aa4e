package asynqlock

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/nilcheck"
)

// NewServer returns an asynq server on rdb, prepared for tasks behind PerKey as by Configure; both
// use rdb, so they cannot be on different Redis servers. It does not change cfg. The caller closes
// rdb, after the server. The error wraps [core.ErrInvalidOption].
//
// An idle server finds a task that a release woke within Config.TaskCheckInterval, here 50 ms unless it is set.
func NewServer(rdb redis.UniversalClient, cfg asynq.Config) (*asynq.Server, error) {
	if err := Configure(&cfg, rdb); err != nil {
		return nil, err
	}
	return asynq.NewServerFromRedisClient(rdb, cfg), nil
}

// Configure prepares the Config of an asynq server for tasks behind PerKey, so that a refused key
// does not count as a failure. It is for servers that are not made by [NewServer], which calls it.
// Call it last, just before asynq.NewServer: it wraps the hooks that it finds in cfg; without a
// hook asynq's default stays in force.
//
//   - IsFailure: a deferred task's Retried stays as it is.
//   - RetryDelayFunc: a deferred task comes back after the delay of WithDelay.
//   - ErrorHandler: not called with deferred tasks, whose errors wrap ErrDeferred.
//   - BaseContext: gives the middleware what it needs to read and clone tasks.
//   - TaskCheckInterval and DelayedTaskCheckInterval, if they are 0: 50 ms and 1 s, in place of asynq's 1 s and 5 s. A
//     TaskCheckInterval above 250 ms is logged as a warning.
//
// rdb is a client of the Redis, database included, that holds the server's queues, which
// need not be that of the Locker; MakeRedisClient of an asynq.RedisConnOpt makes one. The
// caller closes it, after the server. A client of another Redis is detected at the first
// task, and logged as an error: see "Another Redis" in the package's documentation. The
// error wraps [core.ErrInvalidOption], and cfg is then as it was.
func Configure(cfg *asynq.Config, rdb redis.UniversalClient) error {
	if cfg == nil {
		return invalid("Configure: cfg is nil")
	}
	if nilcheck.IsNil(rdb) {
		return invalid("rdb is nil: want a client of the Redis that holds the server's queues")
	}
	cfg.IsFailure = isFailure(cfg.IsFailure)
	cfg.RetryDelayFunc = retryDelay(cfg.RetryDelayFunc)
	cfg.ErrorHandler = errorHandler(cfg.ErrorHandler)
	cfg.BaseContext = baseContext(cfg.BaseContext, newServer(rdb))
	checkOften(cfg)
	tellStrange()
	return nil
}

func isFailure(theirs func(error) bool) func(error) bool {
	return func(err error) bool {
		if _, deferred := isDeferred(err); deferred {
			return false
		}
		if theirs == nil {
			return err != nil
		}
		return theirs(err)
	}
}

func retryDelay(theirs asynq.RetryDelayFunc) asynq.RetryDelayFunc {
	if theirs == nil {
		theirs = asynq.DefaultRetryDelayFunc
	}
	return func(n int, err error, task *asynq.Task) time.Duration {
		if d, deferred := isDeferred(err); deferred {
			return d.delay
		}
		return theirs(n, err, task)
	}
}

func errorHandler(theirs asynq.ErrorHandler) asynq.ErrorHandler {
	if theirs == nil {
		return nil
	}
	return asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
		if _, deferred := isDeferred(err); !deferred {
			theirs.HandleError(ctx, task, err)
		}
	})
}

// serverKey is where a task's ctx has the server that Configure prepared.
type serverKey struct{}

func baseContext(theirs func() context.Context, s *server) func() context.Context {
	if theirs == nil {
		theirs = context.Background
	}
	return func() context.Context { return context.WithValue(theirs(), serverKey{}, s) }
}
