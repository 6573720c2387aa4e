package delayqueue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// What takes less than half of all bytes is remembered for the whole retention, whenever how much of it ended.
func TestBuckets_WhatEndedIsRememberedWhileThereIsRoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		require.NoError(t, remembers(t, env))
	})
}

// remembers ends messages at random times, and returns what was forgotten too early.
func remembers(t *testing.T, env *redistest.Env, hooks ...redis.Hook) error {
	t.Helper()
	const retention, size, room = time.Hour, 4 << 10, 256 << 10
	rdb := env.Client(t)
	for _, hook := range hooks {
		rdb.AddHook(hook)
	}
	q, err := New(rdb, fmt.Sprint("q", rand.Uint32()), WithPrefix(env.Prefix), WithRetention(retention), WithMaxBytes(2*room), WithMaxPayload(1))
	require.NoError(t, err)
	type past struct {
		id  string
		ago time.Duration
	}
	var all []past
	steps := 100
	if !env.Real { // it is slow
		steps = 25
	}
	for n := range steps {
		d := rand.N(retention / 3)
		require.NoError(t, q.PassEnded(d))
		for i := range all {
			all[i].ago += d
		}
		all = slices.DeleteFunc(all, func(p past) bool { return p.ago > 2*retention }) // some take bytes for as long again
		for i := rand.IntN(20); i > 0 && (len(all)+1)*(size*5/4+1000) < room; i-- {
			ticket, err := q.Enqueue(t.Context(), Job{})
			require.NoError(t, err)
			c := claimTest(t, q, fmt.Sprint("token", n, "-", i), 1)
			require.True(t, settleTest(t, c[0], outcome{end: store.Finished, result: make([]byte, size)}))
			all = append(all, past{id: ticket.ID})
		}
		for _, p := range all {
			if p.ago > retention-time.Minute { // the test takes time too
				continue
			}
			if _, err := q.Result(t.Context(), p.id); err != nil {
				return fmt.Errorf("%s ago, of %d: %w", p.ago, len(all), err)
			}
		}
	}
	return nil
}
