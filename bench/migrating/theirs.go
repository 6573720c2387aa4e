package migrating

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
)

var errBusy = errors.New("somebody else works on this order")

func (s *shop) chargeWithRedsync(ctx context.Context, order string) error {
	mutex := s.redsync.NewMutex("order:"+order, redsync.WithExpiry(15*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer func() { _, _ = mutex.UnlockContext(context.WithoutCancel(ctx)) }()
	return s.charge(ctx, order)
}

func (s *shop) shipWithRedislock(ctx context.Context, order string) error {
	lock, err := s.redislock.Obtain(ctx, "order:"+order, 15*time.Second, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(100*time.Millisecond), 20),
	})
	if errors.Is(err, redislock.ErrNotObtained) {
		return errBusy
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release(context.WithoutCancel(ctx)) }()
	return s.ship(ctx, order)
}

func (s *shop) refundWithSetNX(ctx context.Context, order string) error {
	taken, err := s.rdb.SetNX(ctx, "order:"+order, "1", 15*time.Second).Result()
	if err != nil {
		return err
	}
	if !taken {
		return errBusy
	}
	defer s.rdb.Del(context.WithoutCancel(ctx), "order:"+order)
	return s.refund(ctx, order)
}
