package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
	"github.com/perkey-go/perkey/internal/unixms"
)

// Repartition changes the number of the queue's partitions, for all its processes, while they run.
// Stored messages stay where they are, and are run from there. New messages are stored in the new
// partitions, and those of a key run after its older ones. Workers serve both until nothing is left
// in the old partitions, including dead letters and the status of messages that have ended. Until
// then an Enqueue with an ID of the caller's takes one more round trip for each older generation of
// partitions. As long as an older one has queued or running messages, or halted keys, each turn
// with a key and each Enqueue with Coalesce takes one more too, and each message that was enqueued
// with Coalesce two. [Stats].OlderPartitions tells.
//
// n is 1 to 1024, else the error is [ErrInvalidArgument]. If the queue has n partitions already,
// nothing changes. While the partitions of seven older generations still hold something, the error
// is [ErrDraining]. After another error the change may have begun: then the next process that uses
// the queue finishes it, and to call Repartition again with the same number is harmless. Two
// changes at once are made one after the other. It takes five round trips.
func (q *Queue) Repartition(ctx context.Context, n int) error {
	const op = "repartition"
	if n < 1 || n > maxPartitions {
		return invalidArgument(op, "%d partitions: want 1 to %d", n, maxPartitions)
	}
	for range manifestTries {
		m, err := q.stable(ctx, op)
		if err != nil {
			return err
		}
		if m.current().size == n {
			return nil
		}
		if len(m.generations) == maxGenerations {
			return fmt.Errorf("delayqueue: repartition of %q: %w: the generations %s: let workers empty the oldest, and purge or redrive its dead letters",
				q.name, ErrDraining, text(m.generations))
		}
		begun, err := q.begin(ctx, op, m, fmt.Sprintf("%d:%d", m.current().number+1, n))
		if err != nil {
			return err
		}
		if begun {
			if _, err = q.stable(ctx, op); err == nil {
				q.wakeAll(ctx) // workers serve the new partitions from now on
			}
			return err
		}
	}
	return redisError(ctx, op, errors.New("the manifest changes all the time"))
}

// begin writes the intent into the manifest: the generation that is to follow. It reports whether
// the intent is there.
func (q *Queue) begin(ctx context.Context, op string, m *manifest, next string) (bool, error) {
	if q.operator {
		return false, q.operatorOnly(op)
	}
	now, err := q.callManifest(ctx, op, m.revision, "next", next)
	return err == nil && now.next == next && text(now.generations) == text(m.generations), err
}

// closeCurrent closes the partitions of the current generation, and pauses those of the next for as long.
func (q *Queue) closeCurrent(ctx context.Context, op string, m *manifest, next generation) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	for paused := int64(0); ; { // until both are, or neither is: somebody may resume the queue meanwhile
		now := int64(0)
		for _, call := range q.each(ctx, m.current().partitions, closeScript, append(q.spans, next.String())...) {
			left, err := readLeft(call.Cmd, 0)
			if err != nil {
				return redisError(ctx, op, err)
			}
			now = max(now, left.paused)
		}
		if (now > 0) == (paused > 0) {
			return nil
		}
		for _, call := range q.each(ctx, next.partitions, untilScript, append(q.spans, "paused", now)...) {
			if err := call.Err(); err != nil {
				return redisError(ctx, op, err)
			}
		}
		paused = now
	}
}

// left is what a closed partition holds.
type left struct {
	paused int64 // for so many ms more
	keys   int64 // of its keys in Redis, for which it is needed
	open   int64 // messages that are queued or run, and keys that are halted
	has    []int64
}

// What a closed partition has of a key.
const (
	olderNone     = iota
	olderMessages // that are to run before newer ones
	olderHalt     // a dead letter that halts the key's messages
)

func readLeft(cmd *redis.Cmd, n int) (l left, err error) {
	reply, err := cmd.Int64Slice()
	if err != nil {
		return l, err
	}
	if len(reply) != 3+n {
		return l, luascript.ErrReply
	}
	return left{paused: reply[0], keys: reply[1], open: reply[2], has: reply[3:]}, nil
}

