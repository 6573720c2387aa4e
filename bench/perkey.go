package main

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
)

type perkey struct{ *core.Locker }

func newPerkey(rdb redis.UniversalClient) (contestant, error) {
	l, err := core.New(rdb, core.WithTTL(leaseTime))
	return perkey{l}, err
}

func (perkey) Name() string { return "perkey" }

func (p perkey) Acquire(ctx context.Context, key string) (held, error) {
	lease, err := p.TryAcquire(ctx, key)
	if err != nil {
		return nil, err // not a nil *Lease in an interface
	}
	return lease, nil
}
