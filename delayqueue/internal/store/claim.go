package store

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/unixms"
)

// Message is a message that was claimed.
type Message struct {
	ID, Key, Name, Principal            string
	Payload                             []byte
	Attempts, Conflicts, Losses, Handed int // this attempt counts
	Cause                               string
	EnqueuedAt, ExpiresAt               time.Time
	Due                                 time.Time     // since when it could be started; zero: not known
	Left                                time.Duration // for which it could be started when it was claimed
	QueuedAfter                         bool          // others of its key were queued after it
	Parked                              bool          // until now it waited only for its key
	Alone                               bool          // it was to run alone in the attempt before
	Damage                              string        // why its record cannot be read; empty: it can
	coalesces                           bool          // a newer job might have replaced it
	long                                bool          // its payload is too long for its record
	given                               bool          // the caller gave its id
	size                                int           // of its record and its payload
	seq                                 string        // its sequence number in its key's FIFO
	state                               string        // its attempts as Redis has them
}

// Batch is what a claim brought.
type Batch struct {
	Messages []*Message
	// Wait is how long there is nothing to do.
	Wait time.Duration
	// Spent: the token was used before, and nothing is left of what it took.
	Spent bool
	// What the claim reaped: messages of dead workers that are due again, and
	// messages that became too old.
	Redelivered, Expired int64
	// Keys that have no messages any more, which nobody ran.
	Emptied []string
	// What there was of each key that may have been free.
	Freed []Woken
}

const (
	// ClaimHead is how much a claim's reply has before its messages.
	ClaimHead  = 8
	claimBytes = 1 << 20 // of payload
)

// Claim makes the heads of keys due that wait for nothing but their key, as [Partition.Wake] does; then it claims up to n messages
// for so long. With a token that was used before it brings what is left of what that took.
func (p *Partition) Claim(ctx context.Context, token string, lease time.Duration, n int, freed ...string) (b Batch, err error) {
	args := append(make([]any, 0, 4+len(freed)), token, lease.Milliseconds(), n, claimBytes)
	for _, key := range freed {
		args = append(args, key)
	}
	reply, err := p.change(ctx, claimScript, nil, args...)
	if err != nil {
		return Batch{}, Unavailable(ctx, "claim", err)
	}
	if len(reply) < ClaimHead {
		return Batch{}, Unavailable(ctx, "claim", luascript.ErrReply)
	}
	wait, ok := reply[0].(int64)
	b.Wait, b.Spent = time.Duration(max(wait, 0))*time.Millisecond, wait < 0
	for i, n := range []*int64{&b.Redelivered, &b.Expired} {
		var is bool
		*n, is = reply[1+i].(int64)
		ok = ok && is
	}
	keys, are := reply[3].([]any)
	ok = ok && are
	for _, key := range keys {
		name, is := key.(string)
		b.Emptied = append(b.Emptied, name)
		ok = ok && is
	}
	now, is := p.readClock(reply[4])
	ok = ok && is
	back, is := reply[5].(int64)
	ok = ok && is
	p.noteBack(back)
	p.noteForgotten(reply[6])
	found, are := reply[7].([]any)
	ok = ok && are && len(found) == len(freed)
	for _, what := range found {
		n, is := what.(int64)
		b.Freed = append(b.Freed, Woken(n))
		ok = ok && is
	}
	for _, f := range reply[ClaimHead:] {
		m, is := readMessage(f, now)
		b.Messages = append(b.Messages, m)
		ok = ok && is
	}
	if !ok {
		return Batch{}, Unavailable(ctx, "claim", luascript.ErrReply)
	}
	if err := p.fetch(ctx, lease, b.Messages); err != nil { // to claim again with the token brings them again
		return Batch{}, Unavailable(ctx, "claim", err)
	}
	return b, nil
}

// messageFields is the number of fields of a message in a script's reply.
const messageFields = 6

// readMessage reads a message in a script's reply: its member, record, attempts, 1 if others
// are queued after it, 1 if it waited for its key, since when it was due if that is known. By the partition's clock it is now.
func readMessage(reply any, now time.Time) (m *Message, ok bool) {
	f, ok := reply.([]any)
	if !ok || len(f) != messageFields {
		return nil, false
	}
	var texts [3]string
	for i := range texts {
		if texts[i], ok = f[i].(string); !ok {
			return nil, false
		}
	}
	r, readable := readRecord(texts[1])
	a, counted := ReadAttempts(texts[2][min(1, len(texts[2])):])
	m = &Message{QueuedAfter: f[3] == int64(1), Parked: f[4] == int64(1), state: texts[2], size: len(texts[1]) + r.longSize}
	m.Alone = len(m.state) > markLen && m.state[1:1+markLen] == markAlone
	m.ID, m.Key, _ = strings.Cut(texts[0], " ")
	if due, is := f[5].(string); is {
		if ms, err := strconv.ParseFloat(due, 64); err == nil {
			m.Due = unixms.Time(int64(ms))
		}
	}
	if !readable || !counted || r.key != m.Key {
		m.Damage = "the record cannot be read"
		return m, true
	}
	m.Name, m.Principal, m.Payload, m.long, m.given, m.seq = r.name, r.principal, []byte(r.payload), r.long, r.given, r.seq
	m.Attempts, m.Conflicts, m.Losses, m.Handed, m.Cause = a.Attempts, a.Conflicts, a.Losses, a.Handed, a.Cause
	m.EnqueuedAt, m.ExpiresAt = unixms.Time(r.enqueued), unixms.Time(r.notAfter)
	m.Left = m.ExpiresAt.Sub(now)
	m.coalesces = texts[1][1] == flagCoalesces || texts[1][1] == flagParkedCoalesces
	return m, true
}

// readClock reads a time of Redis, and notes it.
func (p *Partition) readClock(reply any) (time.Time, bool) {
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

// noteForgotten takes what a script says of the dead letters that it forgot for lack of room: how
// many, and the name of the last.
func (p *Partition) noteForgotten(reply any) {
	text, _ := reply.(string)
	count, name, _ := strings.Cut(text, " ")
	if n, err := strconv.Atoi(count); err == nil && n > 0 {
		p.store.Forgotten(n, name)
	}
}

// noteBack takes from a script by how much the partition's clock is ahead of that of Redis, in ms.
func (p *Partition) noteBack(ahead int64) {
	known := p.back.Load()
	if step := ahead - known; (step < 0 || step >= 1000) && p.back.CompareAndSwap(known, ahead) && step > 0 {
		p.store.SetBack(time.Duration(ahead) * time.Millisecond)
	}
}

// Extend lengthens claims, over a client, and reports for each whether it is still held. Alone: a message is about to run
// alone, and Redis is to know it.
func (p *Partition) Extend(ctx context.Context, rdb redis.UniversalClient, lease time.Duration, alone bool, claimed ...*Message) ([]bool, error) {
	args := make([]any, 0, 2+3*len(claimed))
	args = append(args, lease.Milliseconds(), bit(alone))
	var long []string
	for _, m := range claimed {
		if m.long {
			long = append(long, m.ID)
		}
		args = append(args, m.ID, m.Key, m.state)
	}
	reply, err := p.callWith(ctx, rdb, extendScript, long, args...).Slice()
	return yes(ctx, "extend", len(claimed), reply, err)
}
