package delayqueue

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue/internal/store"
	"github.com/perkey-go/perkey/internal/keyring"
)

// turn is a worker's batch of messages of one key, run one after the other under one lease. A
// keyless message has a turn of its own, without a lease.
type turn struct {
	worker   *Worker
	ctx      context.Context
	lease    *core.Lease // nil without a key, and after its release
	ends     time.Time   // then other keys have their turns
	reserved bool        // the key was still reserved at the release
}

// turnLength bounds a turn: messages of other keys wait for slots too.
const turnLength = 100 * time.Millisecond

// process runs a claimed message, and those that the settlements return, until there is none: lock → handler → settle → next.
func (w *Worker) process(c *claim) {
	for c != nil {
		c = w.take(c)
	}
}

// take runs a claimed message, and those of its key that follow. It returns the claim for the next
// turn, if there is one.
func (w *Worker) take(c *claim) (next *claim) {
	if w.isStopping() { // claimed while Stop was called
		return w.settle(c, outcome{end: store.Returned, err: ErrStopped})
	}
	if refused := w.mayRun(c); refused != nil {
		return w.settle(c, *refused)
	}
	t := &turn{worker: w, ctx: w.ctx}
	if key := c.message.Key; key != "" {
		var err error
		if t.lease, err = t.acquire(key); err != nil {
			return w.settle(c, w.judge.ofLock(c, err))
		}
		c.granted = time.Now()
		t.ctx, t.ends = t.lease.Context(), c.granted.Add(turnLength)
	}
	for {
		if c = t.run(c); c == nil || t.lease == nil {
			return c
		}
		if w.isStopping() { // meanwhile
			return t.over(c, outcome{end: store.Returned, err: ErrStopped})
		}
		if refused := w.mayRun(c); refused != nil {
			return t.over(c, *refused)
		}
	}
}

// errObserver is why a key was not taken whose Locker's observer panicked.
var errObserver = errors.New("delayqueue: the Locker's observer panicked")

// acquire takes the lock of a key for one of its messages.
func (t *turn) acquire(key string) (lease *core.Lease, err error) {
	err = errObserver
	observe(t.worker.log, func() { lease, err = t.tryAcquire(key) })
	return lease, err
}

func (t *turn) tryAcquire(key string) (*core.Lease, error) {
	w := t.worker
	lease, err := w.locker.TryAcquire(w.ctx, key, w.lockOptions...)
	var conflict *core.ConflictError
	if w.queue.reservationWindow == 0 && errors.As(err, &conflict) && conflict.Remaining == 0 {
		// Others that use the queue may have the key reserved.
		lease, err = w.locker.TryAcquire(w.ctx, key, append(w.lockOptions, reservations.Reserved(core.MinTTL))...)
	}
	return lease, err
}

// run runs one message and settles its claim: prepare → handle → conclude. It returns the claim of the next
// message: of the same key, if the turn goes on.
func (t *turn) run(c *claim) (next *claim) {
	w := t.worker
	ctx, cancel := t.under(c)
	result := &resultHolder{owner: w, most: w.queue.maxResult}
	ctx = context.WithValue(ctx, resultKey{}, result)
	err, started := errGoexit, false
	defer func() { // also if the handler ends its goroutine
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
		cancel()
		if started {
			next = t.conclude(c, safeError(err), result)
		} else {
			next = t.over(c, outcome{end: store.Returned, err: err})
		}
	}()
	if started, err = prepare(ctx, c); err == nil {
		err = errGoexit
		err = t.handle(ctx, c)
	}
	return nil // or what the deferred function finds
}

// prepare returns nil, or why the handler of a message is not called. Started: the attempt counts.
func prepare(ctx context.Context, c *claim) (started bool, err error) {
	if ctx.Err() != nil { // while the key was asked for
		return false, context.Cause(ctx)
	}
	if why := c.unrunnable(); why != nil {
		c.stored.Attempts = max(0, c.stored.Attempts-1) // this one is none
		c.message.Attempt = c.stored.Attempts
		return true, &unopenedError{why}
	}
	if c.tooOld() { // meanwhile: the queue will say so
		return false, errTooOld
	}
	return true, nil
}

// handle opens a message and calls its handler.
func (t *turn) handle(ctx context.Context, c *claim) (err error) {
	w := t.worker
	if c.message.Trace, c.message.Payload, err = w.queue.sealer.openPayload(c.message.sealedOf(), c.message.Payload); err != nil {
		if keyring.MayOpenElsewhere(err) {
			return HandBack(err)
		}
		return &unopenedError{err}
	}
	observe(w.log, func() { w.observer.OnStarted(ctx, c.starts()) })
	began := time.Now()
	err = w.handler(ctx, c.message)
	w.slots.ran(time.Since(began))
	return err
}

// conclude settles the claim of a message whose attempt ended with err: classify → release → settle, or follow
// while the turn goes on.
func (t *turn) conclude(c *claim, err error, result *resultHolder) (next *claim) {
	w := t.worker
	classify := func(lost error) outcome {
		v := w.judge.of(c, err, lost)
		if v.end == store.Finished || v.end == store.Died {
			v.result = result.get()
		}
		v.last = errors.Is(err, errGoexit)
		return v
	}
	v := classify(t.lost())
	if v.end <= store.Postponed { // the handler can run it
		w.judge.handsBack.Store(false)
	}
	if t.goesOn(c, v) {
		return t.follow(c, v)
	}
	// The lock is released first, while the claim still keeps the message, and with it
	// the FIFO of its key, in place: a client that learns that its message is done
	// finds the key free.
	if lost := t.release(c, v); lost != nil {
		v = classify(lost)
	}
	return t.over(c, v)
}

