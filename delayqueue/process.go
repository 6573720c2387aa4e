package delayqueue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/backoff"
	"github.com/perkey-go/perkey/internal/ident"
	"github.com/perkey-go/perkey/internal/trust"
)

// lockPause is how long a message waits whose key could not be asked for.
const lockPause = time.Second

var errGoexit = errors.New("delayqueue: the handler called runtime.Goexit")

// panicError is a handler's panic, with its stack.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.value, e.stack) }

// unopenedError is why a message has no payload for the handler.
type unopenedError struct{ error }

func (e *unopenedError) Unwrap() error { return e.error }

// turn is a worker's time with a key: under one lease it runs messages of the key, one
// after the other. A keyless message has a turn of its own, without a lease.
type turn struct {
	worker   *Worker
	ctx      context.Context
	lease    *core.Lease // nil without a key, and once it was given back
	ends     time.Time   // then other keys have theirs
	reserved bool        // the key still was when it was given back
}

// turnLength bounds a turn: messages of other keys wait for hands too.
const turnLength = 100 * time.Millisecond

// process takes a claimed message through its lock and its handler to the end of its
// claim, and so on with the messages that the ends of claims bring: a busy worker need
// not ask for work.
func (w *Worker) process(c *claim) {
	for c != nil {
		c = w.take(c)
	}
}

// take runs a claimed message, and those of its key that follow. It returns a claim for
// the next turn, if there is one.
func (w *Worker) take(c *claim) (next *claim) {
	if w.isStopping() { // claimed while Stop was called
		return w.settle(c, verdict{outcome: OutcomeReturned, err: ErrStopped})
	}
	t := &turn{worker: w, ctx: w.ctx}
	if key := c.message.Key; key != "" {
		var err error
		if t.lease, err = w.acquire(key); err != nil {
			return w.settle(c, w.judgeLock(c, err))
		}
		t.ctx, t.ends = t.lease.Context(), time.Now().Add(turnLength)
	}
	for {
		if c = t.run(c); c == nil || t.lease == nil {
			return c
		}
		if w.isStopping() { // meanwhile
			return t.over(c, verdict{outcome: OutcomeReturned, err: ErrStopped})
		}
	}
}

// acquire takes the lock of a key for one of its messages.
func (w *Worker) acquire(key string) (*core.Lease, error) {
	lease, err := w.locker.TryAcquire(w.ctx, key, w.lockOptions...)
	var conflict *core.ConflictError
	if w.queue.precedence == 0 && errors.As(err, &conflict) && conflict.Remaining == 0 {
		// Others that use the queue may have the key reserved.
		lease, err = w.locker.TryAcquire(w.ctx, key, append(w.lockOptions, core.Reserved(core.MinTTL))...)
	}
	return lease, err
}

// run runs one message and settles its claim. It returns the claim of the next
// message: of the same key, if the turn goes on.
func (t *turn) run(c *claim) (next *claim) {
	w := t.worker
	ctx, cancel := w.under(t.ctx, c, t.lease != nil)
	result := &resultHolder{most: w.queue.maxResult}
	ctx = context.WithValue(ctx, resultKey{}, result)
	err, started := errGoexit, false
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
		cancel()
		if !started {
			next = t.over(c, verdict{outcome: OutcomeReturned, err: err})
			return
		}
		err = legible(err)
		v := w.judge(c, err, t.lost())
		if v.outcome == OutcomeDone {
			v.result = result.get()
		}
		if v.dying = errors.Is(err, errGoexit); t.goesOn(c, v) {
			next = t.follow(c, v)
			return
		}
		// The lock goes first, while the claim still keeps the message, and with it the
		// line of its key, where it is: who is told that a message is done finds its
		// key free.
		if lost := t.release(c.message, v); lost != nil {
			v = w.judge(c, err, lost)
		}
		next = t.over(c, v)
	}()
	if ctx.Err() != nil { // while the key was asked for
		err = context.Cause(ctx)
		return nil
	}
	started = true
	if c.message.Payload, err = w.queue.sealer.open(kindPayload, c.message.sealedOf(), c.message.Payload); err != nil {
		err = &unopenedError{err}
		return nil
	}
	err = errGoexit
	w.observe(func() { w.observer.OnStarted(c.message) })
	err = w.handler(ctx, c.message)
	return nil // or what the deferred function finds
}

// goesOn reports whether the next message of the key is to run under the same lease.
func (t *turn) goesOn(c *claim, v verdict) bool {
	w := t.worker
	return t.lease != nil && c.message.behind > 0 && (v.outcome == OutcomeDone || v.outcome == OutcomeDead) &&
		!v.dying && t.lost() == nil && time.Now().Before(t.ends) && !w.isStopping() && !w.paused.Load()
}

// follow settles a claim, and claims the next message of its key. If there is none the
// turn is over.
func (t *turn) follow(c *claim, v verdict) (next *claim) {
	v.which = nextOfKey
	if next = t.worker.settle(c, v); next == nil {
		_ = t.release(c.message, v) // the message has ended all the same
		t.reconsider(c)
	}
	return next
}

