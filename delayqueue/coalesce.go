package delayqueue

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/luascript"
)

// Coalesce is [Policy] for calls of which only the latest matters, such as saves of a document: for
// each key, name and principal at most one call is parked. A newer call replaces it at its place in
// the FIFO, or, if the number of partitions was changed since, at the end; see [Job].Coalesce. A
// call that was given to a handler is not replaced: while it waits for its next attempt, fresh
// calls run, and it runs after them. If it must not undo a newer call, it has to find that out by a
// version.
func Coalesce(q *Queue) core.ConflictPolicy {
	return policy{queue: q, coalesce: true}
}

// Debounce is [Coalesce] with a quiet period: a call that was parked runs when no newer one has
// arrived for quiet, and at most maxDelay after the arrival of the first of the calls that it
// replaced; a [Queue.Repartition] restarts that time. See [Job].QuietPeriod. Both are at least 1 ms and
// shorter than the queue's max age, and quiet is no longer than maxDelay.
//
// Until the call runs, its key is reserved for it, so that no fresh call runs before it and is
// undone by it. Other calls of the key meet a conflict meanwhile, so quiet should be short. A call
// whose key is neither held nor reserved runs at once: a policy is not asked about it. To make
// every call of a stream wait, enqueue jobs with Job.QuietPeriod.
func Debounce(q *Queue, quiet, maxDelay time.Duration) core.ConflictPolicy {
	return policy{queue: q, coalesce: true, debounce: true, quiet: quiet, maxDelay: maxDelay}
}

const flagCoalesces, flagParkedCoalesces, flagGiven = 'c', 'q', '='

// flags are what enqueue.lua needs to know about how a job joins the queue.
func (j Job) flags() string {
	switch {
	case !j.Coalesce && !j.parked:
		return "-"
	case !j.Coalesce:
		return "p"
	}
	flags := string(rune(flagCoalesces))
	if j.parked {
		flags = string(rune(flagParkedCoalesces))
	}
	if j.QuietPeriod > 0 {
		flags += strconv.FormatInt(ceilMilliseconds(j.MaxDelay), 10)
	}
	return flags
}

// checkQuiet returns what is wrong with a quiet period and its bound, or "".
func checkQuiet(quiet, maxDelay, maxAge time.Duration) string {
	switch {
	case quiet < time.Millisecond || quiet > maxDelay:
		return "want a quiet period of at least 1ms, and no longer than the longest delay"
	case ceilMilliseconds(maxDelay) >= ceilMilliseconds(maxAge): // it would be too old when it is due
		return "the longest delay is not shorter than the max age, " + maxAge.String()
	}
	return ""
}

// At most one message that a newer one may replace stays for each key, name and principal, also while the number of partitions
// changes. A newer one is in a newer generation, or further behind in the same one, by these steps, each of one script:
//
//   - A new message is stored in the newest generation; then its process ends those that it replaces in older ones. The worker
//     that is to run it does that once more before it looks for older messages of the key: the process may have died, or be slow.
//   - A worker that gives one back in a closed partition then looks for a newer one.
//   - One that is carried over goes from one generation to the next, and ends in the first that has a newer one, closed or not.
//     So none comes to be behind a newer one.
//
// Whoever looks into several generations begins with the oldest: meanwhile, messages only move to newer ones. A newer message is stored
// before the older one ends, so it is never lost. Two stay if a process dies, or cannot reach Redis, between two of its steps.

// supersede has a closed partition end what a newer message like m replaces, with the id by, if no handler was given it: the one
// with this id, or if that is "" whichever may be replaced. With by "" it only looks, and returns the id of the newest one.
func (p *partition) supersede(ctx context.Context, m Message, by, id string) (newest string, err error) {
	reply, err := p.change(ctx, supersedeScript, nil, m.Key, about(m.Key, m.Name, m.Principal), by, id)
	if err == nil && len(reply) != 2 {
		err = luascript.ErrReply
	}
	if err != nil {
		return "", redisError(ctx, "supersede", err)
	}
	if reply[1] == int64(1) {
		p.drained.Store(true)
	}
	newest, _ = reply[0].(string)
	return newest, nil
}

// supersedeOlder ends what a message replaces in older generations. What cannot be reached stays beside it.
func (q *Queue) supersedeOlder(ctx context.Context, m Message, older []generation) (err error) {
	for _, g := range older {
		if p := partitionOf(g.partitions, m.Key, ""); !p.drained.Load() {
			_, failed := p.supersede(ctx, m, m.ID, "")
			err = cmp.Or(err, failed)
		}
	}
	return err
}

// supersedeReturned ends a message that was given back in a closed partition if a newer one came meanwhile that replaces it.
func (w *Worker) supersedeReturned(c *claim) {
	m, err := w.queue.stable(w.ctx, "supersede")
	if err == nil {
		err = c.supersedeBy(w.ctx, m.between(c.partition.generation, math.MaxInt))
	}
	if err != nil {
		w.log.Debug("delayqueue: a message stays beside the one that replaces it", slog.Any("error", err))
	}
}

func (c *claim) supersedeBy(ctx context.Context, newer []generation) error {
	for _, g := range newer {
		by, err := partitionOf(g.partitions, c.message.Key, "").supersede(ctx, c.message, "", "")
		if err == nil && by != "" {
			_, err = c.partition.supersede(ctx, c.message, by, c.message.ID)
		}
		if err != nil || by != "" {
			return err
		}
	}
	return nil
}
