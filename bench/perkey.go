package main

import (
	"context"
	"errors"

	"github.com/perkey-go/perkey/core"
)

type perkey struct{ *core.Locker }

func newPerkey(t target) (contestant, error) {
	rdb := t.client()
	l, err := core.New(rdb, core.WithTTL(t.lease))
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return ownClient{perkey{l}, rdb}, nil
}

func (p perkey) Acquire(ctx context.Context, key string) (held, error) {
	lease, err := p.Locker.Acquire(ctx, key)
	if err != nil {
		return nil, err // not a nil *Lease in an interface
	}
	return lease, nil
}

// perkeyTry is perkey by the call that does not wait.
type perkeyTry struct{ perkey }

func newPerkeyTry(t target) (contestant, error) {
	c, err := newPerkey(t)
	if err != nil {
		return nil, err
	}
	own := c.(ownClient)
	return ownClient{perkeyTry{own.contestant.(perkey)}, own.rdb}, nil
}

func (p perkeyTry) Acquire(ctx context.Context, key string) (held, error) {
	lease, err := p.TryAcquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return lease, nil
}