// over settles the last claim of a turn, and claims any message.
func (t *turn) over(c *claim, v verdict) (next *claim) {
	_ = t.release(c.message, v) // if it was not given back before
	next = t.worker.settle(c, v)
	t.reconsider(c)
	return next
}

// reconsider has a reservation ended if nobody needs it: those behind may have been
// cancelled, or have expired.
func (t *turn) reconsider(c *claim) {
	if t.reserved {
		t.worker.reconsider(c.message.Key)
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

// release gives the key back: if it has more messages, to them before others. It
// returns why the lease was lost, if it was.
func (t *turn) release(m Message, v verdict) error {
	lease := t.lease
	if lease == nil {
		return nil
	}
	t.lease = nil
	ctx, ended := context.Background(), v.outcome == OutcomeDone || v.outcome == OutcomeDead
	switch precedence := t.worker.queue.precedence; {
	case precedence == 0 && !lease.Reserved():
	case precedence > 0 && (m.behind > 0 || !ended || lease.Reserved() && t.worker.queue.partitionOf(m.Key, m.ID).hasBehind(ctx, m)):
		t.reserved = true
		_ = t.worker.locker.Reserve(ctx, m.Key, min(v.delay+precedence, core.MaxTTL))
	case lease.Reserved() || m.parked: // what is parked from here on has a reservation of its own, or this message's came late
		t.reserved = errors.Is(lease.Unreserve(ctx), core.ErrReserved)
	}
	if lost := lease.Release(ctx); errors.Is(lost, core.ErrLeaseLost) {
		return lost
	}
	return nil // Redis frees the key by itself
}

// messageContext is the ctx of work under a claim, and perhaps a lease. Err looks at
// their clocks too, as the lease's own ctx does: after a freeze, timers come late.
type messageContext struct {
	context.Context
	look func()
}

func (c messageContext) Err() error {
	c.look()
	return c.Context.Err()
}

// under makes the ctx of a message's handler: it ends with its claim and with parent.
func (w *Worker) under(parent context.Context, c *claim, leased bool) (context.Context, func()) {
	if !leased {
		return messageContext{c.ctx, func() { w.claims.expire(c) }}, func() {}
	}
	ctx, cancel := context.WithCancelCause(parent)
	unhook := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	look := func() {
		w.claims.expire(c)
		if c.ctx.Err() != nil {
			cancel(context.Cause(c.ctx)) // not waiting for the hook
		}
		_ = parent.Err()
	}
	return messageContext{ctx, look}, func() {
		unhook()
		cancel(nil)
	}
}

// legible is err, or the panic that asking it ends in, as a typed nil may: a
// handler's error must not take the worker down.
func legible(err error) (is error) {
	defer func() {
		if p := recover(); p != nil {
			is = &panicError{p, debug.Stack()}
		}
	}()
	if err != nil {
		var skip *skipRetryError
		_, _, _ = err.Error(), errors.Is(err, core.ErrConflict), errors.As(err, &skip)
	}
	return err
}

// verdict is how a claim is to end.
type verdict struct {
	outcome   Outcome
	err       error // why the message is not done
	delay     time.Duration
	lost      bool // the attempt's outcome is unknown
	awaitsKey bool // a nudge makes it due
	result    []byte
	dying     bool   // the worker's goroutine
	which     string // is to be claimed next
	next      string // token to claim it with; "" not to
}

// What is claimed next.
const (
	nextOfKey = "key"
	nextOfAny = "any"
)

// maxCause bounds what is stored of an error or a stack, in bytes.
const maxCause = 4 << 10

func (v verdict) cause() string {
	if v.err == nil {
		return ""
	}
	s := v.err.Error()
	return strings.ToValidUTF8(s[:min(len(s), maxCause)], "\uFFFD")
}

// judgeLock decides about a message whose key was not granted. No handler ran,
// so no attempt is spent, unless there can be none.
func (w *Worker) judgeLock(c *claim, err error) verdict {
	var conflict *core.ConflictError
	switch {
	case errors.As(err, &conflict):
		// The release of the key is announced, and the nudge that follows makes
		// the message due: see passOn. The delay is for announcements that are
		// lost, and for a holder that dies: its lease ends without one.
		delay := w.conflictDelay(c)
		if conflict.Remaining > 0 {
			delay = min(delay, conflict.Remaining+50*time.Millisecond)
		}
		return verdict{outcome: OutcomeConflict, err: err, delay: delay, awaitsKey: true}
	case errors.Is(err, core.ErrInvalidKey):
		return verdict{outcome: OutcomeDead, err: err}
	case errors.Is(context.Cause(c.ctx), ErrStopped):
		return verdict{outcome: OutcomeReturned, err: ErrStopped}
	default:
		return verdict{outcome: OutcomeReturned, err: err, delay: backoff.Spread(lockPause)}
	}
}

// judge decides about a message whose handler returned err. lost is set if the
// key's lease ended before the handler did.
func (w *Worker) judge(c *claim, err, lost error) verdict {
	var (
		panicked *panicError
		skip     *skipRetryError
		unopened *unopenedError
		gone     = context.Cause(c.ctx) // nil while the claim and the Worker live
	)
	v := verdict{outcome: OutcomeRetry, err: err}
	v.lost = lost != nil || errors.Is(err, core.ErrLeaseLost) || errors.Is(gone, ErrClaimLost)
	switch {
	case err == nil && lost == nil:
		// Also when the claim seems lost: if nobody has taken the message since,
		// the queue takes the result.
		return verdict{outcome: OutcomeDone}
	case err == nil:
		v.err = lost
	case errors.As(err, &panicked):
	case errors.As(err, &skip):
		v.outcome = OutcomeDead
		return v
	case errors.As(err, &unopened):
		v.outcome = OutcomeDead
		if errors.Is(err, errUnknownKey) { // another worker may have it
			v.outcome, v.delay = OutcomeReturned, backoff.Spread(lockPause)
		}
		return v
	case errors.Is(gone, ErrStopped): // the handler may have done a part
		v.outcome, v.lost = OutcomeReturned, true
		return v
	case errors.Is(err, core.ErrConflict):
		v.outcome, v.delay = OutcomeConflict, w.conflictDelay(c)
		return v
	}
	if c.message.Attempt >= w.queue.maxAttempts {
		v.outcome = OutcomeDead
		return v
	}
	v.delay = backoff.Spread(backoff.Exponential(c.message.Attempt, w.retry.initial, w.retry.most))
	return v
}

func (w *Worker) conflictDelay(c *claim) time.Duration {
	return backoff.Spread(backoff.Exponential(c.message.Conflicts+1, w.conflict.initial, w.conflict.most))
}

const (
	settleBefore = 20 * time.Millisecond // backoff while Redis does not answer
	settleMost   = time.Second
)

// settle ends a claim, and returns the claim of another message, if it came with the
// answer. While Redis does not answer it tries again, until the claim is over anyway or
// Stop's time is.
func (w *Worker) settle(c *claim, v verdict) (next *claim) {
	w.claims.settle(c)
	defer c.cancel(nil)
	defer w.claims.drop(c)
	// Where there are several partitions, each has a hand for a while only.
	leaves := len(w.claimers) > 1 && v.which == "" && time.Since(c.since) > turnLength
	if !v.dying && !leaves && !w.isStopping() && !w.paused.Load() {
		v.next, v.which = ident.Random(16), cmp.Or(v.which, nextOfAny)
	}
	for try := 1; ; try++ {
		s := c.end(v, w.lease)
		c.partition.settles.add(s)
		if !w.await(s) {
			v.outcome, v.err = OutcomeLate, errors.Join(ErrClaimLost, ErrStopped, v.err)
			break
		}
		if s.err == nil {
			switch {
			case !s.settled.held:
				v.outcome, v.err = OutcomeLate, errors.Join(ErrClaimLost, v.err)
			case s.settled.expired:
				v.outcome = OutcomeExpired
			}
			if s.settled.anyDue {
				w.look(c.partition.base) // without waiting for our own announcement
			}
			if s.settled.next != nil {
				next = w.claims.add(w.ctx, c.partition, *s.settled.next, v.next, trust.Until(s.settled.sent, w.lease))
				next.since = c.since
			}
			break
		}
		pause := backoff.Full(try, settleBefore, settleMost)
		if time.Now().Add(pause).After(w.claims.until(c)) || !w.sleep(pause) {
			v.outcome, v.err = OutcomeLate, errors.Join(ErrClaimLost, s.err, v.err)
			break
		}
	}
	w.logSettled(c, v)
	w.observe(func() {
		w.observer.OnSettled(Settled{
			Message: c.message, Outcome: v.outcome, Err: v.err, Delay: v.delay, Took: time.Since(c.taken),
		})
	})
	return next
}

// stopPatience is how long a settlement is waited for when Stop's time is over.
const stopPatience = 3 * time.Second

// await waits for a settlement. It reports false when Stop's time is over, and Redis
// does not answer.
func (w *Worker) await(s *settling) bool {
	select {
	case <-s.done:
		return true
	case <-w.ctx.Done():
	}
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-s.done:
		return true
	case <-timer.C:
		return false
	}
}

// observe tells the Observer. Its panic must not take the process down.
func (w *Worker) observe(tell func()) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("delayqueue: the observer panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		}
	}()
	tell()
}

// sleep waits for d. It reports false when Stop's time is over.
func (w *Worker) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

func (w *Worker) logSettled(c *claim, v verdict) {
	level := slog.LevelDebug
	switch v.outcome {
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
		slog.String("outcome", string(v.outcome)), slog.Int("attempt", m.Attempt), slog.Duration("took", time.Since(c.taken)),
	}
	if v.err != nil {
		attrs = append(attrs, slog.String("error", v.cause()))
	}
	w.log.LogAttrs(context.Background(), level, "delayqueue: message settled", attrs...)
}
