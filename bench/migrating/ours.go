// Package migrating is the code that docs/migrating.md shows: work under other locks,
// under perkey, and under both for the time of a rolling deploy.
package migrating

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/retry"
)

// shop has work to do on orders.
type shop struct {
	rdb       redis.UniversalClient
	redsync   *redsync.Redsync
	redislock *redislock.Client
	locker    *core.Locker
	patient   *core.Guard

	charge, ship, refund func(ctx context.Context, order string) error
}

func newShop(rdb redis.UniversalClient, work func(context.Context, string) error) (*shop, error) {
	locker, err := core.New(rdb, core.WithTTL(15*time.Second)) // one for each process
	if err != nil {
		return nil, err
	}
	patient := locker.Guard(retry.Policy{MaxWait: 2 * time.Second})
	return &shop{
		rdb: rdb, redsync: redsync.New(goredis.NewPool(rdb)), redislock: redislock.New(rdb),
		locker: locker, patient: patient,
		charge: work, ship: work, refund: work,
	}, patient.Err()
}

func (s *shop) chargeWithPerkey(ctx context.Context, order string) error {
	return s.locker.Do(ctx, "order:"+order, func(ctx context.Context) error {
		return s.charge(ctx, order)
	})
}

func (s *shop) shipWithPerkey(ctx context.Context, order string) error {
	err := s.patient.Do(ctx, core.Call{Key: "order:" + order}, func(ctx context.Context) error {
		return s.ship(ctx, order)
	})
	if errors.Is(err, core.ErrConflict) {
		return errBusy
	}
	return err
}

func (s *shop) refundWithPerkey(ctx context.Context, order string) (err error) {
	lease, err := s.locker.TryAcquire(ctx, "order:"+order)
	if errors.Is(err, core.ErrConflict) {
		return errBusy
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release(ctx)) }()
	return s.refund(lease.Context(), order)
}

// chargeWithBoth is what the release in between runs: perkey outside, the old lock inside.
func (s *shop) chargeWithBoth(ctx context.Context, order string) error {
	return s.locker.Do(ctx, "order:"+order, func(ctx context.Context) error {
		return s.chargeWithRedsync(ctx, order)
	})
}
