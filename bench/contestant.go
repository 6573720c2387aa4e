package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// contestant is a lock to be measured. It is safe for concurrent use.
type contestant interface {
	// Acquire takes key for the target's lease, and waits until it is free.
	Acquire(ctx context.Context, key string) (held, error)
	// Close frees what the contestant holds, its clients too.
	Close() error
}

// held is a key that was acquired.
type held interface {
	Release(ctx context.Context) error
}

// starter is a contestant that needs something in Redis before a key is first
// acquired, once for all processes.
type starter interface {
	Start(ctx context.Context, key string) error
}

// target is where a contestant is to work.
type target struct {
	addr    string
	workers int // goroutines that call it at once
	lease   time.Duration
}

const leaseTime = 15 * time.Second // of every contestant, unless the scenario says otherwise

// client is a go-redis client as a service makes it.
func (t target) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: t.addr}) }

// entrant is a contestant that is not open yet. Its name is its row in the tables.
type entrant struct {
	name string
	open func(target) (contestant, error)
	kind kind
}

type kind int

const (
	floor kind = iota
	peer
	ours
)

// entrants in the order of the tables.
var entrants = []entrant{
	{name: "raw", open: newRaw},
	{name: "raw+renewal", open: newRenewer},
	{name: "group", open: newGroup},
	{name: "token", open: newToken},
	{name: "cohort", open: newCohort},
	{name: "message", open: newTold},
	{name: "message+fence", open: newFenced},
	{name: "redislock", open: newRedislock, kind: peer},
	{name: "redsync", open: newRedsync, kind: peer},
	{name: "rueidislock", open: newRueidislock(2), kind: peer},
	{name: "rueidislock-1key", open: newRueidislock(1), kind: peer},
	{name: "perkey", open: newPerkey, kind: ours},
	{name: "perkey-try", open: newPerkeyTry, kind: ours},
}

// enter returns the entrants of those names.
func enter(names ...string) []entrant {
	list := make([]entrant, len(names))
	for i, name := range names {
		at := slices.IndexFunc(entrants, func(e entrant) bool { return e.name == name })
		if at < 0 {
			panic("bench: no contestant is named " + name)
		}
		list[i] = entrants[at]
	}
	return list
}

// isPeer tells peers from floors and from ourselves.
func isPeer(name string) bool {
	return slices.ContainsFunc(entrants, func(e entrant) bool { return e.name == name && e.kind == peer })
}

// field is the open contestants of one scenario.
type field []named

type named struct {
	contestant
	name string
}

// openAll opens contestants, each with a client of its own. The field is to be
// closed, also after an error.
func (b *bench) openAll(list []entrant, workers int) (field, error) {
	var all field
	for _, e := range list {
		c, err := e.open(target{addr: b.server.addr, workers: workers, lease: leaseTime})
		if err != nil {
			return all, fmt.Errorf("open %s: %w", e.name, err)
		}
		all = append(all, named{c, e.name})
	}
	return all, nil
}

func (f field) close() {
	for _, c := range f {
		_ = c.Close()
	}
}

// ownClient closes the client after its contestant.
type ownClient struct {
	contestant
	rdb *redis.Client
}

func (c ownClient) Close() error { return errors.Join(c.contestant.Close(), c.rdb.Close()) }

// slot is a key, with a count of who is inside: what a lock is for is checked
// while it is measured.
type slot struct {
	key    string
	inside atomic.Int32
}

func newSlots(n int, prefix string) []slot {
	slots := make([]slot, n)
	for i := range slots {
		slots[i].key = fmt.Sprintf("%s:%d", prefix, i)
	}
	return slots
}

// visit enters and leaves the slot. Its caller holds the key.
func (s *slot) visit() error {
	if n := s.inside.Add(1); n != 1 {
		return fmt.Errorf("%d holders of %q at once", n, s.key)
	}
	s.inside.Add(-1)
	return nil
}

// pair acquires the slot's key, visits it, and releases it.
func pair(ctx context.Context, c contestant, s *slot) error {
	h, err := c.Acquire(ctx, s.key)
	if err != nil {
		return err
	}
	if err := s.visit(); err != nil {
		return err
	}
	return h.Release(ctx)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
