package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislocks is rueidislock, which hears of releases by client-side caching.
// NOLOOP is on, as its README advises for Redis from 7.0.5 on. Its default is a majority
// of 2 of 3 keys; for a single Redis the README advises 1.
//
// A try gets a second in place of 20 ms: on a busy machine a call whose try took
// longer was seen to wait for good while its key was free.
type rueidislocks struct{ locker rueidislock.Locker }

func newRueidislock(majority int32) func(target) (contestant, error) {
	return func(t target) (contestant, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{t.addr}},
			KeyValidity:    t.lease,
			KeyMajority:    majority,
			TryNextAfter:   time.Second,
			NoLoopTracking: true,
		})
		if err != nil {
			return nil, err
		}
		return rueidislocks{l}, nil
	}
}

func (r rueidislocks) Close() error {
	r.locker.Close()
	return nil
}

func (r rueidislocks) Acquire(ctx context.Context, key string) (held, error) {
	_, cancel, err := r.locker.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return rueidisHeld(cancel), nil
}

// rueidisHeld releases, and waits until its keys were deleted.
type rueidisHeld context.CancelFunc

func (h rueidisHeld) Release(context.Context) error {
	h()
	return nil
}
