package core

import (
	"cmp"
	"context"
	"sync/atomic"
)

// ending is how the ctx of a lease ends: when its parent does, or by cancel or finish. The
// cancellation is made only when it is needed, for a goroutine that waits for it or asks for the
// cause: many handlers do neither, and it costs five allocations.
type ending struct {
	parent context.Context
	made   atomic.Pointer[cancellation]
}

type cancellation struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// finished is the cancellation of leases that were released before one of their own was made.
var finished = func() *cancellation {
	c := newCancellation(context.Background())
	c.cancel(context.Canceled)
	return c
}()

func newCancellation(parent context.Context) *cancellation {
	ctx, cancel := context.WithCancelCause(parent)
	return &cancellation{ctx, cancel}
}

// use takes a cancellation that was made by the caller.
func (e *ending) use(c *cancellation) {
	e.parent = c.ctx
	e.made.Store(c)
}

// cancellation returns the cancellation, and makes it if there is none.
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
	err := e.parent.Err()
	if err != nil {
		return cmp.Or(e.cancellation().ctx.Err(), err) // the cancellation keeps the parent's cause
	}
	return nil
}

// cancel ends the ctx with a cause, unless it has ended. It does not ask the parent: the lease may
// be lost on another goroutine than the caller's, and a framework's own ctx changes meanwhile.
func (e *ending) cancel(cause error) {
	if made := e.made.Load(); made != nil {
		made.cancel(cause)
		return
	}
	over := newCancellation(context.Background())
	over.cancel(cause)
	e.end(over, cause)
}

// finish is cancel with the cause context.Canceled, by the caller.
func (e *ending) finish() {
	if e.parent.Err() != nil {
		e.cancellation() // the parent has a cause of its own
	}
	e.end(finished, context.Canceled)
}

// end stores a cancellation that has ended, or cancels the one that was made.
func (e *ending) end(over *cancellation, cause error) {
	if !e.made.CompareAndSwap(nil, over) {
		e.made.Load().cancel(cause)
	}
}

// value is the parent's, except for the key by which package context looks for the cancellation.
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

// endedContext records the key that it is asked for.
type endedContext struct {
	context.Context
	key any
}

func (c *endedContext) Err() error { return context.Canceled }

func (c *endedContext) Value(key any) any {
	c.key = key
	return nil
}
