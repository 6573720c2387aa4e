package store

// What can go wrong, and what an error says of Redis.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/internal/ctxerr"
	"github.com/perkey-go/perkey/internal/luascript"
)

// Errors of core, which documents them.
var (
	ErrUnavailable   = errors.New("redis unavailable")
	ErrInvalidKey    = errors.New("invalid key")
	ErrInvalidCursor = errors.New("invalid cursor")
)

var errShape = luascript.ErrReply

// Unavailable reports that Redis did not do what was asked.
func Unavailable(op, key string, err error) error {
	return fmt.Errorf("core: %s %q: %w: %w", op, key, ErrUnavailable, err)
}

// CallerGone reports the caller's own ctx.
func CallerGone(ctx context.Context, op, key string) error {
	return fmt.Errorf("core: %s %q: %w", op, key, ctxerr.Of(ctx))
}

// Closed reports that the Locker was closed.
func Closed(op, key string) error {
	return fmt.Errorf("core: %s %q: %w", op, key, lifecycle.ErrClosed)
}

// unsentError is why a command was not sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// Unsent reports whether err is of a command that was not sent.
func Unsent(err error) bool {
	var unsent unsentError
	return errors.As(err, &unsent)
}

// MayHaveRun reports whether a command that failed may have had its effect: not if Redis refused it,
// and not if it was never sent.
func MayHaveRun(err error) bool {
	var refused redis.Error
	var op *net.OpError
	if Unsent(err) || errors.As(err, &refused) || PoolTimeout(err) {
		return false
	}
	return !errors.As(err, &op) || op.Op != "dial"
}

// PoolTimeout reports whether err says that all connections of this process are in use.
func PoolTimeout(err error) bool { return errors.Is(err, redis.ErrPoolTimeout) }

// SaysNothing reports whether err is none of the node's doing: a caller has left, all connections
// are in use, the client was closed, or nothing was sent.
func SaysNothing(err error) bool {
	return errors.Is(err, context.Canceled) || PoolTimeout(err) || errors.Is(err, redis.ErrClosed) || Unsent(err)
}

// Outage reports whether a request that failed with err says that Redis does not serve at all, which
// can end, rather than that it refuses this request. A full pool says nothing about Redis.
func Outage(err error) bool {
	if replied(err) {
		return isTransient(err)
	}
	return errors.Is(err, ErrUnavailable)
}

// isUnreachable reports whether err says that the node does not answer. Whatever it replies is an
// answer.
func isUnreachable(err error) bool { return err != nil && !replied(err) && !SaysNothing(err) }

// notSignedIn reports whether Redis refused a command unread, since its connection has not signed in. One of more than ten
// words it refuses in its own way.
func notSignedIn(err error) bool {
	return replied(err) && (redis.IsAuthError(err) || strings.Contains(err.Error(), "unauthenticated multibulk length"))
}

func replied(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// isTransient reports whether err is a reply that says that the node serves nobody for now.
func isTransient(err error) bool {
	return redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsClusterDownError(err) ||
		redis.IsTryAgainError(err) || redis.IsMasterDownError(err) || redis.IsMaxClientsError(err)
}
