package delayqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/trust"
)

const (
	settleBefore = 20 * time.Millisecond // backoff while Redis does not answer
	settleMost   = time.Second
)

// settle ends a claim: send the outcome → take the next message with the reply. It returns the
// claim of that message, if there is one. While Redis does not reply it tries again, until the
// claim or the time of Stop is over.
func (w *Worker) settle(c *claim, v outcome) (next *claim) {
	w.slots.ended(c)
	w.claims.settle(c)
	// Where there are several partitions, each has a slot for a while only.
	leaves := len(*w.fetchers.Load()) > 1 && !v.ofKey && time.Since(c.since) > turnLength
	if !v.last && !leaves && !w.slots.full() && !w.isStopping() && !w.paused.Load() {
		v.next = newToken()
	}
	told := OutcomeLate
	s := c.end(v, w.lease)
	for try := 1; ; try++ {
		if !awaited(w.ctx, c.partition.Settle(s)) {
			v.err = errors.Join(ErrClaimLost, ErrStopped, v.err)
			break
		}
		if s.Err == nil {
			if next = w.settled(c, s, v.next); s.Held {
				told = outcomes[s.End]
			} else {
				v.err = errors.Join(ErrClaimLost, v.err)
			}
			break
		}
		pause := backoff.Full(try, settleBefore, settleMost)
		if time.Now().Add(pause).After(w.claims.until(c)) || !w.sleep(pause) {
			v.err = errors.Join(ErrClaimLost, s.Err, v.err)
			break
		}
	}
	w.conclude(c, v, told)
	return next
}

// newToken is a name for a claim, of some 13 letters and digits. It need not be hard to guess: who
// can reach Redis needs none.
func newToken() string { return strconv.FormatUint(rand.Uint64(), 36) }

// settled takes the result of a settlement, and returns the next claim, if there is one.
func (w *Worker) settled(c *claim, s *store.Settlement, token string) (next *claim) {
	if s.AnyDue {
		w.wakeFetchers(c.partition.Base, 0) // without waiting for our own announcement
	}
	if s.Claimed != nil {
		next = w.claims.add(w.ctx, w.queue, c.partition, s.Claimed, token, trust.Until(s.Sent, w.lease))
		next.since, next.startBy, next.whilePaused = c.since, s.Sent.Add(s.Claimed.Left), w.paused.Load()
	}
	return next
}

// end says how a claim is to be settled, and the next message claimed for so long.
func (c *claim) end(v outcome, lease time.Duration) *store.Settlement {
	s := &store.Settlement{
		Message: c.stored, Token: c.token, End: v.end, Lost: v.lost, Halts: halts[c.queue.halt], Delay: v.delay,
		Next: v.next, OfKey: v.ofKey, Lease: lease,
	}
	if v.end == store.Failed && !c.startBy.IsZero() && time.Until(c.startBy) <= v.delay {
		s.End = store.Outlived
	}
	if s.End.HasCause() {
		s.Cause = c.queue.sealer.sealed(kindCause, c.message.sealedOf(), []byte(v.cause()))
	}
	if v.end == store.Finished || v.end == store.Died && len(v.result) <= maxDeadResult {
		s.Result = c.queue.sealer.sealed(kindResult, c.message.sealedOf(), v.result)
	}
	return s
}

// conclude ends a claim that was settled, and reports it.
func (w *Worker) conclude(c *claim, v outcome, told Outcome) {
	defer c.cancel(nil)
	defer w.slots.endAlone(c)
	defer w.claims.drop(c)
	w.logSettled(c, v, told)
	observe(w.log, func() {
		w.observer.OnSettled(c.ctx, Settled{
			Queue: w.queue.name, Message: c.message, Outcome: told, Err: v.err, Encrypted: w.queue.sealer != nil, Delay: v.delay, Took: time.Since(c.taken),
		})
	})
}

// stopTimeout is how long a settlement is waited for when Stop's time is over.
const stopTimeout = 3 * time.Second

// awaited waits for a settlement. It reports false when Stop's time is over, which ends ctx, and Redis
// does not answer.
func awaited(ctx context.Context, settled <-chan struct{}) bool {
	select {
	case <-settled:
		return true
	case <-ctx.Done():
	}
	select {
	case <-settled:
		return true
	case <-time.After(stopTimeout):
		return false
	}
}

// sleep waits for d. It reports false when Stop's time is over.
func (w *Worker) sleep(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-w.ctx.Done():
		return false
	}
}

func (w *Worker) logSettled(c *claim, v outcome, told Outcome) {
	level := slog.LevelDebug
	switch told {
	case OutcomeDead, OutcomeExpired, OutcomeLate:
		level = slog.LevelWarn
	case OutcomeRetry:
		level = slog.LevelInfo
	default:
	}
	if !w.log.Enabled(context.Background(), level) {
		return
	}
	m := c.message
	attrs := []slog.Attr{
		slog.String("id", m.ID), slog.String("key", m.Key), slog.String("name", m.Name),
		slog.String("outcome", string(told)), slog.Int("attempt", m.Attempt), slog.Duration("took", time.Since(c.taken)),
	}
	if v.err != nil && w.queue.sealer != nil { // Redis has its text sealed
		attrs = append(attrs, slog.String("error", fmt.Sprintf("a %s that is not shown, since the queue is encrypted", innermost(v.err))))
	} else if v.err != nil {
		attrs = append(attrs, slog.String("error", v.cause()))
	}
	w.log.LogAttrs(context.Background(), level, "delayqueue: message settled", attrs...)
}

// innermost is the type of the error that err wraps at last.
func innermost(err error) string {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return fmt.Sprintf("%T", err)
}
