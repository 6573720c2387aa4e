package core

import (
	"context"
	"sync/atomic"
)

// ending is how the ctx of a lease ends: when its parent does, or by cancel or finish. The cancellation is made when
// somebody waits for it or asks for the cause: many handlers do neither, and it costs five allocations.
type ending struct {
	parent context.Context
	made   atomic.Pointer[cancellation]
}

type cancellation struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// finished is the cancellation of leases that were released before anybody asked for theirs.
var finished = func() *cancellation {
	c := newCancellation(context.Background())
	c.cancel(context.Canceled)
	return c
}()

func newCancellation(parent context.Context) *cancellation {
	ctx, cancel := context.WithCancelCause(parent)
	return &cancellation{ctx, cancel}
}

// use takes a cancellation that was made already.
func (e *ending) use(c *cancellation) {
	e.parent = c.ctx
	e.made.Store(c)
}

// cancellation makes the cancellation, unless there is one.
func (e *ending) cancellation() *cancellation {
	if made := e.made.Load(); made != nil {
		return made
	}
	made := newCancellation(e.parent)
	if !e.made.CompareAndSwap(nil, made) {
		made.cancel(nil)
	}
	return e.made.Load()
}

func (e *ending) err() error {
	if made := e.made.Load(); made != nil {
		return made.ctx.Err()
	}
	return e.parent.Err()
}

// cancel ends the ctx with a cause, unless it is over.
func (e *ending) cancel(cause error) { e.cancellation().cancel(cause) }

// finish is cancel with the cause context.Canceled.
func (e *ending) finish() {
	if e.parent.Err() != nil || !e.made.CompareAndSwap(nil, finished) { // the parent has a cause of its own
		e.cancel(context.Canceled)
	}
}

// value is the parent's, but for what leads package context to the cancellation.
func (e *ending) value(key any) any {
	if key == cancellationKey {
		return e.cancellation().ctx.Value(key)
	}
	return e.parent.Value(key)
}

// cancellationKey is the key by which package context looks for the cancellation of a ctx.
var cancellationKey = func() any {
	asked := &endedContext{Context: context.Background()}
	_ = context.Cause(asked)
	return asked.key
}()

// endedContext knows for which key it was asked.
type endedContext struct {
	context.Context
	key any
}

func (c *endedContext) Err() error { return context.Canceled }

func (c *endedContext) Value(key any) any {
	c.key = key
	return nil
}
