package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
)

// A stand-in, until the scripts do this: principals and results are in keys of
// their own, which are written beside the scripts and not by them.

// StateCancelled is the state of a message that Cancel ended before it was started.
const StateCancelled State = "cancelled"

// What can go wrong with results and cancelling, told apart by errors.Is.
var (
	// ErrRunning: the message runs, so it cannot be cancelled.
	ErrRunning = errors.New("message is running")
	// ErrEnded: the message has ended, so it cannot be cancelled.
	ErrEnded = errors.New("message has ended")
	// ErrResultTooLarge: the result is over the queue's limit.
	ErrResultTooLarge = errors.New("result too large")
)

const (
	maxPrincipalLen  = 256
	defaultMaxResult = 64<<10 + 4<<10
)

// WithMaxResult sets the size of the largest result, in bytes. Default 64 KiB and
// 4 KiB: a response's body and what goes with it.
func WithMaxResult(n int) Option {
	return func(q *Queue) error {
		q.maxResult = n
		return checkCount("WithMaxResult", n, math.MaxInt32)
	}
}

// SetResult keeps what came of a message, for Queue.Result. A handler calls it
// with its ctx. It is stored if the message ends as done; the last call counts.
func SetResult(ctx context.Context, result []byte) error {
	to, ok := ctx.Value(resultKey{}).(*resultOf)
	switch {
	case !ok:
		return errors.New("delayqueue: set result: the ctx is not a handler's")
	case len(result) > to.most:
		return fmt.Errorf("delayqueue: set result: %w: %d bytes, at most %d are allowed", ErrResultTooLarge, len(result), to.most)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	to.result, to.set = append([]byte(nil), result...), true
	return nil
}

type resultKey struct{}

type resultOf struct {
	most   int
	mu     sync.Mutex
	set    bool
	result []byte
}

func withResult(ctx context.Context, q *Queue) (context.Context, *resultOf) {
	to := &resultOf{most: q.maxResult}
	return context.WithValue(ctx, resultKey{}, to), to
}

func (q *Queue) storeResult(ctx context.Context, id string, r *resultOf) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.set {
		return nil
	}
	return q.rdb.Set(ctx, q.base+":result:"+id, r.result, q.retention).Err()
}

// Result returns what the handler of a done message gave to SetResult. It is
// kept for the queue's retention. ErrNotFound: there is none.
func (q *Queue) Result(ctx context.Context, id string) ([]byte, error) {
	s, err := q.Status(ctx, id)
	if err != nil {
		return nil, err
	}
	if s.State != StateDone {
		return nil, fmt.Errorf("delayqueue: result: %w", ErrNotFound)
	}
	result, err := q.rdb.Get(ctx, q.base+":result:"+id).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("delayqueue: result: %w", ErrNotFound)
	} else if err != nil {
		return nil, redisError(ctx, "result", err)
	}
	return result, nil
}

var cancelScript = redis.NewScript(commonSource + `
local id = ARGV[3]
if kind_of(record(id)) ~= 'hash' then
  return 0
end
local f = redis.call('HMGET', record(id), 'key', 'state')
if not f[1] or not f[2] then
  return 0
elseif f[2] == 'cancelled' then
  return 1
elseif f[2] == 'running' then
  return 2
elseif f[2] ~= 'queued' then
  return 3
end
leave(id .. ' ' .. f[1], id, f[1])
redis.call('HDEL', record(id), 'payload', 'wait', 'nudged')
redis.call('HSET', record(id), 'state', 'cancelled')
redis.call('PEXPIRE', record(id), num(retention))
return 1
`)

// Cancel ends a message that was not started: it never will be. Nil also when it
// was cancelled before. ErrRunning while it runs, ErrEnded when it has ended
// otherwise, ErrNotFound.
func (q *Queue) Cancel(ctx context.Context, id string) error {
	if checkID(id) != nil {
		return fmt.Errorf("delayqueue: cancel: %w", ErrNotFound)
	}
	n, err := q.run(ctx, cancelScript, id).Int()
	if err != nil {
		return redisError(ctx, "cancel", err)
	}
	if why := []error{ErrNotFound, nil, ErrRunning, ErrEnded}[n]; why != nil {
		return fmt.Errorf("delayqueue: cancel: %w", why)
	}
	return nil
}

func checkPrincipal(p string) error {
	if len(p) > maxPrincipalLen {
		return invalidJob("Principal is %d bytes long, at most %d are allowed", len(p), maxPrincipalLen)
	}
	if !utf8.ValidString(p) || strings.ContainsFunc(p, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return invalidJob("Principal is not printable")
	}
	return nil
}

func (q *Queue) storePrincipal(ctx context.Context, job Job) error {
	if job.Principal == "" {
		return nil
	}
	life := job.MaxAge + q.retention + q.deadRetention + time.Hour
	if err := q.rdb.SetNX(ctx, q.base+":principal:"+job.ID, job.Principal, life).Err(); err != nil {
		return redisError(ctx, "enqueue", err)
	}
	return nil
}

func (q *Queue) principalOf(ctx context.Context, id string) (string, error) {
	p, err := q.rdb.Get(ctx, q.base+":principal:"+id).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", redisError(ctx, "principal", err)
	}
	return p, nil
}
