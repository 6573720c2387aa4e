package delayqueue

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/unixms"
)

// The scripts, called. go-redis may send each of them again when a reply is
// lost; each answers its second run as it answered the first.

// commandTimeout bounds a script call, for clients whose commands are bounded by their
// ctx alone.
const commandTimeout = 10 * time.Second

func (p *partition) call(ctx context.Context, script *luascript.Script, args ...any) *redis.Cmd {
	return p.callWith(ctx, p.queue.rdb, script, nil, args...)
}

// checkLayout fails if the partition has messages of the layout before this one. It asks once.
func (p *partition) checkLayout(ctx context.Context, op string) error {
	if p.known.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	n, err := p.queue.rdb.Exists(ctx, p.base+":open", p.base+":running", p.base+":dead").Result()
	if err != nil {
		return redisError(ctx, op, err)
	}
	if n > 0 {
		return fmt.Errorf("delayqueue: %s in %q: %w: let the release that stored them run the queue empty, and purge its dead letters",
			op, p.queue.name, ErrOtherLayout)
	}
	p.known.Store(true)
	return nil
}

// each calls a script on partitions, all at once.
func (q *Queue) each(ctx context.Context, parts []*partition, script *luascript.Script, args ...any) []*luascript.Call {
	calls := make([]*luascript.Call, len(parts))
	for i, p := range parts {
		call := script.Prepare(ctx, p.keys, args...)
		calls[i] = &call
	}
	_ = luascript.Pipeline(ctx, q.rdb, calls) // each call has its own error
	return calls
}

// batch is what a claim brought.
type batch struct {
	messages []Message
	left     []time.Duration // for which each may be started
	// wait is how long there is nothing to do.
	wait time.Duration
	// spent: the token was used before, and nothing is left of what it took.
	spent bool
	// What the claim reaped: messages of dead workers that are due again, and
	// messages that became too old.
	redelivered, expired int64
	// Keys that have no messages any more, which nobody ran.
	emptied []string
}

// claimHead is how much a claim's reply has before its messages.
const claimHead = 7

func (p *partition) claim(ctx context.Context, token string, lease time.Duration, n int) (b batch, err error) {
	if err := p.checkLayout(ctx, "claim"); err != nil {
		return batch{}, err
	}
	reply, err := p.change(ctx, claimScript, nil, token, lease.Milliseconds(), n, claimBytes)
	if err != nil {
		return batch{}, redisError(ctx, "claim", err)
	}
	if len(reply) < claimHead {
		return batch{}, redisError(ctx, "claim", luascript.ErrReply)
	}
	wait, ok := reply[0].(int64)
	b.wait, b.spent = time.Duration(max(wait, 0))*time.Millisecond, wait < 0
	for i, n := range []*int64{&b.redelivered, &b.expired} {
		var is bool
		*n, is = reply[1+i].(int64)
		ok = ok && is
	}
	keys, are := reply[3].([]any)
	ok = ok && are
	for _, key := range keys {
		name, is := key.(string)
		b.emptied = append(b.emptied, name)
		ok = ok && is
	}
	now, is := p.readClock(reply[4])
	ok = ok && is
	back, is := reply[5].(int64)
	ok = ok && is
	p.noteBack(back)
	p.noteForgotten(reply[claimHead-1])
	for _, f := range reply[claimHead:] {
		m, is := readMessage(f)
		b.messages, b.left = append(b.messages, m), append(b.left, m.ExpiresAt.Sub(now))
		ok = ok && is
	}
	if !ok {
		return batch{}, redisError(ctx, "claim", luascript.ErrReply)
	}
	claimed := make([]*Message, len(b.messages))
	for i := range b.messages {
		claimed[i] = &b.messages[i]
	}
	if err := p.fetch(ctx, lease, claimed); err != nil { // to claim again with the token brings them again
		return batch{}, redisError(ctx, "claim", err)
	}
	return b, nil
}

// messageFields is the number of fields of a message in a script's reply.
const messageFields = 6

// readMessage reads a message in a script's reply: its member, record, attempts, 1 if others
// are queued after it, 1 if it waited for its key, since when it was due if that is known.
func readMessage(reply any) (m Message, ok bool) {
	f, ok := reply.([]any)
	if !ok || len(f) != messageFields {
		return m, false
	}
	var texts [3]string
	for i := range texts {
		if texts[i], ok = f[i].(string); !ok {
			return m, false
		}
	}
	r, readable := readRecord(texts[1])
	a, counted := readAttempts(texts[2][min(1, len(texts[2])):])
	m = Message{queuedAfter: f[3] == int64(1), parked: f[4] == int64(1), state: texts[2], size: len(texts[1]) + r.bodySize}
	m.ID, m.Key, _ = strings.Cut(texts[0], " ")
	m.due, _ = f[5].(string)
	if !readable || !counted || r.key != m.Key {
		m.damage = "the record cannot be read"
		return m, true
	}
	m.Name, m.Principal, m.Payload, m.body, m.given, m.seq = r.name, r.principal, []byte(r.payload), r.body, r.given, r.seq
	m.Attempt, m.Conflicts, m.Losses, m.handed, m.cause = a.attempts, a.conflicts, a.losses, a.handed, a.cause
	m.EnqueuedAt, m.ExpiresAt = unixms.Time(r.enqueued), unixms.Time(r.notAfter)
	m.coalesces = texts[1][1] == flagCoalesces || texts[1][1] == flagParkedCoalesces
	return m, true
}

// readMillis reads a time of Redis, in ms.
func readMillis(reply any) (time.Time, bool) {
	s, _ := reply.(string)
	ms, err := strconv.ParseInt(s, 10, 64)
	return time.UnixMilli(ms), err == nil
}

