package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"
)

// token is the fastest hand-over that Redis has, and no lock: one element of a
// list, which goes to whoever has waited longest in BLPOP. A holder that dies
// takes it along.
type token struct {
	*redis.Client
	prefix string
}

func newToken(t target) (lock, error) { return openToken(t, "token:"), nil }

// openToken gives every goroutine a connection to block.
func openToken(t target, prefix string) *token {
	return &token{redis.NewClient(&redis.Options{Addr: t.addr, PoolSize: t.workers + 4}), prefix}
}

func (t *token) Prepare(ctx context.Context, key string) error { return t.pass(ctx, key) }

func (t *token) Acquire(ctx context.Context, key string) (lease, error) {
	return &tokenLease{t, key}, t.take(ctx, key)
}

// take blocks for a second at a time, since go-redis does not interrupt a read
// when ctx ends.
func (t *token) take(ctx context.Context, key string) error {
	for ctx.Err() == nil {
		err := t.BLPop(ctx, time.Second, t.prefix+key).Err()
		if !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return ctx.Err()
}

func (t *token) pass(ctx context.Context, key string) error {
	return t.RPush(ctx, t.prefix+key, "token").Err()
}

type tokenLease struct {
	*token
	key string
}

func (h *tokenLease) Release(ctx context.Context) error { return h.pass(ctx, h.key) }

// cohortBudget is how long a process may hand the token from goroutine to
// goroutine before it passes it on: short enough that four processes take turns
// within two milliseconds.
const cohortBudget = 250 * time.Microsecond

// cohort is token behind a process's own queue. While the token is in the
// process it goes to the next goroutine without Redis, until the budget
// is spent. No lock that excludes processes can hand over faster.
type cohort struct {
	*token
	keys sync.Map // of *cohortKey
}

// cohortKey is one key in one process.
type cohortKey struct {
	*cohort
	key     string
	waiting atomic.Int64
	turn    *semaphore.Weighted // first come, first served
	// Whoever has turn:
	hasToken bool
	since    time.Time // when the token came
}

func newCohort(t target) (lock, error) { return &cohort{token: openToken(t, "cohort:")}, nil }

func (c *cohort) Acquire(ctx context.Context, key string) (lease, error) {
	v, ok := c.keys.Load(key)
	if !ok {
		v, _ = c.keys.LoadOrStore(key, &cohortKey{cohort: c, key: key, turn: semaphore.NewWeighted(1)})
	}
	k := v.(*cohortKey)
	k.waiting.Add(1)
	err := k.turn.Acquire(ctx, 1)
	k.waiting.Add(-1)
	if err != nil || k.hasToken {
		return k, err
	}
	if err := k.take(ctx, key); err != nil {
		k.turn.Release(1)
		return nil, err
	}
	k.hasToken, k.since = true, time.Now()
	return k, nil
}

func (k *cohortKey) Release(ctx context.Context) (err error) {
	if k.waiting.Load() == 0 || time.Since(k.since) >= cohortBudget {
		// The token is passed on first: who fetches it queues after those that wait.
		k.hasToken = false
		err = k.pass(ctx, k.key)
	}
	k.turn.Release(1)
	return err
}
