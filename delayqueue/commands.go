package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/luascript"
)

// The scripts, called. go-redis may send each of them again when a reply is
// lost; each answers its second run as it answered the first.

// commandPatience bounds a script call, for clients whose commands are bounded by their
// ctx alone.
const commandPatience = 10 * time.Second

func (p *partition) call(ctx context.Context, script *luascript.Script, args ...any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, commandPatience)
	defer cancel()
	args = append([]any{p.queue.retention.Milliseconds(), p.queue.deadRetention.Milliseconds()}, args...)
	return script.Run(ctx, p.queue.rdb, p.keys, args...)
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

// enqueueing is a job on its way into the queue.
type enqueueing struct {
	ctx     context.Context // the caller's
	job     Job
	expires time.Time
	err     error
	done    chan struct{} // closed when the others are set
}

func (p *partition) enqueue(batch []*enqueueing) {
	q := p.queue
	args := make([]any, 0, 2+8*len(batch))
	args = append(args, q.maxDepth, q.maxDepthPerKey)
	for _, e := range batch {
		j := e.job
		// Rounded up: a message is never early, and not too old when it comes.
		args = append(args, j.ID, j.Key, j.Name, j.Payload, ceilMilliseconds(j.Delay), ceilMilliseconds(j.MaxAge), j.Principal, bit(j.parked))
	}
	ctx := context.Background()
	reply, err := p.call(ctx, enqueueScript, args...).Int64Slice()
	if err == nil && len(reply) != len(batch) {
		err = luascript.ErrReply
	}
	if err != nil {
		err = redisError(ctx, "enqueue", err)
	}
	for i, e := range batch {
		switch {
		case err != nil:
			e.err = err
		case reply[i] >= 0:
			e.expires = time.UnixMilli(reply[i])
		case reply[i] == -1:
			e.err = fmt.Errorf("delayqueue: enqueue in %q for key %q: %w", q.name, e.job.Key, ErrKeyFull)
		case reply[i] == -2:
			e.err = fmt.Errorf("delayqueue: enqueue in %q: %w", q.name, ErrQueueFull)
		default:
			e.err = fmt.Errorf("delayqueue: enqueue in %q: what redis holds under id %q is not a message", q.name, e.job.ID)
		}
		close(e.done)
	}
}

// batch is what a claim brought.
type batch struct {
	messages []Message
	left     []time.Duration // for which each may be started
	// wait is how long there is nothing to do.
	wait time.Duration
	// spent: the token was used before, and nothing is left of what it took.
	spent bool
	// What the claim tidied up: messages of dead workers that are due again,
	// messages that became too old, and new dead letters.
	redelivered, expired, buried int64
	// Keys that have no messages any more, which nobody ran.
	emptied []string
}

func (p *partition) claim(ctx context.Context, token string, lease time.Duration, n int) (b batch, err error) {
	reply, err := p.call(ctx, claimScript, token, lease.Milliseconds(), n, p.queue.maxAttempts, claimBytes).Slice()
	if err != nil {
		return batch{}, redisError(ctx, "claim", err)
	}
	if len(reply) < 5 {
		return batch{}, redisError(ctx, "claim", luascript.ErrReply)
	}
	wait, ok := reply[0].(int64)
	b.wait, b.spent = time.Duration(max(wait, 0))*time.Millisecond, wait < 0
	for i, n := range []*int64{&b.redelivered, &b.expired, &b.buried} {
		var is bool
		*n, is = reply[1+i].(int64)
		ok = ok && is
	}
	keys, are := reply[4].([]any)
	ok = ok && are
	for _, key := range keys {
		name, is := key.(string)
		b.emptied = append(b.emptied, name)
		ok = ok && is
	}
	for _, f := range reply[5:] {
		m, left, is := readMessage(f)
		b.messages, b.left = append(b.messages, m), append(b.left, left)
		ok = ok && is
	}
	if !ok {
		return batch{}, redisError(ctx, "claim", luascript.ErrReply)
	}
	return b, nil
}

