package main

import (
	"context"
	"fmt"
	"sync/atomic"
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
