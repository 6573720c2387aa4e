package store

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Woken is what Wake found of a key.
type Woken int64

// What there can be of a key.
const (
	WakeNone Woken = iota // it has no message that runs or could run now
	WakeBusy              // its head runs, or is due, or waits for the key and was only looked at
	WakeDue               // its head waited for nothing but the key, and is due now
	WakeHalt              // a dead letter halts its messages, and not its fresh calls
)

// Wake makes the heads of keys due that wait for nothing but their key; or it only looks.
func (p *Partition) Wake(ctx context.Context, keys []string, wake bool) ([]Woken, error) {
	args := make([]any, 0, 1+len(keys))
	args = append(args, bit(wake))
	for _, key := range keys {
		args = append(args, key)
	}
	reply, err := p.call(ctx, wakeScript, args...).Int64Slice()
	if err == nil && len(reply) != len(keys) {
		err = luascript.ErrReply
	}
	if err != nil {
		return nil, Unavailable(ctx, "wake", err)
	}
	found := make([]Woken, len(reply))
	for i, n := range reply {
		found[i] = Woken(n)
	}
	return found, nil
}

// HasQuiet reports whether a message of the key may be in its quiet period: a fresh call would be undone by it.
func (p *Partition) HasQuiet(ctx context.Context, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	n, err := p.quiet(ctx, p.store.Client, key).Result()
	return err != nil || n > 0
}

func (p *Partition) quiet(ctx context.Context, rdb redis.Cmdable, key string) *redis.IntCmd {
	return rdb.ZLexCount(ctx, p.Keys[KeyFIFOs], "["+key+"\n\x7f", "("+key+"\v")
}

// HasQueuedAfter reports whether others may be queued after a message. One that was parked between
// the claim and the lease is not in QueuedAfter, and its reservation is older than the lease.
func (p *Partition) HasQueuedAfter(ctx context.Context, key, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	pipe := p.store.Client.Pipeline()
	last := pipe.ZRevRangeByLex(ctx, p.Keys[KeyFIFOs], &redis.ZRangeBy{Max: "(" + key + "\n~", Min: "[" + key + "\n", Count: 1})
	quiet := p.quiet(ctx, pipe, key)
	if _, err := pipe.Exec(ctx); err != nil || quiet.Val() > 0 {
		return true
	}
	for _, place := range last.Val() {
		other, _ := SplitPlace(place)
		return other != id
	}
	return false
}
