package delayqueue

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/internal/luascript"
)

// Stats are counts of a queue's messages, by the clock of Redis; see [Queue.Stats].
type Stats struct {
	// Queued, Running and Dead are how many messages are in these states now. Messages
	// that are too old count as Queued until a worker or an Enqueue ends them.
	Queued, Running, Dead int64
	// Due is how many could be started now, as far as the queue knows: keyless
	// messages, and the first of each key. Their key may nevertheless be held.
	Due int64
	// OldestDue is since when the first of them has been due, and Lateness for how
	// long: how late the workers are. Both are zero if nothing is due.
	OldestDue time.Time
	Lateness  time.Duration
	// SinceLastClaim is for how long no worker has claimed in a partition where messages are due: the longest such time.
	// It is zero if nothing is due, and can be some seconds too long.
	SinceLastClaim time.Duration
	// Paused: at least one partition is paused, so that no message is started there. PausedUntil is when
	// the last pause ends.
	Paused      bool
	PausedUntil time.Time
	// Halted is how many keys a dead letter halts; see [WithHaltOnDeath].
	Halted int64
	// ClockBack is by how much the clock of Redis was set back while the queue was in use, and not put right since, in the
	// partition where that was most. Work goes on; times that the queue tells are ahead of that clock by as much.
	ClockBack time.Duration
	// Bytes is how much memory all messages take, as [WithMaxBytes] counts it.
	Bytes int64
	// Partitions is how many partitions the queue has; see [WithPartitions].
	Partitions int
	// Totals count from the first use of the queue. Redis forgets them when nothing
	// was counted for as long as dead letters are stored.
	Totals Totals
}

// Totals count what has happened in a queue. A monitoring system reads them as counters.
type Totals struct {
	// Enqueued counts jobs that were stored, each id once for as long as it is
	// remembered.
	Enqueued int64
	// Retried counts failed attempts after which there was to be another one.
	Retried int64
	// Done, Expired, Cancelled and Died count how messages ended. What was redriven
	// ends once more.
	Done, Expired, Cancelled, Died int64
	// Superseded counts messages that a newer one replaced.
	Superseded int64
	// Redriven and Purged count the dead letters that were redriven and purged.
	Redriven, Purged int64
}

// Stats counts the queue's messages. It takes two round trips, and Redis O(log n) in each
// partition, with n messages in it. A damaged entry is not counted, or counts as the message in
// whose place it is.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	m, err := q.reread(ctx, "stats")
	if err != nil {
		return Stats{}, err
	}
	spans := slices.Clone(q.spans)
	if q.operator { // how long dead letters are kept it does not know
		spans[1] = maxDuration.Milliseconds()
	}
	calls := q.each(ctx, m.partitions, statsScript, spans...)
	s := Stats{Partitions: len(m.partitions)}
	for _, call := range calls {
		if err := s.add(call.Cmd); err != nil {
			return Stats{}, redisError(ctx, "stats", err)
		}
	}
	return s, nil
}

// add adds what stats.lua answered of a partition.
func (s *Stats) add(cmd *redis.Cmd) error {
	reply, err := cmd.Slice()
	if err != nil {
		return err
	}
	if len(reply) != 10 {
		return luascript.ErrReply
	}
	now, first := number(reply[0]), number(reply[6])
	all, deadLetters, running, dead, due, halted := number(reply[1]), number(reply[2]), number(reply[3]), number(reply[4]), number(reply[5]), number(reply[7])
	s.Queued += max(0, all-deadLetters-running)
	s.Running, s.Dead, s.Due, s.Halted = s.Running+running, s.Dead+dead, s.Due+due, s.Halted+halted
	if at := time.UnixMilli(first); due > 0 && reply[6] != "" {
		if s.OldestDue.IsZero() || at.Before(s.OldestDue) {
			s.OldestDue = at
		}
		s.Lateness = max(s.Lateness, time.Duration(now-first)*time.Millisecond) // each by the clock of its node
	}
	s.ClockBack = max(s.ClockBack, time.Duration(number(reply[9]))*time.Millisecond)
	fields, _ := reply[8].([]any)
	if len(fields) != statsFields {
		return luascript.ErrReply
	}
	if claimed := number(fields[0]); due > 0 && claimed > 0 {
		s.SinceLastClaim = max(s.SinceLastClaim, time.Duration(now-claimed)*time.Millisecond)
	}
	if paused := number(fields[1]); paused > now {
		s.Paused, s.PausedUntil = true, later(s.PausedUntil, time.UnixMilli(paused))
	}
	for _, n := range fields[2:5] {
		s.Bytes += number(n)
	}
	for i, sum := range s.Totals.fields() {
		*sum += number(fields[5+i])
	}
	return nil
}

const statsFields = 5 + 9 // of c, that stats.lua answers

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

// fields are in the order in which stats.lua answers them.
func (t *Totals) fields() [9]*int64 {
	return [...]*int64{&t.Enqueued, &t.Done, &t.Retried, &t.Expired, &t.Cancelled, &t.Died, &t.Redriven, &t.Purged, &t.Superseded}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
