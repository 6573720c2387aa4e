package main

import (
	"context"
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

// lock is an implementation that is measured: it acquires key for the target's lease, and waits until it is free. With
// an error there is no lease. It is safe for concurrent use. Locks of several implementations do not share a key.
type lock func(ctx context.Context, key string) (lease, error)

// lease is a key that was acquired.
type lease interface {
	Release(ctx context.Context) error
}

type releaseFunc func(ctx context.Context) error

func (f releaseFunc) Release(ctx context.Context) error { return f(ctx) }

// Target is what a lock or a queue is opened for.
type Target struct {
	Name    string // of the lock, where a process is to open it, or of the implementation of a queue
	Addr    string
	Workers int           // goroutines that call a lock at once
	Lease   time.Duration // of a key, or of a queue's claim
	Queue   string        // its name
}

const leaseTime = 15 * time.Second // unless the scenario says otherwise

// client is a go-redis client as a service makes it. What is opened for a scenario is closed when that ends.
func (b *bench) client(addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	b.cleanup(rdb.Close)
	return rdb
}

// locks by the names of their rows.
var locks = map[string]func(*bench, Target) lock{
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

// openLock opens a lock with clients of its own.
func (b *bench) openLock(name string, workers int) lock {
	return locks[name](b, Target{Addr: b.server.addr, Workers: workers, Lease: leaseTime})
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
		return fmt.Errorf("%w: %d holders of %q at once", errBroken, n, s.key)
	}
	s.inside.Add(-1)
	return nil
}

// pass acquires the key, visits, and releases it.
func (s *section) pass(ctx context.Context, l lock) error {
	h, err := l(ctx, s.key)
	if err == nil {
		err = s.visit()
	}
	if err != nil {
		return err
	}
	return h.Release(ctx)
}

// pairs is a row of a lock whose workers have a key each, which they acquire and release.
func pairs(name string, l lock, workers int) *row {
	sections := newSections(workers, name+":pair")
	return &row{name: name, op: func(ctx context.Context, worker int) error { return sections[worker].pass(ctx, l) }}
}

// openPerkey is perkey with a client of its own.
func (b *bench) openPerkey(opts ...core.Option) *core.Locker {
	return b.locker(b.client(b.server.addr), leaseTime, opts...)
}

func (b *bench) locker(rdb *redis.Client, lease time.Duration, opts ...core.Option) *core.Locker {
	l := must(core.New(rdb, append(opts, core.WithTTL(lease))...))
	b.cleanup(l.Close)
	return l
}

func newPerkey(b *bench, t Target) lock { return acquire(b.locker(b.client(t.Addr), t.Lease)) }

func acquire(l *core.Locker) lock {
	return func(ctx context.Context, key string) (lease, error) { return l.Acquire(ctx, key) }
}

// newRedislock is bsm/redislock. It retries at the pace that its own strategy for
// steady retries is given, here that of raw; without a strategy it does not wait.
func newRedislock(b *bench, t Target) lock {
	client, wait := redislock.New(b.client(t.Addr)), &redislock.Options{RetryStrategy: redislock.LinearBackoff(pollEvery)}
	return func(ctx context.Context, key string) (lease, error) {
		return client.Obtain(ctx, key, t.Lease, wait)
	}
}

// newRedsync is go-redsync/redsync on one Redis. It keeps its delay of 50 to 250 ms
// between tries, and its tries, 32 unless told otherwise, do not run out.
func newRedsync(b *bench, t Target) lock {
	rs := redsync.New(goredis.NewPool(b.client(t.Addr)))
	return func(ctx context.Context, key string) (lease, error) {
		m := rs.NewMutex(key, redsync.WithExpiry(t.Lease), redsync.WithTries(math.MaxInt32))
		unlock := func(ctx context.Context) error {
			_, err := m.UnlockContext(ctx) // false comes with an error
			return err
		}
		return releaseFunc(unlock), m.LockContext(ctx)
	}
}

// newRueidislock hears of releases by client-side caching. NOLOOP is on, as its README advises.
// Its default is a majority of 2 of 3 keys; for a single Redis the README advises 1. A try gets a second
// in place of 20 ms: on a busy machine a call whose try took longer was seen to wait for good.
func newRueidislock(majority int32) func(*bench, Target) lock {
	return func(b *bench, t Target) lock {
		l := must(rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{t.Addr}}, KeyValidity: t.Lease, KeyMajority: majority,
			TryNextAfter: time.Second, NoLoopTracking: true,
		}))
		b.cleanup(func() error { l.Close(); return nil })
		return func(ctx context.Context, key string) (lease, error) {
			_, cancel, err := l.WithContext(ctx, key)
			release := func(context.Context) error {
				cancel() // waits until its keys were deleted
				return nil
			}
			return releaseFunc(release), err
		}
	}
}
