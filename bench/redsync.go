package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncs is go-redsync/redsync on one Redis. It keeps its delay of 50 to 250 ms
// between tries, and its tries, 32 unless told otherwise, do not run out.
type redsyncs struct {
	rdb   *redis.Client
	rs    *redsync.Redsync
	lease time.Duration
}

func newRedsync(t target) (contestant, error) {
	rdb := t.client()
	return &redsyncs{rdb, redsync.New(goredis.NewPool(rdb)), t.lease}, nil
}

func (r *redsyncs) Close() error { return r.rdb.Close() }

func (r *redsyncs) Acquire(ctx context.Context, key string) (held, error) {
	m := r.rs.NewMutex("redsync:"+key, redsync.WithExpiry(r.lease), redsync.WithTries(math.MaxInt32))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncHeld{m}, nil
}

type redsyncHeld struct{ m *redsync.Mutex }

func (h redsyncHeld) Release(ctx context.Context) error {
	if ok, err := h.m.UnlockContext(ctx); !ok {
		return errors.Join(errors.New("redsync: not unlocked"), err)
	}
	return nil
}