// readMessage reads what a script told of a message, and for how long it may be started.
func readMessage(fields any) (m Message, left time.Duration, ok bool) {
	f, ok := fields.([]any)
	if !ok || len(f) != 14 {
		return m, 0, false
	}
	var texts [5]string
	for i, at := range [5]int{0, 1, 2, 3, 9} {
		if texts[i], ok = f[at].(string); !ok {
			return m, 0, false
		}
	}
	var n [9]int64
	for i, at := range [9]int{4, 5, 6, 7, 8, 10, 11, 12, 13} {
		if n[i], ok = f[at].(int64); !ok {
			return m, 0, false
		}
	}
	m.ID, m.Key, m.Name, m.Payload, m.Principal = texts[0], texts[1], texts[2], []byte(texts[3]), texts[4]
	m.Attempt, m.Conflicts, m.Losses = int(n[0]), int(n[1]), int(n[2])
	m.EnqueuedAt, m.ExpiresAt = time.UnixMilli(n[3]), time.UnixMilli(n[4])
	m.behind, m.parked, m.handed = int(n[5]), n[6] == 1, int(n[8])
	return m, time.Duration(n[7]) * time.Millisecond, true
}

// extend lengthens claims, and reports for each whether it is still held.
func (p *partition) extend(ctx context.Context, lease time.Duration, claims []*claim) ([]bool, error) {
	args := make([]any, 0, 1+3*len(claims))
	args = append(args, lease.Milliseconds())
	for _, c := range claims {
		args = append(args, c.message.ID, c.message.Key, c.token)
	}
	reply, err := p.call(ctx, extendScript, args...).Int64Slice()
	if err == nil && len(reply) != len(claims) {
		err = luascript.ErrReply
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

// settling is a claim on its way to its end.
type settling struct {
	claim   *claim
	verdict verdict
	lease   time.Duration // of what is claimed next

	settled settled
	err     error
	done    chan struct{} // closed when the others are set
}

func (c *claim) end(v verdict, lease time.Duration) *settling {
	return &settling{claim: c, verdict: v, lease: lease, done: make(chan struct{})}
}

// settled is what a settlement came to.
type settled struct {
	held    bool          // the claim was the caller's
	expired bool          // the message became too old for its next attempt
	next    *Message      // claimed
	left    time.Duration // for which it may be started
	anyDue  bool          // a message is due now
	sent    time.Time
}

var settleWords = map[Outcome]string{
	OutcomeDone: "done", OutcomeDead: "dead", OutcomeRetry: "retry", OutcomeConflict: "conflict", OutcomeReturned: "return",
}

func (p *partition) settle(batch []*settling) {
	args := make([]any, 0, 1+11*len(batch))
	lease := time.Duration(0)
	for _, s := range batch {
		lease = max(lease, s.lease)
	}
	args = append(args, lease.Milliseconds())
	for _, s := range batch {
		m, v := s.claim.message, s.verdict
		how := settleWords[v.outcome]
		if v.foreign {
			how = "hand back"
		}
		args = append(args, m.ID, m.Key, s.claim.token, how, ceilMilliseconds(v.delay),
			p.queue.sealed(kindCause, m, []byte(v.cause())), bit(v.lost), bit(v.awaitsKey), p.queue.sealed(kindResult, m, v.result), v.next, v.which)
	}
	ctx, sent := context.Background(), time.Now()
	reply, err := p.call(ctx, settleScript, args...).Slice()
	anyDue := false
	if err == nil {
		if len(reply) != len(batch)+1 {
			err = luascript.ErrReply
		} else {
			anyDue = reply[len(batch)] == int64(1)
		}
	}
	for i, s := range batch {
		if err != nil {
			s.err = redisError(ctx, "settle", err)
		} else if s.settled, s.err = readSettled(reply[i]); s.err != nil {
			s.err = redisError(ctx, "settle", s.err)
		}
		s.settled.anyDue, s.settled.sent = anyDue, sent
		close(s.done)
	}
}

// sealed is what is stored of a message that has an outcome: nothing of nothing.
func (q *Queue) sealed(kind string, m Message, plain []byte) []byte {
	if len(plain) == 0 {
		return nil
	}
	stored, err := q.sealer.seal(kind, m.sealedOf(), plain)
	if err != nil {
		return nil // too large for Redis: both are bounded far below
	}
	return stored
}

func readSettled(reply any) (s settled, err error) {
	f, ok := reply.([]any)
	if !ok || len(f) < 1 {
		return s, luascript.ErrReply
	}
	if f[0] == int64(-1) && len(f) > 1 {
		return s, fmt.Errorf("%v", f[1])
	}
	switch f[0] {
	case int64(0):
	case int64(1):
		s.held = true
	case int64(2):
		s.held, s.expired = true, true
	default:
		return s, luascript.ErrReply
	}
	if len(f) > 1 && f[1] != nil {
		m, left, ok := readMessage(f[1])
		if !ok {
			return s, luascript.ErrReply
		}
		s.next, s.left = &m, left
	}
	return s, nil
}

// What nudge.lua found of a key.
const (
	nudgeEmpty = iota // it has no messages
	nudgeBusy         // its head runs, or waits for something else
	nudgeWoken        // its head is due now
)

// nudge makes the heads of keys due that wait for nothing but their key.
func (p *partition) nudge(ctx context.Context, keys []string) (found []int64, err error) {
	args := make([]any, len(keys))
	for i, key := range keys {
		args[i] = key
	}
	found, err = p.call(ctx, nudgeScript, args...).Int64Slice()
	if err == nil && len(found) != len(keys) {
		err = luascript.ErrReply
	}
	if err != nil {
		return nil, redisError(ctx, "nudge", err)
	}
	return found, nil
}

// hasBehind reports whether a message may have others behind it. What was parked between
// its claim and its lease is not in behind, and its reservation is older than the lease.
func (p *partition) hasBehind(ctx context.Context, m Message) bool {
	ctx, cancel := context.WithTimeout(ctx, commandPatience)
	defer cancel()
	last, err := p.queue.rdb.LIndex(ctx, p.base+":order:"+m.Key, -1).Result()
	return last != m.ID && !errors.Is(err, redis.Nil)
}

// cancel ends queued messages. It returns the states that it found, "" for none.
func (p *partition) cancel(ctx context.Context, ids ...string) ([]string, error) {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return words(ctx, "cancel", len(ids), p.call(ctx, cancelScript, args...))
}

// What redrive.lua and purge.lua answer, beside the state of what they left alone.
const (
	wordRedriven  = "redriven"
	wordPurged    = "purged"
	wordKeyFull   = "key full"
	wordQueueFull = "queue full"
	wordDamaged   = "damaged: " // and why
)

// A letter is a dead letter as it was seen: it may have been redriven since, and have
// died again.
type letter struct {
	id   string
	died string // in ms; "" whenever that was
}

// redrive puts dead letters back into the queue. It returns a word for each.
func (p *partition) redrive(ctx context.Context, maxAge time.Duration, letters ...letter) ([]string, error) {
	args := []any{p.queue.maxDepth, p.queue.maxDepthPerKey, ident.Random(16), ceilMilliseconds(maxAge)}
	for _, l := range letters {
		args = append(args, l.id, l.died)
	}
	return words(ctx, "redrive", len(letters), p.call(ctx, redriveScript, args...))
}

// purge forgets dead letters. It returns a word for each.
func (p *partition) purge(ctx context.Context, letters ...letter) ([]string, error) {
	args := []any{ident.Random(16)}
	for _, l := range letters {
		args = append(args, l.id, l.died)
	}
	return words(ctx, "purge", len(letters), p.call(ctx, purgeScript, args...))
}

// words are what a script answered, one for each of n.
func words(ctx context.Context, op string, n int, reply *redis.Cmd) ([]string, error) {
	all, err := reply.StringSlice()
	if err == nil && len(all) != n {
		err = luascript.ErrReply
	}
	if err != nil {
		return nil, redisError(ctx, op, err)
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
