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
	if !w.pace.note(took) {
		return
	}
	for _, c := range *w.claimers.Load() {
		select {
		case c.quickened <- struct{}{}:
		default:
		}
	}
}

// claimsAhead reports whether more messages are to be claimed than run. Each spends an attempt if the Worker dies before it
// starts, so none is claimed ahead that has no more than one.
func (w *Worker) claimsAhead() bool {
	return w.queue.maxAttempts > 1 && w.alone.Load() == 0 && w.pace.quick()
}

// mayRun waits until a message may be run: fewer than the Worker's concurrency are. Only one that was claimed ahead
// has to wait. It reports false when that takes too long, and at Stop.
//
// A message that has lost its worker before may have killed it, and may do so again: it runs when nothing waits beside
// it that would spend an attempt then.
func (w *Worker) mayRun(c *claim) bool {
	if c.message.Losses > 0 {
		c.alone = true
		w.alone.Add(1)
	}
	if !w.hasPlace(c) {
		return false
	}
	for c.alone && len(w.ahead) > 0 { // less and less, since nothing is claimed ahead
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
	if c.alone {
		c.alone = false
		w.alone.Add(-1)
	}
	if c.runs {
		c.runs = false
		<-w.running
	}
}
