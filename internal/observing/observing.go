// Package observing calls what a user gives, such as observers, so that its panics do no harm.
package observing

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Ending is how a function ended.
type Ending struct {
	Returned bool
	Panicked any // if it did not return: nil if it ended its goroutine, as a test's require does
	Stack    []byte
}

// Aside calls f, a user's function, on a goroutine of its own.
func Aside(f func()) Ending {
	ended := make(chan Ending, 1)
	go func() {
		var e Ending
		defer func() {
			if e.Panicked = recover(); e.Panicked != nil {
				e.Stack = debug.Stack()
			}
			ended <- e
		}()
		f()
		e.Returned = true
	}()
	return <-ended
}

// Tell calls tell, which calls an observer. If that panics, Tell logs it in the name of a package. A nil log is slog's
// default.
func Tell(ctx context.Context, log *slog.Logger, pkg string, tell func()) {
	defer func() {
		if p := recover(); p != nil {
			complain(ctx, log, pkg+": the observer panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	tell()
}

// TellAside is Tell on a goroutine of its own, which the observer may end: the caller's has more to do.
func TellAside(ctx context.Context, log *slog.Logger, pkg string, tell func()) {
	if !Aside(func() { Tell(ctx, log, pkg, tell) }).Returned {
		complain(ctx, log, pkg+": the observer ended its goroutine")
	}
}

func complain(ctx context.Context, log *slog.Logger, text string, about ...any) {
	if log == nil {
		log = slog.Default()
	}
	log.ErrorContext(ctx, text, about...)
}
