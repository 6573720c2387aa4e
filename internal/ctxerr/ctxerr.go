// Package ctxerr words the end of a caller's ctx.
package ctxerr

import (
	"context"
	"errors"
	"fmt"
)

// Of returns the error of an ended ctx, with its cause when that says more.
func Of(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
