package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// lock is an implementation that is measured. It is safe for concurrent use.
type lock interface {
	// Acquire takes key for the target's lease, and waits until it is free.
	Acquire(ctx context.Context, key string) (lease, error)
	// Close frees what the lock has open, its clients too.
	Close() error
}

// lease is a key that was acquired.
type lease interface {
	Release(ctx context.Context) error
}

// preparer is a lock that needs something in Redis before a key is first acquired, once for all processes.
type preparer interface {
	Prepare(ctx context.Context, key string) error
}

// target is what a lock or a queue is opened for.
type target struct {
	addr    string
	workers int // goroutines that call it at once
	lease   time.Duration
}

const leaseTime = 15 * time.Second // unless the scenario says otherwise

// client is a go-redis client as a service makes it.
func (t target) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: t.addr}) }

// locks in the order of the tables. A name is a row.
var locks = []struct {
	name string
	open func(target) (lock, error)
	peer bool // neither a floor nor perkey
}{
	{name: "raw", open: newRaw},
	{name: "raw+renewal", open: newRenewed},
	{name: "group", open: newGroup},
	{name: "token", open: newToken},
	{name: "cohort", open: newCohort},
	{name: "message", open: newMessage},
	{name: "message+fence", open: newMessageFence},
	{name: "redislock", open: newRedislock, peer: true},
	{name: "redsync", open: newRedsync, peer: true},
	{name: "rueidislock", open: newRueidislock(2), peer: true},
	{name: "rueidislock-1key", open: newRueidislock(1), peer: true},
	{name: "perkey", open: newPerkey},
	{name: "perkey-try", open: newPerkeyTry},
}

func openLock(name string, t target) (lock, error) {
	for _, l := range locks {
		if l.name == name {
			return l.open(t)
		}
	}
	return nil, fmt.Errorf("no lock is named %q", name)
}

func isPeer(name string) bool {
	for _, l := range locks {
		if l.name == name {
			return l.peer
		}
	}
	return false
}

// openLock opens a lock with clients of its own until the scenario ends.
func (b *bench) openLock(name string, workers int) lock {
	l := must(openLock(name, target{b.server.addr, workers, leaseTime}))
	b.cleanup(func() { _ = l.Close() })
	return l
}

// guarded is a key, with a count of who is inside: what a lock is for is checked while it is measured.
type guarded struct {
	key    string
	inside atomic.Int32
}

func newGuarded(n int, prefix string) []guarded {
	all := make([]guarded, n)
	for i := range all {
		all[i].key = fmt.Sprintf("%s:%d", prefix, i)
	}
	return all
}

// visit enters and leaves. Its caller holds the key.
func (g *guarded) visit() error {
	if n := g.inside.Add(1); n != 1 {
		return fmt.Errorf("%d holders of %q at once", n, g.key)
	}
	g.inside.Add(-1)
	return nil
}

// pair acquires the key, visits it, and releases it.
func pair(ctx context.Context, l lock, g *guarded) error {
	h, err := l.Acquire(ctx, g.key)
	if err != nil {
		return err
	}
	if err := g.visit(); err != nil {
		return err
	}
	return h.Release(ctx)
}

// pairs is an entry whose workers have a key each.
func pairs(name string, l lock, workers int) entry {
	keys := newGuarded(workers, "pair")
	return entry{name, func(ctx context.Context, worker int) error { return pair(ctx, l, &keys[worker]) }}
}