// follow finds the generation after a partition that is closed, when the manifest has none. The
// manifest may have lost its last writes in a failover: then the partition knows it.
func (q *Queue) follow(ctx context.Context, op string, p *partition) error {
	m, err := q.stable(ctx, op)
	if err != nil || m.current().number != p.generation {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	closed, err := q.rdb.HGet(ctx, p.keys[keyCounts], "closed").Result()
	if errors.Is(err, redis.Nil) {
		return nil // not any more
	} else if err != nil {
		return redisError(ctx, op, err)
	}
	_, next, _ := strings.Cut(closed, " ")
	if number, _, ok := readGeneration(next); !ok || number <= p.generation {
		next = generation{number: p.generation + 1, size: m.current().size}.String()
	}
	if _, err := q.begin(ctx, op, m, next); err != nil {
		return err
	}
	_, err = q.stable(ctx, op)
	return err
}

// dropEmpty removes the older generations that hold nothing any more from the manifest.
func (q *Queue) dropEmpty(ctx context.Context, m *manifest) error {
	const op = "look after older partitions"
	last := len(m.generations) - 1
	var kept []generation
	sum := Stats{Totals: m.totals}
	for i, g := range m.generations[:last] {
		keys := int64(0)
		for _, call := range q.each(ctx, g.partitions, closeScript, append(q.spans, m.generations[i+1].String())...) {
			left, err := readLeft(call.Cmd, 0)
			if err != nil {
				return redisError(ctx, op, err)
			}
			keys += left.keys
		}
		if keys > 0 {
			kept = append(kept, g)
			continue
		}
		for _, call := range q.each(ctx, g.partitions, statsScript, q.spans...) {
			if err := sum.add(call.Cmd); err != nil {
				return redisError(ctx, op, err)
			}
		}
	}
	if len(kept) == last {
		return nil
	}
	_, err := q.callManifest(ctx, op, m.revision, "generations", text(append(kept, m.current())), "totals", sum.Totals.text())
	return err
}

// olderHas returns what an older generation has of a message's key that keeps the message from
// being run.
func (q *Queue) olderHas(ctx context.Context, p *partition, key string) (int64, error) {
	if key == "" || p.generation == 1 {
		return olderNone, nil
	}
	now := q.manifest.Load()
	if now == nil { // refused meanwhile
		return olderMessages, nil
	}
	for i, g := range now.generations {
		if g.number >= p.generation {
			break
		}
		older := partitionOf(g.partitions, key, "")
		if older.drained.Load() {
			continue
		}
		left, err := readLeft(older.call(ctx, closeScript, now.generations[i+1].String(), key), 1)
		if err != nil {
			return olderNone, redisError(ctx, "look into older partitions", err)
		}
		if left.open == 0 {
			older.drained.Store(true) // what joins from now on is carried over
		}
		if left.has[0] != olderNone {
			return left.has[0], nil
		}
	}
	return olderNone, nil
}

// carryOver stores a claimed message of a closed partition in a newer one, while its claim lives, with which ctx ends: after that
// it may be cancelled in the closed partition, and the newer one would not know.
func (q *Queue) carryOver(ctx context.Context, c *claim) error {
	const op = "carry over"
	from, m := c.partition, c.message
	for try := range manifestTries {
		now, err := q.agreed(ctx, op)
		if err != nil {
			return err
		}
		last := from
		for _, p := range now.of(m.Key, m.ID) {
			if last = p; p.generation <= from.generation {
				continue
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if stored, err := p.adopt(ctx, op, m, time.Until(c.startBy), try > 0); stored || err != nil {
				return err
			}
		}
		if err := q.follow(ctx, op, last); err != nil {
			return err
		}
	}
	return redisError(ctx, op, errClosed)
}

// adopt stores a message that is carried over from a closed partition, and may be started for so
// long, unless it is stored here already. It ends if it coalesces and a newer one is here. It
// reports false if this partition is closed too, and no newer one is here; and if it has stored
// nothing yet and the caller is not sure: see send.
func (p *partition) adopt(ctx context.Context, op string, m Message, left time.Duration, sure bool) (bool, error) {
	m.Attempt = max(0, m.Attempt-1) // it was not tried
	flag := "-"
	if m.coalesces {
		flag = string(rune(flagCoalesces))
	}
	if m.given {
		flag = string(rune(flagGiven)) + flag
	}
	text, payload := textOf(m.Key, m.Name, m.Principal, m.Payload, p.inline())
	args := []any{p.queue.admission, howMany(1, sure), m.ID, text, fmt.Sprintf("1 %s 0 %d %sm%013d%013d%s", appendLengths(nil, m.Key, m.Name, m.Principal),
		max(0, left.Milliseconds()), flag, unixms.Of(m.EnqueuedAt), unixms.Of(m.ExpiresAt), m.attempts(""))}
	var long []string
	if payload != nil {
		long, args = append(long, m.ID), append(args, payload)
	}
	reply, err := p.change(ctx, enqueueScript, long, args...)
	_, unclaimed, exceptions, err := p.readEnqueued(1, reply, err)
	if err != nil {
		return false, redisError(ctx, op, err)
	}
	return unclaimed >= 0 && exceptions[0] != wordClosed, nil
}

// joinedLate reports whether a message joined its key's FIFO after the partition was closed: it is
// not run here. A damaged message stays, to become a dead letter: to store it anew would make it a
// whole message.
func (p *partition) joinedLate(m Message) bool {
	closed := p.closed.Load()
	return closed != nil && m.damage == "" && m.Key != "" && len(m.seq) == len(closed.seq) && m.seq > closed.seq
}

// noteClosed records whether the partition is closed, and since which number, as scripts report it
// after the time. One that was closed and is not any more was lost with all else that Redis had.
func (p *partition) noteClosed(now int64, mark string) {
	was := p.closed.Load()
	if f := strings.Fields(mark); len(f) == 2 {
		if was == nil || was.seq != f[0] {
			p.closed.Store(&closedMark{f[0], now})
		}
	} else if was != nil && now > was.at { // else the reply is from before
		p.closed.CompareAndSwap(was, nil)
	}
}
