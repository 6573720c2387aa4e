package store

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/ctxerr"
)

// Unavailable returns the error of a command that failed: the caller's own ctx's if that has ended,
// else one that wraps core.ErrUnavailable.
func Unavailable(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return CallerGone(ctx, op)
	}
	if IsMoving(err) {
		return fmt.Errorf("delayqueue: %s: %w: the queue's slot is being moved to another node: %w", op, core.ErrUnavailable, err)
	}
	return fmt.Errorf("delayqueue: %s: %w: %w", op, core.ErrUnavailable, err)
}

// IsMoving reports whether some of the keys are on another node, to which their slot is being
// moved, or have moved while go-redis followed them, which it does three times.
func IsMoving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN ") || redis.HasErrorPrefix(err, "ASK ") || redis.HasErrorPrefix(err, "MOVED ")
}

// CallerGone returns the error of a call whose caller's ctx has ended.
func CallerGone(ctx context.Context, op string) error {
	return fmt.Errorf("delayqueue: %s: %w", op, ctxerr.Of(ctx))
}
