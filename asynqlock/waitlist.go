package asynqlock

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/luascript"
)

//go:embed lua
var scripts embed.FS

var (
	waitScript  = luascript.Load(scripts, "wait")
	startScript = luascript.Load(scripts, "start")
	wakeScript  = luascript.Load(scripts, "wake")
)

// waitlist is the name of the list of a key's deferred tasks in the Redis of the queues; lua/list.lua
// has its form. It says since when each task waits, where no text of a handler's can say otherwise, and
// which one is to be woken. It makes tasks run sooner: what runs them is asynq's own set of retries.
type waitlist string

// listOf is the list for a key of a Locker. Without one, as of a guard that is misconfigured, there is
// one list for all.
func listOf(l *core.Locker, key string) waitlist {
	prefix := ident.DefaultPrefix
	if l != nil {
		prefix = l.Prefix()
	}
	return waitlist(prefix + ":asynq{}:" + key)
}

// taskName names a task in a list.
func taskName(queue, id string) string { return strconv.Itoa(len(queue)) + ":" + queue + id }

func parseTaskName(name string) (queue, id string, ok bool) {
	length, rest, _ := strings.Cut(name, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

// wait is a task's place in a list.
type wait struct {
	since  time.Time
	waited time.Duration // by the clock of Redis
	before int           // how many wait before it
	next   bool          // it was woken to be the next, and is expected yet
}

// wait puts a task in the list, in place of the one that it goes on for, if that is not "". If the
// list knows nothing of it, it has waited since then. The list lives for keep. If the task is expected, and that is to
// be so for a time yet, nothing else changes.
func (l waitlist) wait(ctx context.Context, rdb redis.UniversalClient, task, before string, since time.Time, keep, expected time.Duration) (wait, error) {
	known := int64(0)
	if !since.IsZero() {
		known = since.UnixMilli()
	}
	reply, err := waitScript.Run(ctx, rdb, []string{string(l)}, task, before, known, keep.Milliseconds(), expected.Milliseconds()).Int64Slice()
	if err != nil {
		return wait{}, err
	}
	if len(reply) != 4 {
		return wait{}, luascript.ErrReply
	}
	return wait{since: time.UnixMilli(reply[0]), waited: time.Duration(reply[1]-reply[0]) * time.Millisecond, before: int(reply[2]), next: reply[3] == 1}, nil
}

// start takes a task out of the list, and returns how many wait.
func (l waitlist) start(ctx context.Context, rdb redis.UniversalClient, task string) (waiting int, err error) {
	return startScript.Run(ctx, rdb, []string{string(l)}, task).Int()
}

// choice is what wake chose: a task, or why there is none.
type choice struct {
	task     string
	expected bool // enough were woken
}

// wake chooses a task that is to be woken, so that at most expected of those that were are not back
// yet. gone and passed are what was chosen before, and was not woken; skip of the first are passed over.
func (l waitlist) wake(ctx context.Context, rdb redis.UniversalClient, expected int, gone, passed string, skip int) (choice, error) {
	reply, err := wakeScript.Run(ctx, rdb, []string{string(l)}, expected, pickUp.Milliseconds(), gone, passed, skip).Result()
	switch reply := reply.(type) {
	case string:
		return choice{task: reply}, nil
	case int64:
		return choice{expected: reply == 1}, nil
	}
	if err == nil {
		err = luascript.ErrReply
	}
	return choice{}, err
}

// away is AWAY of lua/list.lua.
const away = 1e15

// WaitingTask is a task that waits for a key.
type WaitingTask struct {
	// Queue and ID are asynq's; see Inspector.GetTaskInfo.
	Queue, ID string
	// Since is when it was first refused its key, without a run in between.
	Since time.Time
	// Woken reports that its key was free since, and that asynq will hand it out.
	Woken bool
}

// Waiting lists the tasks that were refused a key and wait for it: those that were woken first, then the others, each
// oldest first. tasks has no more than most of them, and none if most is not positive; all is how many there are. rdb is
// the client that NewServer or Configure was given, and locker is that of the guards. A task that was deleted by hand
// stays listed until a release would wake it.
func Waiting(ctx context.Context, rdb redis.UniversalClient, locker *core.Locker, key string, most int) (tasks []WaitingTask, all int, err error) {
	list := string(listOf(locker, key))
	var waiting, woken *redis.ZSliceCmd
	var count *redis.IntCmd
	_, err = rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		by := func(from, to any) *redis.ZSliceCmd {
			return p.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{Key: list, ByScore: true, Start: from, Stop: to, Count: int64(max(most, 1))})
		}
		woken, waiting = by(away, "+inf"), by(0, fmt.Sprintf("(%.0f", away))
		count = p.ZCount(ctx, list, "0", "+inf")
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("asynqlock: the tasks that wait: %w", err)
	}
	for _, set := range []*redis.ZSliceCmd{woken, waiting} {
		for _, z := range set.Val() {
			name, _ := z.Member.(string)
			queue, id, ok := parseTaskName(name)
			if !ok || len(tasks) >= most {
				continue
			}
			t := WaitingTask{Queue: queue, ID: id, Woken: z.Score >= away}
			if t.Woken {
				z.Score -= away
			}
			t.Since = time.UnixMilli(int64(z.Score))
			tasks = append(tasks, t)
		}
	}
	return tasks, int(count.Val()), nil
}
