package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislocks is bsm/redislock. It retries at the pace that its own strategy for
// steady retries is given, here that of raw; without a strategy it does not wait.
type redislocks struct {
	rdb    *redis.Client
	client *redislock.Client
	lease  time.Duration
	wait   redislock.Options
}

func newRedislock(t target) (contestant, error) {
	rdb := t.client()
	return &redislocks{
		rdb: rdb, client: redislock.New(rdb), lease: t.lease,
		wait: redislock.Options{RetryStrategy: redislock.LinearBackoff(pollEvery)},
	}, nil
}

func (r *redislocks) Close() error { return r.rdb.Close() }

func (r *redislocks) Acquire(ctx context.Context, key string) (held, error) {
	lock, err := r.client.Obtain(ctx, "redislock:"+key, r.lease, &r.wait)
	if err != nil {
		return nil, err
	}
	return lock, nil
}
