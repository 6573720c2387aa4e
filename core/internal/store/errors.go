package store

// The errors of a store, and what an error says about Redis.

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

// Unavailable returns the error of a request that Redis did not serve.
func Unavailable(op, key string, err error) error {
	return fmt.Errorf("core: %s %q: %w: %w", op, key, ErrUnavailable, err)
}

// CallerGone returns the error of a call whose ctx has ended.
func CallerGone(ctx context.Context, op, key string) error {
	return fmt.Errorf("core: %s %q: %w", op, key, ctxerr.Of(ctx))
}

// Closed returns the error of a call on a closed Locker.
func Closed(op, key string) error {
	return fmt.Errorf("core: %s %q: %w", op, key, lifecycle.ErrClosed)
}

// unsentError is why a command was not sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// retriedError is the error of the last try of a command, when an earlier one may have run: what it says of Redis
// holds, but not what it says of the command.
type retriedError struct{ error }

func (e retriedError) Unwrap() error { return e.error }

func ranEarlier(err error) bool {
	_, is := errors.AsType[retriedError](err)
	return is
}

// Unsent reports whether err is that of a command that was not sent.
func Unsent(err error) bool {
	_, unsent := errors.AsType[unsentError](err)
	return unsent && !ranEarlier(err)
}

// MayHaveRun reports whether a command that failed may have had its effect: not if Redis refused
// it, nor if it was never sent.
func MayHaveRun(err error) bool {
	var refused redis.Error
	var op *net.OpError
	switch {
	case ranEarlier(err):
		return true
	case Unsent(err) || errors.As(err, &refused) || PoolTimeout(err):
		return false
	}
	return !errors.As(err, &op) || op.Op != "dial"
}

// PoolTimeout reports whether err says that all connections of this process are in use.
func PoolTimeout(err error) bool { return errors.Is(err, redis.ErrPoolTimeout) }

// SaysNothing reports whether err says nothing about the node: a caller has left, all connections
// are in use, the client was closed, or nothing was sent.
func SaysNothing(err error) bool {
	return errors.Is(err, context.Canceled) || PoolTimeout(err) || errors.Is(err, redis.ErrClosed) || Unsent(err)
}

// Outage reports whether err says that Redis does not serve at all for now, rather than that it
// refuses this request. A full pool says nothing about Redis.
func Outage(err error) bool {
	if replied(err) {
		return isTransient(err)
	}
	return errors.Is(err, ErrUnavailable)
}

// isUnreachable reports whether err says that the node does not answer. Any reply is an answer.
func isUnreachable(err error) bool { return err != nil && !replied(err) && !SaysNothing(err) }

// notSignedIn reports whether Redis refused a command without reading it, since its connection has
// not authenticated. For a command of more than ten words Redis has another error.
func notSignedIn(err error) bool {
	return replied(err) && !ranEarlier(err) && (redis.IsAuthError(err) || strings.Contains(err.Error(), "unauthenticated multibulk length"))
}

func replied(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// isTransient reports whether err is a reply by which the node serves no requests for now.
func isTransient(err error) bool {
	return redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsClusterDownError(err) ||
		redis.IsTryAgainError(err) || redis.IsMasterDownError(err) || redis.IsMaxClientsError(err)
}
