package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/perkey-go/perkey/core"
)

// perkeyLock closes its client after itself.
type perkeyLock struct {
	*core.Locker
	rdb *redis.Client
}

func newPerkey(t target) (lock, error) { return openPerkey(t) }

func openPerkey(t target, opts ...core.Option) (perkeyLock, error) {
	rdb := t.client()
	l, err := core.New(rdb, append(opts, core.WithTTL(t.lease))...)
	if err != nil {
		err = errors.Join(err, rdb.Close())
	}
	return perkeyLock{l, rdb}, err
}

func (p perkeyLock) Close() error { return errors.Join(p.Locker.Close(), p.rdb.Close()) }

func (p perkeyLock) Acquire(ctx context.Context, key string) (lease, error) {
	h, err := p.Locker.Acquire(ctx, key)
	if err != nil {
		return nil, err // not a nil *Lease in an interface
	}
	return h, nil
}

// perkeyTry is perkey by the call that does not wait.
type perkeyTry struct{ perkeyLock }

func newPerkeyTry(t target) (lock, error) {
	p, err := openPerkey(t)
	return perkeyTry{p}, err
}

func (p perkeyTry) Acquire(ctx context.Context, key string) (lease, error) {
	h, err := p.TryAcquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// redislockLock is bsm/redislock. It retries at the pace that its own strategy for
// steady retries is given, here that of raw; without a strategy it does not wait.
type redislockLock struct {
	*redis.Client
	client *redislock.Client
	lease  time.Duration
	wait   redislock.Options
}

func newRedislock(t target) (lock, error) {
	rdb := t.client()
	wait := redislock.Options{RetryStrategy: redislock.LinearBackoff(pollEvery)}
	return &redislockLock{rdb, redislock.New(rdb), t.lease, wait}, nil
}

func (r *redislockLock) Acquire(ctx context.Context, key string) (lease, error) {
	h, err := r.client.Obtain(ctx, "redislock:"+key, r.lease, &r.wait)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// redsyncLock is go-redsync/redsync on one Redis. It keeps its delay of 50 to 250 ms
// between tries, and its tries, 32 unless told otherwise, do not run out.
type redsyncLock struct {
	*redis.Client
	rs    *redsync.Redsync
	lease time.Duration
}

func newRedsync(t target) (lock, error) {
	rdb := t.client()
	return &redsyncLock{rdb, redsync.New(goredis.NewPool(rdb)), t.lease}, nil
}

func (r *redsyncLock) Acquire(ctx context.Context, key string) (lease, error) {
	m := r.rs.NewMutex("redsync:"+key, redsync.WithExpiry(r.lease), redsync.WithTries(math.MaxInt32))
	return redsyncLease{m}, m.LockContext(ctx)
}

type redsyncLease struct{ m *redsync.Mutex }

func (h redsyncLease) Release(ctx context.Context) error {
	if ok, err := h.m.UnlockContext(ctx); !ok {
		return errors.Join(errors.New("redsync: not unlocked"), err)
	}
	return nil
}

// rueidisLock is rueidislock, which hears of releases by client-side caching.
// NOLOOP is on, as its README advises for Redis from 7.0.5 on. Its default is a majority
// of 2 of 3 keys; for a single Redis the README advises 1.
//
// A try gets a second in place of 20 ms: on a busy machine a call whose try took
// longer was seen to wait for good while its key was free.
type rueidisLock struct{ rueidislock.Locker }

func newRueidislock(majority int32) func(target) (lock, error) {
	return func(t target) (lock, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{t.addr}}, KeyValidity: t.lease, KeyMajority: majority,
			TryNextAfter: time.Second, NoLoopTracking: true,
		})
		return rueidisLock{l}, err
	}
}

func (r rueidisLock) Close() error {
	r.Locker.Close()
	return nil
}

func (r rueidisLock) Acquire(ctx context.Context, key string) (lease, error) {
	_, cancel, err := r.WithContext(ctx, key)
	return rueidisLease(cancel), err
}

// rueidisLease releases, and waits until its keys were deleted.
type rueidisLease context.CancelFunc

func (h rueidisLease) Release(context.Context) error {
	h()
	return nil
}
