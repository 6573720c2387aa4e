// Package observing calls observers so that their panics do no harm.
package observing

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Tell calls tell, which calls an observer. If that panics, Tell logs it in the name of a package. A nil log is slog's
// default.
func Tell(ctx context.Context, log *slog.Logger, pkg string, tell func()) {
	defer func() {
		if p := recover(); p != nil {
			if log == nil {
				log = slog.Default()
			}
			log.ErrorContext(ctx, pkg+": the observer panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	tell()
}
