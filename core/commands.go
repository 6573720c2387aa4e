package core

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// acquireReply is what acquire.lua answered.
type acquireReply struct {
	granted   bool
	fence     int64
	remaining time.Duration // of the holder's lease
	err       error
	abandoned bool // nobody waited for the answer
}

// acquire asks Redis for the key. go-redis may send it again when a reply is
// lost: the script answers the same grant to the same token.
func (l *Locker) acquire(req acquireRequest) acquireReply {
	n, err := l.script(req.ctx, acquireScript, false, req.record, req.token, req.ttl.Milliseconds(), req.wakeID)
	switch {
	case err != nil:
		return acquireReply{err: err}
	case n > 0:
		return acquireReply{granted: true, fence: n}
	default:
		return acquireReply{remaining: time.Duration(-n) * time.Millisecond}
	}
}

func (l *Locker) renew(ctx context.Context, lease *Lease, ttl time.Duration) (owned bool, err error) {
	n, err := l.script(ctx, renewScript, false, lease.record, lease.token, ttl.Milliseconds())
	return n == 1, err
}

type renewalReply struct {
	ttl   time.Duration // what was asked for
	owned bool
	err   error
}

// renewBatch asks Redis to renew leases, in one pipeline.
func (l *Locker) renewBatch(ctx context.Context, batch []*Lease, now time.Time) []renewalReply {
	replies := make([]renewalReply, len(batch))
	cmds := make([]*redis.Cmd, len(batch))
	pipe := l.rdb.Pipeline()
	for i, lease := range batch {
		ttl := lease.ttl
		if lease.fixed {
			ttl = max(lease.ttl-now.Sub(lease.granted), time.Millisecond)
		}
		replies[i].ttl = ttl
		cmds[i] = pipe.Do(ctx, "evalsha", renewScript.hash, 1, lease.record, lease.token, ttl.Milliseconds())
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			replies[i].owned, replies[i].err = l.renew(ctx, batch[i], replies[i].ttl)
			continue
		}
		owned, err := cmd.Int()
		replies[i].owned, replies[i].err = owned == 1, err
	}
	return replies
}

// release frees the key if token owns it, even when ctx is dead. It reports
// whether token owned it. It tries again for about releaseWait: one try lasts as
// long as go-redis's time-outs let it.
func (l *Locker) release(ctx context.Context, record, token string) (owned bool, err error) {
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	start, ran := time.Now(), false // whether an earlier try may have run
	for try := range releaseTries {
		if try > 0 {
			time.Sleep(releasePause << (2 * try))
		}
		var n int64
		n, err = l.script(ctx, releaseScript, true, record, token, l.id, l.channels, keyOf(l.prefix, record))
		if err == nil {
			// After a lost reply "not the owner" is what an earlier try of ours left.
			return n == 1 || ran, nil
		}
		ran = ran || mayHaveRun(err)
		if time.Since(start) > releaseWait {
			break
		}
	}
	return false, err
}

const (
	releaseTries = 4
	releasePause = 5 * time.Millisecond // times 4, 16, 64
	releaseWait  = 500 * time.Millisecond
)

// mayHaveRun reports whether a command that failed may have had its effect: not if
// Redis refused it, and not if it was never sent.
func mayHaveRun(err error) bool {
	var refused redis.Error
	var op *net.OpError
	if errors.As(err, &refused) || errors.Is(err, redis.ErrPoolTimeout) {
		return false
	}
	return !errors.As(err, &op) || op.Op != "dial"
}

// script runs one that takes a record and answers with an integer.
func (l *Locker) script(ctx context.Context, s *script, once bool, record string, args ...any) (int64, error) {
	run := func(name string, script any) *redis.IntCmd {
		all := append(make([]any, 0, 8), name, script, 1, record)
		cmd := redis.NewIntCmd(ctx, append(all, args...)...)
		cmd.SetFirstKeyPos(3)
		if once {
			_ = l.rdb.Process(ctx, onceCmd{cmd})
		} else {
			_ = l.rdb.Process(ctx, cmd)
		}
		return cmd
	}
	cmd := run("evalsha", s.hash)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = run("eval", s.source)
	}
	return cmd.Result()
}

// onceCmd keeps go-redis from sending a command again by itself: whether a
// release ran before decides what its answer means.
type onceCmd struct{ *redis.IntCmd }

func (onceCmd) NoRetry() bool { return true }
