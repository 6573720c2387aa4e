package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core/internal/schedule"
)

// LeaseSet is the leases on several keys that one call of [Locker.AcquireAll] or
// [Locker.TryAcquireAll] took together. It is safe for concurrent use.
//
// A nil LeaseSet holds nothing, as a nil [Lease] does; a call that failed returns it. It has no
// keys, its Release does nothing and returns nil, and its Fence is 0. Extend returns an error that
// wraps [ErrLeaseLost], and its Context has ended with that cause.
//
// The zero LeaseSet is not useful: sets are made by a [Locker].
type LeaseSet struct {
	leases []*Lease // in order of their keys
	ctx    context.Context
}

// Context returns the ctx for work under the leases. It ends when one of the leases does, and when
// the ctx that was given to AcquireAll does. If a lease was lost its cause wraps [ErrLeaseLost],
// and it ends before Redis can give that key to anyone else. A call for one of the keys under it
// gets that lease at once. Its Done and Err check the clock for every lease; see [Lease.Context].
func (s *LeaseSet) Context() context.Context {
	if s == nil {
		return (*Lease)(nil).Context()
	}
	return s.ctx
}

// all returns the leases; none for a nil set.
func (s *LeaseSet) all() []*Lease {
	if s == nil {
		return nil
	}
	return s.leases
}

// Keys returns the keys, each once, sorted.
func (s *LeaseSet) Keys() []string {
	keys := make([]string, len(s.all()))
	for i, l := range s.all() {
		keys[i] = l.Key()
	}
	return keys
}

// Fence returns the fencing token of one of the keys, as [Lease.Fence] does; 0 for a key that is
// not in the set.
func (s *LeaseSet) Fence(key string) int64 {
	for _, l := range s.all() {
		if l.Key() == key {
			return l.Fence()
		}
	}
	return 0
}

// Extend makes at least d remain of each lease, as [Lease.Extend] does. The commands are sent
// together. The errors are joined: each that wraps [ErrLeaseLost] names a lease that is lost.
func (s *LeaseSet) Extend(ctx context.Context, d time.Duration) error {
	if s == nil {
		return (*Lease)(nil).Extend(ctx, d)
	}
	return errors.Join(each(s.leases, func(l *Lease) error { return l.Extend(ctx, d) })...)
}

// Release frees all keys, as [Lease.Release] does. The set's Context has ended when it returns. The
// commands are sent together, and the errors are joined. It may be called more than once.
func (s *LeaseSet) Release(ctx context.Context) error {
	if s == nil {
		return nil
	}
	now, was := time.Now(), make([]leaseState, len(s.leases))
	index := make(map[*Lease]int, len(s.leases))
	for i, l := range s.leases {
		index[l] = i
	}
	errs := each(s.leases, func(l *Lease) (err error) {
		was[index[l]], err = l.release(ctx, now, false, false)
		return err
	})
	for i, l := range s.leases { // the observer is told on the caller's goroutine
		errs[i] = l.released(was[i], errs[i], now)
	}
	return errors.Join(errs...)
}

// setContext is the ctx of work under a LeaseSet. It is derived from that of one of the leases.
type setContext struct {
	context.Context
	leases []*Lease
}

// Done checks the clock, as Err does.
func (c setContext) Done() <-chan struct{} {
	now := schedule.MomentOf(time.Now())
	for _, l := range c.leases {
		if l.grant.Expired(now) {
			_ = c.Err()
		}
	}
	return c.Context.Done()
}

// Err checks the clock for every lease, as leaseContext's does for one.
func (c setContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	for _, l := range c.leases {
		_ = l.grant.locker.leases.check(l.outermost()) // ends the ctx if it is over
	}
	return c.Context.Err()
}

// String describes the set without owner tokens.
func (s *LeaseSet) String() string {
	if s == nil {
		return "no leases"
	}
	return fmt.Sprintf("leases on %q", s.Keys())
}

// each calls f for all items at the same time, and returns its errors in their order.
func each[T any](items []T, f func(T) error) []error {
	errs := make([]error, len(items))
	if len(items) == 1 {
		errs[0] = f(items[0])
		return errs
	}
	var wg sync.WaitGroup
	for i, item := range items {
		wg.Go(func() { errs[i] = f(item) })
	}
	wg.Wait()
	return errs
}
