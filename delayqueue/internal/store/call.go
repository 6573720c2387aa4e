package store

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// CommandTimeout bounds a script call, for clients whose commands are bounded by their
// ctx alone.
const CommandTimeout = 10 * time.Second

// A payload that is too long for a record has a key of its own, which moves to another node, and expires, by itself. The
// scripts that store a message, extend or end its claim, or redrive it, declare that key. The others return the ids of the
// messages that they ended, and the caller frees the payloads. If the caller dies, or the reply is lost, the payload
// expires.

// The longest payload in a record, in bytes; and the longest once the messages of the partition take more than fullRecords:
// the records are one key of Redis, so its node stands still while they move.
const (
	MaxInline     = 4 << 10
	MaxInlineFull = 512
	fullRecords   = 2 << 20
)

// Inline is the longest payload in the next record.
func (p *Partition) Inline() int {
	if p.bytes.Load() > fullRecords {
		return MaxInlineFull
	}
	return MaxInline
}

// freeBatch is how many payloads are freed at once: each may be large.
const freeBatch = 32

// PayloadKey is the key of a long payload.
func (p *Partition) PayloadKey(id string) string { return p.Base + ":b:" + id }

// call calls a script on the keys of the partition.
func (p *Partition) call(ctx context.Context, script *luascript.Script, args ...any) *redis.Cmd {
	return p.callWith(ctx, p.store.Client, script, nil, args...)
}

// change calls a script that may end messages, and declares the long payloads of these ids beside
// the keys of the partition. It frees the payloads that are no longer needed.
func (p *Partition) change(ctx context.Context, script *luascript.Script, ids []string, args ...any) ([]any, error) {
	reply, err := p.callWith(ctx, p.store.Client, script, ids, args...).Slice()
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
func (p *Partition) callWith(ctx context.Context, rdb redis.UniversalClient, script *luascript.Script, ids []string, args ...any) *redis.Cmd {
	keys := len(p.declared) + len(ids)
	all := script.Args(make([]any, 0, 5+keys+len(args)), keys)
	all = append(all, p.declared...)
	for _, id := range ids {
		all = append(all, p.PayloadKey(id))
	}
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	call := script.Call(ctx, append(append(all, p.store.spans...), args...), false)
	call.Send(ctx, rdb)
	return call.Cmd
}

// each calls a script on partitions, all at once.
func (s *Store) each(ctx context.Context, parts []*Partition, script *luascript.Script, args ...any) []*luascript.Call {
	calls := make([]*luascript.Call, len(parts))
	for i, p := range parts {
		call := script.Prepare(ctx, p.Keys, args...)
		calls[i] = &call
	}
	_ = luascript.Pipeline(ctx, s.Client, calls) // each call has its own error
	return calls
}

// free frees long payloads of messages that have ended.
func (p *Partition) free(ctx context.Context, ids []any) {
	keys := []string{p.Keys[KeyMessages]}
	for _, id := range ids {
		name, _ := id.(string)
		keys = append(keys, p.PayloadKey(name))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CommandTimeout)
	defer cancel()
	_ = freeScript.Run(ctx, p.store.Client, keys, ids...) // else they expire
}

// fetch gets the long payloads of claimed messages. It uses a script, since a replica might not
// have them yet.
func (p *Partition) fetch(ctx context.Context, lease time.Duration, messages []*Message) error {
	var long []*Message
	var keys []string
	for _, m := range messages {
		if m.long && m.Damage == "" {
			long, keys = append(long, m), append(keys, p.PayloadKey(m.ID))
		}
	}
	if len(long) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	payloads, err := payloadsScript.Run(ctx, p.store.Client, keys, lease.Milliseconds()).Slice()
	if err == nil && len(payloads) != len(long) {
		err = luascript.ErrReply
	}
	if err != nil {
		return err
	}
	for i, m := range long {
		payload, is := payloads[i].(string)
		if m.Payload = []byte(payload); !is {
			m.Damage = "the record has no payload"
		}
	}
	return nil
}

// yes is whether a script answered 1, for each of n.
func yes(ctx context.Context, op string, n int, reply []any, err error) ([]bool, error) {
	if err == nil && len(reply) != n {
		err = luascript.ErrReply
	}
	if err != nil {
		return nil, Unavailable(ctx, op, err)
	}
	all := make([]bool, n)
	for i := range reply {
		all[i] = reply[i] == int64(1)
	}
	return all, nil
}

// number reads a number in an answer. Junk counts nothing.
func number(reply any) int64 {
	switch v := reply.(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

// readMillis reads a time of Redis, in ms.
func readMillis(reply any) (time.Time, bool) {
	s, _ := reply.(string)
	ms, err := strconv.ParseInt(s, 10, 64)
	return time.UnixMilli(ms), err == nil
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Milliseconds is d in ms, rounded up.
func Milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 { // to add to d first could overflow
		ms++
	}
	return ms
}
