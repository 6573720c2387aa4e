package delayqueue

import (
	"sync/atomic"
	"time"
)

const (
	// While handlers take less than this, a Worker claims ahead.
	quickHandler = time.Millisecond / 2
	aheadMost    = 3 // times its concurrency, at most
	// A message that was claimed ahead goes back when it has waited for so long: another Worker may run it.
	aheadWait = 10 * time.Millisecond
)

// pace is how long handlers take: a mean of some 16 of them.
type pace struct{ mean atomic.Int64 }

// note notes how long a handler took. It reports whether handlers are quick from now on.
func (p *pace) note(took time.Duration) bool {
	before := p.mean.Load()
	after := before + (int64(min(took, aheadWait))-before)/16
	p.mean.Store(after)
	return before >= int64(quickHandler) && after < int64(quickHandler)
}

func (p *pace) quick() bool { return p.mean.Load() < int64(quickHandler) }

// ran notes how long a handler took.
func (w *Worker) ran(took time.Duration) {
	if w.pace.note(took) {
		w.claimAgain()
	}
}

// claimAgain has the claimers see that more may be claimed than before.
func (w *Worker) claimAgain() {
	for _, c := range *w.claimers.Load() {
		select {
		case c.lookAgain <- struct{}{}:
		default:
		}
	}
}

// claimsAhead reports whether more messages are to be claimed than run. Each spends an attempt if the Worker dies before it
// starts, so none is claimed ahead that has no more than one.
func (w *Worker) claimsAhead() bool {
	return w.queue.maxAttempts > 1 && w.suspects.Load() == 0 && len(w.alone) == 0 && w.pace.quick()
}

// mayRun waits until a message may be run: fewer than the Worker's concurrency are. Only one that was claimed ahead
// has to wait. It reports false when that takes too long, and at Stop.
//
// A message that has lost its worker before may have killed it, and may do so again: it runs when nothing waits beside
// it that would spend an attempt then, and its last attempt is alone.
func (w *Worker) mayRun(c *claim) bool {
	if c.message.Losses > 0 {
		c.suspect = true
		w.suspects.Add(1)
	}
	switch {
	case !w.hasPlace(c):
		return false
	case w.queue.runsAlone(c.message):
		return w.isAlone(c)
	case c.suspect: // less and less is ahead, since nothing is claimed ahead
		return w.waitUntil(c, func() bool { return len(w.ahead) == 0 })
	}
	return true
}

// runsAlone reports whether a message is to run with no other beside it: it is its last attempt, and all before were lost.
// If its worker dies now, it was this message that killed it; before, it may have been any that ran there.
func (q *Queue) runsAlone(m Message) bool {
	return m.Attempt >= q.maxAttempts && m.allLost() && q.unrunnable(m) == nil
}

// allLost reports whether the worker died in each attempt before this one, and there was one.
func (m Message) allLost() bool { return m.Losses > 0 && m.Losses >= m.Attempt-1 }

// ranAlone reports whether a message was run alone in the attempt before this one.
func (m Message) ranAlone() bool { return len(m.state) > markLen && m.state[1:1+markLen] == markAlone }

// isAlone waits until the Worker has no other message, and notes in Redis that this one runs alone. What has run for a claim's
// lease since it began to wait is not waited for any more. It reports false if another message is alone.
func (w *Worker) isAlone(c *claim) bool {
	select {
	case w.alone <- struct{}{}:
		c.alone = true
	default:
		return false
	}
	latest := time.Now().Add(w.lease)
	if !w.waitUntil(c, func() bool {
		return w.claims.count() == 1 && len(w.slots)+len(w.ahead) == 1 || time.Now().After(latest)
	}) {
		return false
	}
	held, err := c.partition.extendFor(c.ctx, w.queue.rdb, w.lease, true, []*claim{c})
	return err == nil && held[0]
}

// waitUntil waits until something holds for a claim. It reports false when the claim is lost, and at Stop.
func (w *Worker) waitUntil(c *claim, holds func() bool) bool {
	for !holds() {
		select {
		case <-time.After(time.Millisecond):
		case <-c.ctx.Done():
			return false
		case <-w.stopping:
			return false
		}
	}
	return true
}

// hasPlace waits for a place among the messages that run.
func (w *Worker) hasPlace(c *claim) bool {
	select {
	case w.running <- struct{}{}:
		c.runs = true
		return true
	default:
	}
	timer := time.NewTimer(aheadWait)
	defer timer.Stop()
	select {
	case w.running <- struct{}{}:
		c.runs = true
	case <-timer.C:
		w.ran(aheadWait)
	case <-w.stopping:
	}
	return c.runs
}

// noPlace is the outcome of a message that may not be run.
func (w *Worker) noPlace() outcome {
	v := outcome{kind: OutcomeReturned, err: errNoSlot, last: true}
	if w.isStopping() {
		v.err = ErrStopped
	}
	return v
}

// hasRun lets another message run.
func (w *Worker) hasRun(c *claim) {
	if c.suspect {
		c.suspect = false
		w.suspects.Add(-1)
	}
	if c.runs {
		c.runs = false
		<-w.running
	}
}

// wasAlone has others claimed again. Until Redis knows how a message has ended that ran alone, a death of the process would
// be taken for its doing.
func (w *Worker) wasAlone(c *claim) {
	if c.alone {
		c.alone = false
		<-w.alone
		w.claimAgain()
	}
}
