package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/release.lua
var releaseSource string

// pollEvery is how often those ask again that can only poll.
const pollEvery = 10 * time.Millisecond

// raw is the floor: what a team writes by hand. SET NX PX with a random token,
// and a script that deletes the key if the token is still there. It polls for a
// held key. No fence, no renewal, no answer to a lost reply.
type raw struct {
	rdb     *redis.Client
	lease   time.Duration
	release *redis.Script
}

func newRaw(t target) (contestant, error) {
	return &raw{rdb: t.client(), lease: t.lease, release: redis.NewScript(releaseSource)}, nil
}

func (r *raw) Close() error { return r.rdb.Close() }

func (r *raw) Acquire(ctx context.Context, key string) (held, error) {
	h, err := r.acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (r *raw) acquire(ctx context.Context, key string) (*rawLock, error) {
	h := &rawLock{raw: r, key: "raw:" + key, token: rand.Text()}
	for {
		taken, err := r.rdb.SetNX(ctx, h.key, h.token, r.lease).Result()
		if err != nil {
			return nil, err
		}
		if taken {
			return h, nil
		}
		if err := pause(ctx, pollEvery); err != nil {
			return nil, err
		}
	}
}

type rawLock struct {
	*raw
	key, token string
}

func (h *rawLock) Release(ctx context.Context) error {
	n, err := h.release.Run(ctx, h.rdb, []string{h.key}, h.token).Int()
	if err == nil && n == 0 {
		err = fmt.Errorf("raw: %q was lost", h.key)
	}
	return err
}