// unrunnable returns why a message becomes a dead letter without its handler, or nil: its record
// cannot be read, or its worker died in each of its attempts, and in the last one it ran alone.
// After a single loss its last attempt was beside others.
func (c *claim) unrunnable() error {
	m := c.stored
	switch {
	case m.Damage != "":
		return errors.New("quarantined: " + m.Damage)
	case m.Attempts > c.queue.maxAttempts && (m.Alone || !c.allLost() || m.Losses == 1):
		return errors.New(c.queue.sealer.cause(c.message.sealedOf(), m.Cause))
	}
	return nil
}

// goesOn reports whether the next message of the key is to run under the same lease.
func (t *turn) goesOn(c *claim, v outcome) bool {
	w := t.worker
	ended := v.end == store.Finished || v.end == store.Died && w.queue.halt == HaltNothing
	return t.lease != nil && c.stored.QueuedAfter && ended && !w.ownLeases &&
		!v.last && t.lost() == nil && time.Now().Before(t.ends) && !w.isStopping() && !w.paused.Load()
}

// follow settles a claim, and claims the next message of its key. If there is none the
// turn is over.
func (t *turn) follow(c *claim, v outcome) (next *claim) {
	v.ofKey = true
	if next = t.worker.settle(c, v); next == nil {
		_ = t.release(c, v) // the message has ended, even if the lease was lost meanwhile
		t.reconsider(c)
	}
	return next
}

// over settles the last claim of a turn, and claims any message.
func (t *turn) over(c *claim, v outcome) (next *claim) {
	_ = t.release(c, v) // if it was not given back before
	next = t.worker.settle(c, v)
	t.reconsider(c)
	return next
}

// reconsider ends a reservation that no message needs: those queued after this one may have been
// cancelled, or have expired.
func (t *turn) reconsider(c *claim) {
	if t.reserved {
		t.worker.waker.reconsider(c.message.Key)
	}
}

// lost returns why the turn's lease is lost, or nil.
func (t *turn) lost() error {
	if t.lease == nil || t.ctx.Err() == nil {
		return nil
	}
	if cause := context.Cause(t.ctx); errors.Is(cause, core.ErrLeaseLost) {
		return cause
	}
	return nil
}

// release releases the key, and reserves it for its other messages if there are some. It returns
// why the lease was lost, if it was.
func (t *turn) release(c *claim, v outcome) error {
	m, lease := c.stored, t.lease
	if lease == nil {
		return nil
	}
	t.lease = nil
	ctx, ended, unreserves := context.Background(), v.end.Final(), false
	switch window := t.worker.queue.reservationWindow; {
	case v.end == store.Died && t.worker.queue.halt == HaltKey:
		t.reserved = true
		_, _ = reservations.Reserve(ctx, t.worker.locker, m.Key, core.MaxTTL)
	case window == 0 && !reservations.WasReserved(lease):
	case v.end == store.Died && t.worker.queue.halt == HaltParked:
		unreserves = true
	case !ended && v.delay > 0 && !v.end.AwaitsKey(): // fresh calls need not wait for one that waits for its next attempt, or for another process
		unreserves = !c.partition.HasQuiet(ctx, m.Key)
	case window > 0 && (m.QueuedAfter || !ended || (reservations.WasReserved(lease) || t.outlasts(window/2)) && c.partition.HasQueuedAfter(ctx, m.Key, m.ID)):
		t.reserved = true
		_, _ = reservations.Reserve(ctx, t.worker.locker, m.Key, window)
	case reservations.WasReserved(lease) || m.Parked: // a call that is parked from now on makes its own reservation; this message's may have come late
		unreserves = true
	}
	var err error
	t.reserved = t.reserved || unreserves
	observe(t.worker.log, func() { // the Locker's observer may panic
		if !unreserves {
			err = lease.Release(ctx)
			return
		}
		t.reserved, err = reservations.Release(ctx, lease) // it was made anew, or Redis did not reply: reconsider it afterwards
	})
	if errors.Is(err, core.ErrLeaseLost) {
		return err
	}
	return nil // the key is free when its lease expires
}

// outlasts reports whether the turn has lasted longer than d: messages that were parked when it
// began may not be reserved for any more.
func (t *turn) outlasts(d time.Duration) bool { return time.Since(t.ends)+turnLength > d }

// messageContext is the ctx of work under a claim, and perhaps a lease. Done and Err check the
// clocks too, as the lease's own ctx does: after the process was stopped, timers fire late.
type messageContext struct {
	context.Context
	checkClocks func()
}

func (c messageContext) Done() <-chan struct{} {
	c.checkClocks()
	return c.Context.Done()
}

func (c messageContext) Err() error {
	c.checkClocks()
	return c.Context.Err()
}

// under makes the ctx of a message's handler: it ends with its claim and with the turn.
func (t *turn) under(c *claim) (context.Context, func()) {
	w, parent := t.worker, t.ctx
	if t.lease == nil {
		return messageContext{c.ctx, func() { w.claims.expire(c) }}, func() {}
	}
	ctx, cancel := context.WithCancelCause(parent)
	unhook := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	checkClocks := func() {
		w.claims.expire(c)
		if c.ctx.Err() != nil {
			cancel(context.Cause(c.ctx)) // not waiting for the hook
		}
		_ = parent.Err()
	}
	return messageContext{ctx, checkClocks}, func() {
		unhook()
		cancel(nil)
	}
}
