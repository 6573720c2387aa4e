package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// token is the fastest hand-over that Redis has, and no lock: one element of a
// list, which goes to whoever has waited longest in BLPOP. A holder that dies
// takes it along.
type token struct {
	rdb    *redis.Client
	prefix string
}

func newToken(t target) (contestant, error) { return openToken(t, "token:"), nil }

// openToken gives every goroutine a connection to block.
func openToken(t target, prefix string) *token {
	return &token{redis.NewClient(&redis.Options{Addr: t.addr, PoolSize: t.workers + 4}), prefix}
}

func (t *token) Start(ctx context.Context, key string) error {
	return t.pass(ctx, key)
}

func (t *token) Close() error { return t.rdb.Close() }

func (t *token) Acquire(ctx context.Context, key string) (held, error) {
	if err := t.take(ctx, key); err != nil {
		return nil, err
	}
	return &tokenHeld{t, key}, nil
}

// take blocks for a second at a time, since go-redis does not interrupt a read
// when ctx ends.
func (t *token) take(ctx context.Context, key string) error {
	for ctx.Err() == nil {
		err := t.rdb.BLPop(ctx, time.Second, t.prefix+key).Err()
		if !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return ctx.Err()
}

func (t *token) pass(ctx context.Context, key string) error {
	return t.rdb.RPush(ctx, t.prefix+key, "token").Err()
}

type tokenHeld struct {
	*token
	key string
}

func (h *tokenHeld) Release(ctx context.Context) error { return h.pass(ctx, h.key) }
