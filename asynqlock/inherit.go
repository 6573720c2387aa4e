package asynqlock

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// uniqueClient is the client through which a clone is enqueued as a unique task although its
// lock is taken: by the task that it is the clone of. asynq tells nobody that a task is
// unique, and refuses the clone as a duplicate. So asynq's own script runs inside one that
// hands the lock on, at once and with its time.
type uniqueClient struct {
	redis.UniversalClient
	of string // the task's id: what asynq keeps in the lock
}

// uniquePlaceholder is overwritten with what is left of the lock.
const uniquePlaceholder = time.Minute

var inheritScript = luascript.Load(scripts, "inherit").Source()

const (
	// scriptMark is where asynq's script is put.
	scriptMark = "-- ASYNQ"
	// uniqueMark is in the names of asynq's unique locks.
	uniqueMark = ":unique:"
	// duplicate is what asynq's script answers when the lock is another's.
	duplicate = int64(-1)
)

// EvalSha has asynq send the text of its script.
func (c uniqueClient) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.ErrNoScript)
	return cmd
}

// Eval runs asynq's script if the lock is the task's.
func (c uniqueClient) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	if len(keys) == 0 || !strings.Contains(keys[0], uniqueMark) {
		// Not the script that is meant: the clone is better not unique than not enqueued.
		cmd := redis.NewCmd(ctx)
		cmd.SetVal(duplicate)
		return cmd
	}
	return c.UniversalClient.Eval(ctx, strings.Replace(inheritScript, scriptMark, script, 1), keys, append(args, c.of)...)
}
