package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/perkey-go/perkey/core"
)

// lock is an implementation that is measured. It is safe for concurrent use.
type lock interface {
	// Acquire takes key for the target's lease, and waits until it is free. With an error there is no lease.
	Acquire(ctx context.Context, key string) (lease, error)
	// Close frees what the lock has open, its clients too.
	Close() error
}

// lease is a key that was acquired.
type lease interface {
	Release(ctx context.Context) error
}

// target is what a lock or a queue is opened for.
type target struct {
	Addr    string
	Workers int // goroutines that call it at once
	Lease   time.Duration
}

const leaseTime = 15 * time.Second // unless the scenario says otherwise

// client is a go-redis client as a service makes it.
func (t target) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: t.Addr}) }

// locks by the names of their rows.
var locks = map[string]func(target) (lock, error){
	"raw":              newRaw,
	"raw+renewal":      newRenewed,
	"group":            newGroup,
	"token":            newToken,
	"cohort":           newCohort,
	"message":          newMessage("taketurn", "tellnext"),
	"message+fence":    newMessage("takefenced", "tellfenced"),
	"redislock":        newRedislock,
	"redsync":          newRedsync,
	"rueidislock":      newRueidislock(2),
	"rueidislock-1key": newRueidislock(1),
	"perkey":           newPerkey,
}

// peers are neither floors nor perkey.
var peers = []string{"redislock", "redsync", "rueidislock", "rueidislock-1key"}

// openLock opens a lock with clients of its own until the scenario ends.
func (b *bench) openLock(name string, workers int) lock {
	l := must(locks[name](target{b.server.addr, workers, leaseTime}))
	b.cleanup(func() { _ = l.Close() })
	return l
}

// section is what a key guards. It counts who is inside: what a lock is for is checked while it is measured.
type section struct {
	key    string
	inside atomic.Int32
}

func newSections(n int, prefix string) []section {
	all := make([]section, n)
	for i := range all {
		all[i].key = fmt.Sprintf("%s:%d", prefix, i)
	}
	return all
}

// visit enters and leaves. Its caller holds the key.
func (s *section) visit() error {
	if n := s.inside.Add(1); n != 1 {
		return fmt.Errorf("%d holders of %q at once", n, s.key)
	}
	s.inside.Add(-1)
	return nil
}

// pass acquires the key, visits, and releases it.
func (s *section) pass(ctx context.Context, l lock) error {
	h, err := l.Acquire(ctx, s.key)
	if err != nil {
		return err
	}
	if err := s.visit(); err != nil {
		return err
	}
	return h.Release(ctx)
}

// pairs is a row of a lock whose workers have a key each, which they acquire and release.
func pairs(name string, l lock, workers int) *row {
	sections := newSections(workers, "pair")
	return &row{name: name, op: func(ctx context.Context, worker int) error { return sections[worker].pass(ctx, l) }}
}

// lockFunc is a lock of two functions.
type lockFunc struct {
	close   func() error
	acquire func(ctx context.Context, key string) (lease, error)
}

func (f lockFunc) Close() error                                           { return f.close() }
func (f lockFunc) Acquire(ctx context.Context, key string) (lease, error) { return f.acquire(ctx, key) }

// perkeyLock closes its client after itself.
type perkeyLock struct {
	*core.Locker
	rdb *redis.Client
}

func newPerkey(t target) (lock, error) { return openPerkey(t) }

func openPerkey(t target, opts ...core.Option) (perkeyLock, error) {
	rdb := t.client()
	l, err := core.New(rdb, append(opts, core.WithTTL(t.Lease))...)
	return perkeyLock{l, rdb}, err
}

func (p perkeyLock) Close() error { return errors.Join(p.Locker.Close(), p.rdb.Close()) }

func (p perkeyLock) Acquire(ctx context.Context, key string) (lease, error) {
	return p.Locker.Acquire(ctx, key)
}

// redislock is bsm/redislock. It retries at the pace that its own strategy for
// steady retries is given, here that of raw; without a strategy it does not wait.
func newRedislock(t target) (lock, error) {
	rdb := t.client()
	client, wait := redislock.New(rdb), &redislock.Options{RetryStrategy: redislock.LinearBackoff(pollEvery)}
	return lockFunc{rdb.Close, func(ctx context.Context, key string) (lease, error) {
		return client.Obtain(ctx, "redislock:"+key, t.Lease, wait)
	}}, nil
}

// redsync is go-redsync/redsync on one Redis. It keeps its delay of 50 to 250 ms
// between tries, and its tries, 32 unless told otherwise, do not run out.
func newRedsync(t target) (lock, error) {
	rdb := t.client()
	rs := redsync.New(goredis.NewPool(rdb))
	return lockFunc{rdb.Close, func(ctx context.Context, key string) (lease, error) {
		m := rs.NewMutex("redsync:"+key, redsync.WithExpiry(t.Lease), redsync.WithTries(math.MaxInt32))
		return redsyncLease{m}, m.LockContext(ctx)
	}}, nil
}

type redsyncLease struct{ *redsync.Mutex }

func (m redsyncLease) Release(ctx context.Context) error {
	if ok, err := m.UnlockContext(ctx); !ok {
		return errors.Join(errors.New("redsync: not unlocked"), err)
	}
	return nil
}

// rueidislock hears of releases by client-side caching.
// NOLOOP is on, as its README advises for Redis from 7.0.5 on. Its default is a majority
// of 2 of 3 keys; for a single Redis the README advises 1.
//
// A try gets a second in place of 20 ms: on a busy machine a call whose try took
// longer was seen to wait for good while its key was free.
func newRueidislock(majority int32) func(target) (lock, error) {
	return func(t target) (lock, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{t.Addr}}, KeyValidity: t.Lease, KeyMajority: majority,
			TryNextAfter: time.Second, NoLoopTracking: true,
		})
		if err != nil {
			return nil, err
		}
		closeIt := func() error { l.Close(); return nil }
		return lockFunc{closeIt, func(ctx context.Context, key string) (lease, error) {
			_, cancel, err := l.WithContext(ctx, key)
			return rueidisLease(cancel), err
		}}, nil
	}
}

// rueidisLease releases, and waits until its keys were deleted.
type rueidisLease context.CancelFunc

func (h rueidisLease) Release(context.Context) error {
	h()
	return nil
}
