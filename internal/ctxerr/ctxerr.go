// Package ctxerr makes the error of a caller's ctx that has ended.
package ctxerr

import (
	"context"
	"errors"
	"fmt"
)

// Of returns the error of an ended ctx, with its cause if that is more than the error.
func Of(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
