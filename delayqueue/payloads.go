package delayqueue

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// A payload that is too long for a record has a key of its own, which moves to another node, and expires, by itself. The
// scripts that store a message, extend or end its claim, or redrive it, declare that key. The others return the ids of the
// messages that they ended, and the caller frees the payloads. If the caller dies, or the reply is lost, the payload
// expires.

const (
	// The longest payload in a record, in bytes; and the longest once the messages of the partition take more than fullRecords:
	// the records are one key of Redis, so its node stands still while they move.
	maxInline     = 4 << 10
	maxInlineFull = 512
	fullRecords   = 2 << 20
)

// inline is the longest payload in the next record.
func (p *partition) inline() int {
	if p.bytes.Load() > fullRecords {
		return maxInlineFull
	}
	return maxInline
}

// freeBatch is how many payloads are freed at once: each may be large.
const freeBatch = 32

func (p *partition) payloadKey(id string) string { return p.base + ":b:" + id }

// change calls a script that may end messages, and declares the long payloads of these ids beside
// the keys of the partition. It frees the payloads that are no longer needed.
func (p *partition) change(ctx context.Context, script *luascript.Script, ids []string, args ...any) ([]any, error) {
	reply, err := p.callWith(ctx, p.queue.rdb, script, ids, args...).Slice()
	if err != nil {
		return nil, err
	}
	var freed []any
	if len(reply) > 0 {
		freed, _ = reply[len(reply)-1].([]any)
	}
	if freed == nil {
		return nil, luascript.ErrReply
	}
	for some := range slices.Chunk(freed, freeBatch) {
		p.free(ctx, some)
	}
	return reply[:len(reply)-1], nil
}

// callWith calls a script on the keys of the partition and the long payloads of these ids.
func (p *partition) callWith(ctx context.Context, rdb redis.UniversalClient, script *luascript.Script, ids []string, args ...any) *redis.Cmd {
	keys := len(p.declared) + len(ids)
	all := script.Args(make([]any, 0, 5+keys+len(args)), keys)
	all = append(all, p.declared...)
	for _, id := range ids {
		all = append(all, p.payloadKey(id))
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	call := script.Call(ctx, append(append(all, p.queue.spans...), args...), false)
	call.Send(ctx, rdb)
	return call.Cmd
}

// free frees long payloads of messages that have ended.
func (p *partition) free(ctx context.Context, ids []any) {
	keys := []string{p.keys[keyMessages]}
	for _, id := range ids {
		name, _ := id.(string)
		keys = append(keys, p.payloadKey(name))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	_ = freeScript.Run(ctx, p.queue.rdb, keys, ids...) // else they expire
}

// fetch gets the long payloads of claimed messages. It uses a script, since a replica might not
// have them yet.
func (p *partition) fetch(ctx context.Context, lease time.Duration, messages []*Message) error {
	var long []*Message
	var keys []string
	for _, m := range messages {
		if m.body && m.damage == "" {
			long, keys = append(long, m), append(keys, p.payloadKey(m.ID))
		}
	}
	if len(long) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	payloads, err := payloadsScript.Run(ctx, p.queue.rdb, keys, lease.Milliseconds()).Slice()
	if err == nil && len(payloads) != len(long) {
		err = luascript.ErrReply
	}
	if err != nil {
		return err
	}
	for i, m := range long {
		payload, is := payloads[i].(string)
		if m.Payload = []byte(payload); !is {
			m.damage = "the record has no payload"
		}
	}
	return nil
}
