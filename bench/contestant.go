package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// contestant is a lock to be measured. It is safe for concurrent use.
type contestant interface {
	// Name is its row in the tables.
	Name() string
	// Acquire takes key for some seconds at least, once, without waiting.
	Acquire(ctx context.Context, key string) (held, error)
	// Close frees what it holds, but for the client it was given.
	Close() error
}

// field is the contestants of one scenario, in the order of contestants.
type field []contestant

// openAll opens every contestant, each with a client of its own. The field is to be closed, also after an error.
func (b *bench) openAll() (field, error) {
	var all field
	for _, open := range contestants {
		c, err := b.open(open)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

func (f field) close() {
	for _, c := range f {
		_ = c.Close()
	}
}

func (b *bench) open(open func(redis.UniversalClient) (contestant, error)) (contestant, error) {
	rdb := b.client()
	c, err := open(rdb)
	if err != nil {
		_ = rdb.Close()
		return nil, err
	}
	return ownClient{c, rdb}, nil
}

// client is a go-redis client as a service makes it.
func (b *bench) client() *redis.Client { return redis.NewClient(&redis.Options{Addr: b.server.addr}) }

// ownClient closes the client after its contestant.
type ownClient struct {
	contestant
	rdb *redis.Client
}

func (c ownClient) Close() error { return errors.Join(c.contestant.Close(), c.rdb.Close()) }

// held is a key that was acquired.
type held interface {
	Release(ctx context.Context) error
}

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
