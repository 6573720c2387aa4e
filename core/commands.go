package core

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// acquireReply is what acquire.lua answered.
type acquireReply struct {
	granted   bool
	fence     int64
	remaining time.Duration // of the holder's lease
	err       error
}

// acquire asks Redis for the key. go-redis may send it again when a reply is
// lost: the script answers the same grant to the same token.
func (l *Locker) acquire(ctx context.Context, key, token string, ttl time.Duration, waiter string) acquireReply {
	reply, err := acquireScript.Run(ctx, l.rdb, []string{recordName(l.prefix, key)}, token, ttl.Milliseconds(), waiter).Int64Slice()
	switch {
	case err != nil:
		return acquireReply{err: err}
	case len(reply) != 2:
		return acquireReply{err: errors.New("acquire.lua: unexpected reply")}
	case reply[0] == 1:
		return acquireReply{granted: true, fence: reply[1]}
	default:
		return acquireReply{remaining: max(0, time.Duration(reply[1])*time.Millisecond)}
	}
}

func (l *Locker) renew(ctx context.Context, lease *Lease, ttl time.Duration) (owned bool, err error) {
	n, err := renewScript.Run(ctx, l.rdb, []string{recordName(l.prefix, lease.key)}, lease.token, ttl.Milliseconds()).Int()
	return n == 1, err
}

// release frees the key if token owns it, even when ctx is dead. It reports
// whether token owned it.
func (l *Locker) release(ctx context.Context, key, token string) (owned bool, err error) {
	ctx = context.WithoutCancel(ctx)
	for try := range releaseTries {
		if try > 0 {
			time.Sleep(releasePause << (2 * try))
		}
		var n int
		n, err = l.releaseOnce(ctx, key, token)
		if err == nil {
			// After a lost reply "not the owner" is what an earlier try of ours left.
			return n == 1 || try > 0, nil
		}
	}
	return false, err
}

const (
	releaseTries = 4
	releasePause = 5 * time.Millisecond // then 20, 80, 320 ms
)

func (l *Locker) releaseOnce(ctx context.Context, key, token string) (int, error) {
	run := func(name, script string) *redis.Cmd {
		cmd := onceCmd{redis.NewCmd(ctx, name, script, 1, recordName(l.prefix, key), token, l.id, channelPrefix(l.prefix), key)}
		_ = l.rdb.Process(ctx, cmd)
		return cmd.Cmd
	}
	cmd := run("evalsha", releaseScript.Hash())
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = run("eval", releaseSource)
	}
	return cmd.Int()
}

// onceCmd keeps go-redis from sending a command again by itself: whether a
// release ran before decides what its answer means.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }
