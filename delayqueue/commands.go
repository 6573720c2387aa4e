package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// The scripts, called. go-redis may send each of them again when a reply is
// lost; each answers its second run as it answered the first.

func (q *Queue) run(ctx context.Context, script *redis.Script, args ...any) *redis.Cmd {
	args = append([]any{q.retention.Milliseconds(), q.deadRetention.Milliseconds()}, args...)
	return script.Run(ctx, q.rdb, []string{q.base}, args...)
}

var errReply = errors.New("unexpected reply of a script")

func (q *Queue) enqueue(ctx context.Context, job Job) (expires time.Time, err error) {
	// Rounded up: a message is never early, and not too old when it comes.
	delay, maxAge := ceilMilliseconds(job.Delay), ceilMilliseconds(job.MaxAge)
	reply, err := q.run(ctx, enqueueScript, job.ID, job.Key, job.Name, job.Payload,
		delay, maxAge, q.maxDepth, q.maxDepthPerKey).Int64Slice()
	switch {
	case err != nil:
		return time.Time{}, redisError(ctx, "enqueue", err)
	case len(reply) == 2 && reply[0] == 1:
		return time.UnixMilli(reply[1]), nil
	case len(reply) == 1 && reply[0] == -1:
		return time.Time{}, fmt.Errorf("delayqueue: enqueue in %q for key %q: %w", q.name, job.Key, ErrKeyFull)
	case len(reply) == 1 && reply[0] == -2:
		return time.Time{}, fmt.Errorf("delayqueue: enqueue in %q: %w", q.name, ErrQueueFull)
	case len(reply) == 1 && reply[0] == -3:
		return time.Time{}, fmt.Errorf("delayqueue: enqueue in %q: what redis holds under id %q is not a message", q.name, job.ID)
	default:
		return time.Time{}, redisError(ctx, "enqueue", errReply)
	}
}

// batch is what a claim brought.
type batch struct {
	messages []Message
	// wait is how long there is nothing to do.
	wait time.Duration
	// What the claim tidied up: messages of dead workers that are due again,
	// messages that became too old, and new dead letters.
	redelivered, expired, buried int64
}

func (q *Queue) claim(ctx context.Context, token string, lease time.Duration, n int) (b batch, err error) {
	reply, err := q.run(ctx, claimScript, token, lease.Milliseconds(), n, q.maxAttempts, claimBytes).Slice()
	if err != nil {
		return batch{}, redisError(ctx, "claim", err)
	}
	if len(reply) < 4 {
		return batch{}, redisError(ctx, "claim", errReply)
	}
	wait, ok := reply[0].(int64)
	b.wait = time.Duration(wait) * time.Millisecond
	for i, n := range []*int64{&b.redelivered, &b.expired, &b.buried} {
		var is bool
		*n, is = reply[1+i].(int64)
		ok = ok && is
	}
	for _, f := range reply[4:] {
		m, is := readMessage(f)
		b.messages = append(b.messages, m)
		ok = ok && is
	}
	if !ok {
		return batch{}, redisError(ctx, "claim", errReply)
	}
	return b, nil
}

func readMessage(fields any) (m Message, ok bool) {
	f, ok := fields.([]any)
	if !ok || len(f) != 9 {
		return m, false
	}
	var payload string
	for i, to := range []*string{&m.ID, &m.Key, &m.Name, &payload} {
		if *to, ok = f[i].(string); !ok {
			return m, false
		}
	}
	m.Payload = []byte(payload)
	var n [5]int64
	for i := range n {
		if n[i], ok = f[4+i].(int64); !ok {
			return m, false
		}
	}
	m.Attempt, m.Conflicts, m.Losses = int(n[0]), int(n[1]), int(n[2])
	m.EnqueuedAt, m.ExpiresAt = time.UnixMilli(n[3]), time.UnixMilli(n[4])
	return m, true
}

// extend lengthens claims, and reports for each whether it is still held.
func (q *Queue) extend(ctx context.Context, lease time.Duration, claims []*claim) ([]bool, error) {
	args := make([]any, 0, 1+3*len(claims))
	args = append(args, lease.Milliseconds())
	for _, c := range claims {
		args = append(args, c.message.ID, c.message.Key, c.token)
	}
	reply, err := q.run(ctx, extendScript, args...).Int64Slice()
	if err == nil && len(reply) != len(claims) {
		err = errReply
	}
	if err != nil {
		return nil, redisError(ctx, "extend", err)
	}
	held := make([]bool, len(claims))
	for i := range reply {
		held[i] = reply[i] == 1
	}
	return held, nil
}

// settled is what a settlement came to.
type settled struct {
	held    bool // the claim was the caller's
	expired bool // the message became too old for its next attempt
	anyDue  bool // a message is due now
}

// settle ends a claim by verdict v.
func (q *Queue) settle(ctx context.Context, c *claim, v verdict) (settled, error) {
	m := c.message
	if v.outcome == OutcomeDone {
		if err := q.storeResult(ctx, m.ID, c.result); err != nil {
			return settled{}, redisError(ctx, "settle", err)
		}
	}
	var cmd *redis.Cmd
	switch v.outcome {
	case OutcomeDone, OutcomeDead:
		how := "done"
		if v.outcome == OutcomeDead {
			how = "dead"
		}
		cmd = q.run(ctx, finishScript, m.ID, m.Key, c.token, how, v.cause(), bit(v.lost))
	default:
		how := map[Outcome]string{OutcomeRetry: "retry", OutcomeConflict: "conflict", OutcomeReturned: "return"}[v.outcome]
		cmd = q.run(ctx, requeueScript, m.ID, m.Key, c.token, how, ceilMilliseconds(v.delay), v.cause(), bit(v.lost), bit(v.awaitsKey))
	}
	reply, err := cmd.Int64Slice()
	if err == nil && len(reply) != 2 {
		err = errReply
	}
	if err != nil {
		return settled{}, redisError(ctx, "settle", err)
	}
	return settled{held: reply[0] > 0, expired: reply[0] == 2, anyDue: reply[1] == 1}, nil
}

// nudge makes the heads of keys due that wait for nothing but their key.
func (q *Queue) nudge(ctx context.Context, keys []string) (woken int, err error) {
	args := make([]any, len(keys))
	for i, key := range keys {
		args[i] = key
	}
	woken, err = q.run(ctx, nudgeScript, args...).Int()
	if err != nil {
		return 0, redisError(ctx, "nudge", err)
	}
	return woken, nil
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func ceilMilliseconds(d time.Duration) int64 {
	return (d + time.Millisecond - 1).Milliseconds()
}
