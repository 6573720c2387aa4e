package delayqueue

import (
	"context"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
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
	m, err := q.manifests.reread(ctx, "stats")
	if err != nil {
		return Stats{}, err
	}
	var anyAge time.Duration
	if q.operator { // how long dead letters are kept it does not know
		anyAge = maxDuration
	}
	all, err := q.store.Counts(ctx, m.partitions, anyAge)
	if err != nil {
		return Stats{}, err
	}
	s := Stats{Partitions: len(all)}
	for i := range all {
		s.add(&all[i])
	}
	return s, nil
}

// add adds the counts of a partition.
func (s *Stats) add(c *store.Counts) {
	s.Queued, s.Running, s.Dead, s.Due = s.Queued+c.Queued, s.Running+c.Running, s.Dead+c.Dead, s.Due+c.Due
	s.Halted, s.Bytes, s.ClockBack = s.Halted+c.Halted, s.Bytes+c.Bytes, max(s.ClockBack, c.ClockBack)
	if at := c.OldestDue; !at.IsZero() {
		if s.OldestDue.IsZero() || at.Before(s.OldestDue) {
			s.OldestDue = at
		}
		s.Lateness = max(s.Lateness, c.Now.Sub(at)) // each by the clock of its node
	}
	if c.Due > 0 && !c.Claimed.IsZero() {
		s.SinceLastClaim = max(s.SinceLastClaim, c.Now.Sub(c.Claimed))
	}
	if c.PausedUntil.After(c.Now) {
		s.Paused = true
		if c.PausedUntil.After(s.PausedUntil) {
			s.PausedUntil = c.PausedUntil
		}
	}
	t := &s.Totals
	for i, sum := range []*int64{&t.Enqueued, &t.Done, &t.Retried, &t.Expired, &t.Cancelled, &t.Died, &t.Redriven, &t.Purged, &t.Superseded} {
		*sum += c.Totals[i]
	}
}
