package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

const leaseTime = 15 * time.Second // of every contestant

//go:embed lua/release.lua
var rawSource string

// raw is the floor: what a team writes by hand. SET NX PX with a random token,
// and a script that deletes the key if the token is still there. No fence, no
// renewal, no answer to a lost reply.
type raw struct {
	rdb     redis.UniversalClient
	release *redis.Script
}

func newRaw(rdb redis.UniversalClient) (contestant, error) {
	return &raw{rdb: rdb, release: redis.NewScript(rawSource)}, nil
}

func (*raw) Name() string { return "raw" }

func (*raw) Close() error { return nil }

func (r *raw) Acquire(ctx context.Context, key string) (held, error) {
	h := &rawLock{raw: r, key: "raw:" + key, token: rand.Text()}
	taken, err := r.rdb.SetNX(ctx, h.key, h.token, leaseTime).Result()
	if err == nil && !taken {
		err = fmt.Errorf("raw: %q is held", key)
	}
	return h, err
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
