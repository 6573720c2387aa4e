package core_test

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
)

// hooks stands between a client and Redis. A nil func passes everything on.
type hooks struct {
	script   func(cmd redis.Cmder, next func() error) error // EVAL and EVALSHA, one at a time; not what checks a subscription
	pipeline func(next func() error) error                  // renewals
}

func (h hooks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hooks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.script == nil || !strings.HasPrefix(cmd.Name(), "eval") || cmd.Args()[1] == core.Scripts["publish"] {
			return next(ctx, cmd)
		}
		return h.script(cmd, func() error { return next(ctx, cmd) })
	}
}

func (h hooks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.pipeline == nil || !strings.HasPrefix(cmds[0].Name(), "eval") {
			return next(ctx, cmds)
		}
		sent := false
		err := h.pipeline(func() error { sent = true; return next(ctx, cmds) })
		if err != nil && !sent { // as go-redis does
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// fullPool lets nothing through while full is set.
func fullPool(full *atomic.Bool) hooks {
	return hooks{
		script: func(cmd redis.Cmder, next func() error) error {
			if full.Load() {
				return refuse(cmd, redis.ErrPoolTimeout)
			}
			return next()
		},
		pipeline: func(next func() error) error {
			if full.Load() {
				return redis.ErrPoolTimeout
			}
			return next()
		},
	}
}

// refuse makes cmd fail with err.
func refuse(cmd redis.Cmder, err error) error {
	cmd.SetErr(err)
	return err
}

// redisError is an answer of Redis's.
type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}