// readClock reads a time of Redis, and notes it.
func (p *partition) readClock(reply any) (time.Time, bool) {
	now, ok := readMillis(reply)
	if ok {
		p.clock.Store(&clock{now.UnixMilli(), time.Now()})
	}
	return now, ok
}

// clock is a time of Redis, in ms, and when this process read it.
type clock struct {
	server int64
	read   time.Time
}

// at is a time of Redis, in ms, that is no later than t: no clock is as much as 1 % faster than another.
func (c *clock) at(t time.Time) int64 {
	if c == nil {
		return 0
	}
	since := t.Sub(c.read)
	return c.server + int64(math.Floor(float64(since-since.Abs()/100)/1e6))
}

// extend lengthens claims, and reports for each whether it is still held.
func (p *partition) extend(ctx context.Context, rdb redis.UniversalClient, lease time.Duration, claims []*claim) ([]bool, error) {
	return p.extendFor(ctx, rdb, lease, false, claims)
}

// extendFor is extend for messages that, perhaps, are about to run alone.
func (p *partition) extendFor(ctx context.Context, rdb redis.UniversalClient, lease time.Duration, alone bool, claims []*claim) ([]bool, error) {
	args := make([]any, 0, 2+3*len(claims))
	args = append(args, lease.Milliseconds(), bit(alone))
	var long []string
	for _, c := range claims {
		if c.message.body {
			long = append(long, c.message.ID)
		}
		args = append(args, c.message.ID, c.message.Key, c.message.state)
	}
	reply, err := p.callWith(ctx, rdb, extendScript, long, args...).Slice()
	return yes(ctx, "extend", len(claims), reply, err)
}

// What wake.lua found of a key.
const (
	wakeNone  = iota // it has no message that runs or could run now
	wakeBusy         // its head runs, or is due, or waits for the key and was only looked at
	wakeWoken        // its head is due now
	wakeHalt         // a dead letter halts its messages, and not its fresh calls
)

// wake makes the heads of keys due that wait for nothing but their key; or it only looks.
func (p *partition) wake(ctx context.Context, keys []string, wake bool) (found []int64, err error) {
	args := make([]any, 0, 1+len(keys))
	args = append(args, bit(wake))
	for _, key := range keys {
		args = append(args, key)
	}
	found, err = p.call(ctx, wakeScript, args...).Int64Slice()
	if err == nil && len(found) != len(keys) {
		err = luascript.ErrReply
	}
	if err != nil {
		return nil, redisError(ctx, "wake", err)
	}
	return found, nil
}

// hasQueuedAfter reports whether others may be queued after a message. One that was parked between
// the claim and the lease is not in queuedAfter, and its reservation is older than the lease.
func (p *partition) hasQueuedAfter(ctx context.Context, m Message) bool {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	pipe := p.queue.rdb.Pipeline()
	last := pipe.ZRevRangeByLex(ctx, p.keys[keyFIFOs], &redis.ZRangeBy{Max: "(" + m.Key + "\n~", Min: "[" + m.Key + "\n", Count: 1})
	quiet := pipe.ZLexCount(ctx, p.keys[keyFIFOs], "["+m.Key+"\n\x7f", "("+m.Key+"\v")
	if _, err := pipe.Exec(ctx); err != nil || quiet.Val() > 0 {
		return true
	}
	for _, place := range last.Val() {
		id, _ := splitPlace(place)
		return id != m.ID
	}
	return false
}

// cancel ends queued messages. It reports for each whether it cancelled it: one that is too old expires.
func (p *partition) cancel(ctx context.Context, ids ...string) ([]bool, error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	reply, err := p.change(ctx, cancelScript, nil, args...)
	return yes(ctx, "cancel", len(ids), reply, err)
}

// What redrive.lua answers.
const (
	wordRedriven = "redriven"
	wordDamaged  = "damaged"
)

// A letter is a dead letter as it was seen: it may have been redriven since, and have
// died again.
type deadLetter struct {
	id   string
	died string // as its ending has it; "" whenever that was
}

// redrive puts dead letters back into the queue. It returns a word for each.
func (p *partition) redrive(ctx context.Context, maxAge time.Duration, deadLetters ...deadLetter) ([]string, error) {
	args := []any{p.queue.admission, ceilMilliseconds(maxAge)}
	words, ids := make([]string, len(deadLetters)), make([]string, len(deadLetters))
	for i, l := range deadLetters {
		args, ids[i] = append(args, l.id, l.died), l.id
	}
	reply, err := p.change(ctx, redriveScript, ids, args...)
	if err == nil && len(reply) != len(deadLetters) {
		err = luascript.ErrReply
	}
	if err != nil {
		return nil, redisError(ctx, "redrive", err)
	}
	for i := range reply {
		words[i], _ = reply[i].(string)
	}
	return words, nil
}

// purge forgets dead letters. It reports for each whether nothing is left of it.
func (p *partition) purge(ctx context.Context, deadLetters ...deadLetter) ([]bool, error) {
	var args []any
	for _, l := range deadLetters {
		args = append(args, l.id, l.died)
	}
	reply, err := p.change(ctx, purgeScript, nil, args...)
	return yes(ctx, "purge", len(deadLetters), reply, err)
}

// yes is whether a script answered 1, for each of n.
func yes(ctx context.Context, op string, n int, reply []any, err error) ([]bool, error) {
	if err == nil && len(reply) != n {
		err = luascript.ErrReply
	}
	if err != nil {
		return nil, redisError(ctx, op, err)
	}
	all := make([]bool, n)
	for i := range reply {
		all[i] = reply[i] == int64(1)
	}
	return all, nil
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func ceilMilliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d%time.Millisecond > 0 { // to add to d first could overflow
		ms++
	}
	return ms
}
