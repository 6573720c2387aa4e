package delayqueue_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

// answers makes every command fail as if Redis had answered so, while it is set.
type answers struct{ answer *atomic.Pointer[string] }

type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

func (a answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if said := a.answer.Load(); said != nil {
			err := answer(*said)
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (a answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestRefusal_WhateverRedisRefusesWithLosesNothing(t *testing.T) {
	for name, said := range map[string]string{
		"READONLY": "READONLY You can't write against a read only replica.",
		"LOADING":  "LOADING Redis is loading the dataset in memory",
		"OOM":      "OOM command not allowed when used memory > 'maxmemory'.",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, redistest.Embedded(t))
			rdb := b.env.Client(t)
			var refused atomic.Pointer[string]
			rdb.AddHook(answers{&refused})
			q := b.newQueue(rdb)
			before, err := q.Enqueue(t.Context(), delayqueue.Job{ID: "before", Key: "k"})
			require.NoError(t, err)

			refused.Store(&said)
			_, err = q.Enqueue(t.Context(), delayqueue.Job{ID: "during", Key: "k"})
			require.ErrorIs(t, err, core.ErrUnavailable)
			var r ran
			b.startOn(q, r.handle)
			refused.Store(nil)
			b.reaches(before.ID, delayqueue.StateDone)
			require.Equal(t, []string{"before"}, r.ids())
		})
	}
}

func TestRefusal_FlushedScriptsLoseNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	b := setup(t, &redistest.Env{Addr: server.Addr, Prefix: "p"})
	flush := func() { require.NoError(t, b.rdb.ScriptFlush(t.Context()).Err()) }
	var r ran
	b.start(func(ctx context.Context, m delayqueue.Message) error {
		flush()
		return r.handle(ctx, m)
	})
	for range 5 {
		flush()
		b.reaches(b.enqueue(delayqueue.Job{Key: "k"}), delayqueue.StateDone)
	}
	require.Len(t, r.ids(), 5)
}
