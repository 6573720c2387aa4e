package asynqlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// This file has what the package relies on in asynq, and asynq promises to nobody: three of its scripts, which are run inside
// ours, and how often its servers look for tasks.

// The SHA1s of asynq's scripts, of v0.26, that ours were written for: what another does is not known.
var (
	runSHA     = "2fb646810e3433bbe85fba1a6b407eb3eced7b63"
	uniqueSHAs = []string{"e9b8aa859a976a1fce09eaf723b4fccd02ba799e", "297b3f9abfd963a3316434ef9d88fc5bf8a7ddc3"} // of a task that is due later, and at once
)

// tellStrange logs, once in a process, which of asynq's scripts are not the ones that are known. Then tasks are not woken, and
// clones not unique.
var tellStrange = sync.OnceFunc(func() {
	if err := strangeScripts(); err != nil {
		slog.Error("asynqlock: this version of asynq is not known: tasks are run one at a time per key, but "+
			"more slowly: use a version of perkey that knows it", "error", err)
	}
})

func strangeScripts() error {
	var errs []error
	check := func(sha, need string, call func(redis.UniversalClient)) {
		if is := sentBy(call); is != sha {
			errs = append(errs, errors.New("asynq has another script than its v0.26, SHA1 "+is+", which "+need))
		}
	}
	check(runSHA, "runs a task: no release wakes a task, which comes back after WithDelay", func(rdb redis.UniversalClient) {
		_ = asynq.NewInspectorFromRedisClient(rdb).RunTask("q", "id")
	})
	for i, in := range []time.Duration{time.Hour, 0} {
		check(uniqueSHAs[i], "enqueues a unique task: a clone has no unique lock", func(rdb redis.UniversalClient) {
			_, _ = asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("t", nil), asynq.Unique(uniquePlaceholder), asynq.ProcessIn(in))
		})
	}
	return errors.Join(errs...)
}

// sentBy returns the SHA1 of the script that a call of asynq's sends, empty if it sends none.
func sentBy(call func(redis.UniversalClient)) (sha string) {
	s := &scriptSpy{}
	defer func() {
		_ = recover() // a command that the spy does not know
		sha = s.sha
	}()
	call(s)
	return s.sha
}

// scriptSpy is a client that sends nothing, and keeps the script that it should.
type scriptSpy struct {
	redis.UniversalClient
	sha string
}

// SIsMember says that there is such a queue.
func (*scriptSpy) SIsMember(ctx context.Context, _ string, _ any) *redis.BoolCmd {
	return redis.NewBoolResult(true, nil)
}

// SAdd has added the queue.
func (*scriptSpy) SAdd(context.Context, string, ...any) *redis.IntCmd {
	return redis.NewIntResult(1, nil)
}

// EvalSha keeps the hash.
func (s *scriptSpy) EvalSha(_ context.Context, sha string, _ []string, _ ...any) *redis.Cmd {
	s.sha = sha
	return redis.NewCmdResult(int64(1), nil)
}

// An idle server looks for tasks that are pending as often as Config.TaskCheckInterval says, and for those that were put aside
// and are due as often as DelayedTaskCheckInterval says. asynq's defaults are 1 s and 5 s.
const (
	taskCheck    = 50 * time.Millisecond
	delayedCheck = time.Second
	longCheck    = 250 * time.Millisecond
)

// checkOften has a server look often enough for tasks that a release woke, unless cfg says how often.
func checkOften(cfg *asynq.Config) {
	if cfg.TaskCheckInterval <= 0 {
		cfg.TaskCheckInterval = taskCheck
	}
	if cfg.DelayedTaskCheckInterval <= 0 {
		cfg.DelayedTaskCheckInterval = delayedCheck
	}
	if cfg.TaskCheckInterval > longCheck {
		slog.Warn("asynqlock: Config.TaskCheckInterval is long: an idle server finds a task that the release of its key woke only after that time: "+
			"leave it 0, for 50ms, or choose 250ms at most", "TaskCheckInterval", cfg.TaskCheckInterval)
	}
}

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
	if !slices.Contains(uniqueSHAs, luascript.New(script).Hash()) { // the clone is better not unique than not enqueued
		cmd := redis.NewCmd(ctx)
		cmd.SetVal(duplicate)
		return cmd
	}
	return c.UniversalClient.Eval(ctx, strings.Replace(inheritScript, scriptMark, script, 1), keys, append(args, c.of)...)
}

// runClient is the client through which asynq's Inspector runs a task: it wraps asynq's script so that only
// what was put aside is run, and keeps the reply, which asynq makes a text of.
type runClient struct {
	redis.UniversalClient
	scripts *sync.Map // asynq's script by its SHA1: *luascript.Script
	reply   *redis.Cmd
}

func (c *runClient) state() int64 {
	state, err := c.reply.Int64()
	if err != nil {
		return isPending
	}
	return state
}

// SIsMember spares the question whether the queue exists, which asynq asks first: its task came from it.
func (c *runClient) SIsMember(ctx context.Context, _ string, _ any) *redis.BoolCmd {
	cmd := redis.NewBoolCmd(ctx)
	cmd.SetVal(true)
	return cmd
}

// EvalSha runs asynq's script as it was wrapped, or has asynq send its text.
func (c *runClient) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if script, ok := c.scripts.Load(sha); ok {
		c.reply = script.(*luascript.Script).Run(ctx, c.UniversalClient, keys, args...)
		return c.reply
	}
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.ErrNoScript)
	return cmd
}

// Eval wraps asynq's script.
func (c *runClient) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	sha := luascript.New(script).Hash()
	if sha != runSHA {
		return notRun(ctx)
	}
	c.scripts.Store(sha, luascript.New(strings.Replace(runWrapper.Source(), scriptMark, script, 1)))
	return c.EvalSha(ctx, sha, keys, args...)
}

var runWrapper = luascript.Load(scripts, "run")

// notRun is what is answered for a script of asynq's that is not known.
func notRun(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(errors.New("asynqlock: a script of asynq's that is not known"))
	return cmd
}
