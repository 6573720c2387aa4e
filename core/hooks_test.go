package core_test

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// hooks stands between a client and Redis. A nil func passes everything on.
type hooks struct {
	script   func(cmd redis.Cmder, next func() error) error // EVAL and EVALSHA, one at a time
	pipeline func(next func() error) error                  // renewals
}

func (h hooks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hooks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.script == nil || !strings.HasPrefix(cmd.Name(), "eval") {
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

// refuse makes cmd fail as if Redis had answered so.
func refuse(cmd redis.Cmder, answer string) error {
	err := redisError(answer)
	cmd.SetErr(err)
	return err
}
