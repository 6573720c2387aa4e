package migrating

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/locktest"
)

// bench is a shop, and what its work saw.
type bench struct {
	*shop
	redis  *locktest.Redis
	ran    int
	during func(context.Context)
}

func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{redis: locktest.New(t), during: func(context.Context) {}}
	s, err := newShop(b.redis.Client(), func(ctx context.Context, _ string) error {
		b.ran++
		b.during(ctx)
		return context.Cause(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.locker.Close() })
	b.shop = s
	return b
}

func (b *bench) want(t *testing.T, what string, got, want error, ran int) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, not %v", what, got, want)
	}
	if b.ran != ran {
		t.Errorf("%s: the work ran %d times, not %d", what, b.ran, ran)
	}
}

type work func(context.Context, string) error

func TestWorkRunsWhenTheOrderIsFreeAndNotWhenItIsBusy(t *testing.T) {
	b := setup(t)
	for name, do := range map[string]work{
		"charge": b.chargeWithPerkey, "ship": b.shipWithPerkey, "refund": b.refundWithPerkey, "both": b.chargeWithBoth,
		"redsync": b.chargeWithRedsync, "redislock": b.shipWithRedislock, "SET NX": b.refundWithSetNX,
	} {
		b.ran = 0
		b.want(t, name, do(t.Context(), "1"), nil, 1)
	}
	b.ran = 0
	b.redis.Hold(t, "order:1")
	b.want(t, "ship", b.shipWithPerkey(t.Context(), "1"), errBusy, 0)
	b.want(t, "refund", b.refundWithPerkey(t.Context(), "1"), errBusy, 0)
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	b.want(t, "charge", b.chargeWithPerkey(soon, "1"), context.DeadlineExceeded, 0)
}

func TestALostLeaseIsReported(t *testing.T) {
	b := setup(t)
	b.during = func(ctx context.Context) {
		b.redis.Steal(t, "order:1")()
		locktest.RequireLost(t, ctx)
	}
	for name, do := range map[string]work{"charge": b.chargeWithPerkey, "ship": b.shipWithPerkey, "refund": b.refundWithPerkey} {
		b.ran = 0
		b.want(t, name, do(t.Context(), "1"), core.ErrLeaseLost, 1)
	}
}

func TestLocksOfDifferentLibrariesDoNotExcludeEachOther(t *testing.T) {
	b := setup(t)
	b.during = func(ctx context.Context) {
		b.during = func(context.Context) {}
		b.want(t, "perkey beside redsync", b.refundWithPerkey(context.WithoutCancel(ctx), "1"), nil, 2)
	}
	b.want(t, "redsync", b.chargeWithRedsync(t.Context(), "1"), nil, 2)
}

func TestBothLocksExcludeReplicasThatHaveOnlyOne(t *testing.T) {
	b := setup(t)
	mutex := b.redsync.NewMutex("order:1", redsync.WithTries(1))
	if err := mutex.Lock(); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := b.chargeWithBoth(soon, "1"); err == nil {
		t.Error("both ran beside a replica that has the old lock")
	}
	b.redis.RequireFree(t, "order:1")
	if _, err := mutex.Unlock(); err != nil {
		t.Fatal(err)
	}
	release := b.redis.Hold(t, "order:1")
	soon, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	b.want(t, "both, beside a replica that has the new lock", b.chargeWithBoth(soon, "1"), context.DeadlineExceeded, 0)
	release()

	b.during = func(context.Context) {
		if err := mutex.TryLock(); err == nil {
			t.Error("a replica with the old lock runs beside both")
		}
		if _, err := b.redis.Locker(t).TryAcquire(t.Context(), "order:1"); !errors.Is(err, core.ErrConflict) {
			t.Errorf("a replica with the new lock beside both: %v", err)
		}
	}
	b.want(t, "both", b.chargeWithBoth(t.Context(), "1"), nil, 1)
}

// What the document says of the others.

func TestTheOthersDoNotRenewAndAreNotTold(t *testing.T) {
	b := setup(t)
	mutex := b.redsync.NewMutex("order:1")
	if err := mutex.Lock(); err != nil {
		t.Fatal(err)
	}
	lock, err := b.redislock.Obtain(t.Context(), "order:2", 8*time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.redis.FastForward(t, 9*time.Second)
	if _, err := mutex.Unlock(); !errors.Is(err, redsync.ErrLockAlreadyExpired) {
		t.Errorf("redsync: %v", err)
	}
	if err := lock.Release(t.Context()); !errors.Is(err, redislock.ErrLockNotHeld) {
		t.Errorf("redislock: %v", err)
	}
}

func TestRedsyncHidesWhyItFailed(t *testing.T) {
	b := setup(t)
	mutex := b.redsync.NewMutex("order:1")
	if err := mutex.Lock(); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := b.redsync.NewMutex("order:1").LockContext(soon)
	if !errors.Is(err, redsync.ErrFailed) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a ctx that ended: %v", err)
	}
	var taken *redsync.ErrTaken
	if err := b.redsync.NewMutex("order:1", redsync.WithTries(2), redsync.WithRetryDelay(1)).Lock(); !errors.As(err, &taken) {
		t.Errorf("out of tries: %v", err)
	}
	up := b.redis.Down(t)
	defer up()
	var away *redsync.RedisError
	if err := b.redsync.NewMutex("order:2", redsync.WithTries(1)).Lock(); !errors.As(err, &away) {
		t.Errorf("redis away: %v", err)
	}
}

func TestRedislockGivesACtxWithoutDeadlineTheTTL(t *testing.T) {
	b := setup(t)
	held, err := b.redislock.Obtain(t.Context(), "order:1", time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.redislock.Obtain(t.Context(), "order:1", time.Minute, nil); !errors.Is(err, redislock.ErrNotObtained) {
		t.Errorf("without a strategy: %v", err)
	}
	forever := &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)}
	if _, err := b.redislock.Obtain(context.Background(), "order:1", 50*time.Millisecond, forever); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after its TTL: %v", err)
	}
	spent := &redislock.Options{RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 1)}
	for range 2 {
		if _, err := b.redislock.Obtain(t.Context(), "order:1", time.Minute, spent); !errors.Is(err, redislock.ErrNotObtained) {
			t.Errorf("out of tries: %v", err)
		}
	}
	if spent.RetryStrategy.NextBackoff() != 0 {
		t.Error("a limited strategy starts anew")
	}
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestADelWithoutATokenTakesTheNextHoldersLock(t *testing.T) {
	b := setup(t)
	b.during = func(ctx context.Context) {
		b.redis.FastForward(t, 16*time.Second)
		if taken, err := b.rdb.SetNX(ctx, "order:1", "2", time.Minute).Result(); err != nil || !taken {
			t.Errorf("the next holder: %v %v", taken, err)
		}
	}
	b.want(t, "SET NX", b.refundWithSetNX(t.Context(), "1"), nil, 1)
	if n := b.rdb.Exists(t.Context(), "order:1").Val(); n != 0 {
		t.Error("the next holder's lock is still there")
	}
}
