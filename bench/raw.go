package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/release.lua
var releaseSource string

// pollEvery is how often those ask again that can only poll.
const pollEvery = 10 * time.Millisecond

// raw is the floor: the leanest lock that a team writes by hand. SET NX PX with a token that
// costs nothing to make, and a script, known to Redis beforehand, that deletes the key if the
// token is still there. It polls for a held key. No fence, no renewal, no answer to a lost
// reply, and its commands do not end with the caller's ctx.
type raw struct {
	rdb    *redis.Client
	lease  time.Duration
	sha    string
	name   string       // tokens begin with it
	tokens atomic.Int64 // made so far
}

func newRaw(t target) (contestant, error) {
	r := &raw{rdb: t.client(), lease: t.lease, name: rand.Text() + "."}
	var err error
	if r.sha, err = r.rdb.ScriptLoad(context.Background(), releaseSource).Result(); err != nil {
		_ = r.rdb.Close()
		return nil, err
	}
	return r, nil
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
	h := &rawLock{raw: r, key: "raw:" + key, token: r.name + strconv.FormatInt(r.tokens.Add(1), 36)}
	for {
		taken, err := r.rdb.SetNX(context.Background(), h.key, h.token, r.lease).Result()
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

func (h *rawLock) Release(context.Context) error {
	n, err := h.rdb.EvalSha(context.Background(), h.sha, []string{h.key}, h.token).Int()
	if err == nil && n == 0 {
		err = fmt.Errorf("raw: %q was lost", h.key)
	}
	return err
}
