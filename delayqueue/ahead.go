package delayqueue

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/delayqueue/internal/store"
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

// note records how long a handler took. It reports whether handlers have become quick.
func (p *pace) note(took time.Duration) bool {
	before := p.mean.Load()
	after := before + (int64(min(took, aheadWait))-before)/16
	p.mean.Store(after)
	return before >= int64(quickHandler) && after < int64(quickHandler)
}

func (p *pace) quick() bool { return p.mean.Load() < int64(quickHandler) }

// slots are a Worker's places for messages.
type slots struct {
	taken   chan struct{} // holds one for each message that is run, or asked for
	ahead   chan struct{} // more of these, while handlers are quick
	running chan struct{} // holds one for each message that is run
	alone   chan struct{} // holds one while a message runs alone, or is about to: nothing else is claimed
	poison  atomic.Int64  // messages that run, or are about to, and may be poison: beside them nothing is claimed ahead
	pace    pace
	single  bool   // a message has one attempt: none is claimed ahead, since it spends one if the Worker dies before it starts
	more    func() // is called when more may be claimed than before
}

func newSlots(n int, single bool, more func()) *slots {
	s := &slots{
		taken: make(chan struct{}, n), running: make(chan struct{}, n), ahead: make(chan struct{}, aheadMost*n), alone: make(chan struct{}, 1),
		single: single, more: more,
	}
	s.pace.mean.Store(int64(aheadWait)) // not quick
	return s
}

// ran records how long a handler took.
func (s *slots) ran(took time.Duration) {
	if s.pace.note(took) {
		s.more()
	}
}

// claimsAhead reports whether more messages are to be claimed than run.
func (s *slots) claimsAhead() bool {
	return !s.single && s.poison.Load() == 0 && len(s.alone) == 0 && s.pace.quick()
}

// full reports whether more was claimed than is to be now.
func (s *slots) full() bool { return len(s.ahead) > 0 && !s.claimsAhead() || len(s.alone) > 0 }

// takeFree takes up to most free slots.
func (s *slots) takeFree(most int) (n int) {
	for taken, ahead := s.forClaims(), s.aheadForClaims(); n < most; n++ {
		select {
		case taken <- struct{}{}:
			continue
		default:
		}
		select {
		case ahead <- struct{}{}:
		default:
			return n
		}
	}
	return n
}

// take takes a slot, or one ahead, for a message that is claimed already. It reports false if there is none, or if
// a message runs alone.
func (s *slots) take() bool {
	if len(s.alone) > 0 {
		return false
	}
	select {
	case s.taken <- struct{}{}:
		return true
	default:
	}
	select {
	case s.ahead <- struct{}{}:
		return true
	default:
		return false
	}
}

// forClaims is s.taken, nil while a message runs alone.
func (s *slots) forClaims() chan struct{} {
	if len(s.alone) > 0 {
		return nil
	}
	return s.taken
}

// aheadForClaims is s.ahead, nil if nothing is to be claimed ahead.
func (s *slots) aheadForClaims() chan struct{} {
	if s.claimsAhead() {
		return s.ahead
	}
	return nil
}

func (s *slots) free(n int) {
	for range n {
		select {
		case <-s.ahead:
		default:
			<-s.taken
		}
	}
}

// mayRun waits until a message may be run: when fewer messages run than the Worker's concurrency.
// Only one that was claimed ahead has to wait. It returns nil, or the outcome of a message that may
// not be run here now: that takes too long, the Worker is stopped, or Pause came before it
// was claimed.
//
// A message that has lost its worker before may be poison: it may have killed that worker, and may
// kill this one. It runs when no message waits that would spend an attempt then, and its last
// attempt is alone.
func (w *Worker) mayRun(c *claim) (refused *outcome) {
	if c.message.Losses > 0 {
		c.mayBePoison = true
		w.slots.poison.Add(1)
	}
	switch {
	case c.whilePaused && w.paused.Load():
		return w.notRun(errPaused)
	case !w.slots.run(c, w.stopping):
		return w.notRun(errNoSlot)
	case c.runsAlone():
		return w.isAlone(c)
	case c.mayBePoison: // less and less is ahead, since nothing is claimed ahead
		return w.waitUntil(c, func() bool { return len(w.slots.ahead) == 0 })
	}
	return nil
}

// runsAlone reports whether a message is to run with no other beside it: it is its last attempt, and all before were lost.
// If its worker dies now, it was this message that killed it; before, it may have been any that ran there.
func (c *claim) runsAlone() bool {
	return c.stored.Attempts >= c.queue.maxAttempts && c.allLost() && c.unrunnable() == nil
}

// allLost reports whether the worker died in each attempt before this one, and there was one.
func (c *claim) allLost() bool { return c.stored.Losses > 0 && c.stored.Losses >= c.stored.Attempts-1 }

// isAlone waits until the Worker has no other message, and records in Redis that this one runs
// alone. It does not wait for messages that go on for a claim's lease after it began to wait. It
// returns nil, or the outcome of a message that may not be run here now: if another message is
// alone, or Redis does not answer.
func (w *Worker) isAlone(c *claim) (refused *outcome) {
	select {
	case w.slots.alone <- struct{}{}:
		c.alone = true
	default:
		return w.notRun(errNotAlone)
	}
	latest := time.Now().Add(w.lease)
	if refused = w.waitUntil(c, func() bool {
		return w.claims.count() == 1 && len(w.slots.taken)+len(w.slots.ahead) == 1 || time.Now().After(latest)
	}); refused != nil {
		return refused
	}
	held, err := c.partition.Extend(c.ctx, w.queue.rdb, w.lease, true, c.stored)
	switch {
	case err != nil:
		refused = new(unreachable(c, err))
		refused.last = true
	case !held[0]:
		refused = w.notRun(ErrClaimLost)
	}
	return refused
}

// waitUntil waits until holds returns true. It returns nil, or the outcome of a message whose claim
// is lost meanwhile, or whose Worker is stopped.
func (w *Worker) waitUntil(c *claim, holds func() bool) (refused *outcome) {
	for !holds() {
		select {
		case <-time.After(time.Millisecond):
		case <-c.ctx.Done():
			return w.notRun(context.Cause(c.ctx))
		case <-w.stopping:
			return w.notRun(ErrStopped)
		}
	}
	return nil
}

// run waits for a place among the messages that run.
func (s *slots) run(c *claim, stopping <-chan struct{}) bool {
	select {
	case s.running <- struct{}{}:
		c.runs = true
		return true
	default:
	}
	timer := time.NewTimer(aheadWait)
	defer timer.Stop()
	select {
	case s.running <- struct{}{}:
		c.runs = true
	case <-timer.C:
		s.ran(aheadWait)
	case <-stopping:
	}
	return c.runs
}

// notRun is the outcome of a message that may not be run here now.
func (w *Worker) notRun(why error) *outcome {
	v := &outcome{end: store.Returned, err: why, last: true}
	if w.isStopping() {
		v.err = ErrStopped
	}
	return v
}

// ended gives back the place of a message among those that run.
func (s *slots) ended(c *claim) {
	if c.mayBePoison {
		c.mayBePoison = false
		s.poison.Add(-1)
	}
	if c.runs {
		c.runs = false
		<-s.running
	}
}

// endAlone lets the Worker claim other messages again, if this one ran alone. It is called once Redis knows how the message has
// ended: until then, a death of the process would count as caused by it.
func (s *slots) endAlone(c *claim) {
	if c.alone {
		c.alone = false
		<-s.alone
		s.more()
	}
}
