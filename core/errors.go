package core

import (
	"errors"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/core/internal/store"
)

// The errors of this package, distinguished by [errors.Is]. When the caller's own ctx ends, a call
// returns none of these but [context.Canceled] or [context.DeadlineExceeded], with the ctx's cause.
var (
	// ErrConflict: the key is held by another call, perhaps in a newer version's format, or
	// reserved. It matches every [*ConflictError].
	ErrConflict = errors.New("key is held")
	// ErrDeferred: the work was accepted to run later. It matches every [*DeferredError]. The error of a policy or of
	// Call.BeforeWait never matches it, even if it wraps one of another call.
	ErrDeferred = errors.New("deferred")
	// ErrUnavailable: Redis could not be reached, or did not serve the
	// request. Nothing is known about the key, and no work ran.
	ErrUnavailable = store.ErrUnavailable
	// ErrNotReplicated: fewer replicas than [WaitReplicas] asks for have the grant. It was
	// released, and no work ran. An error that wraps it wraps ErrUnavailable too.
	ErrNotReplicated = errors.New("grant not replicated")
	// ErrLeaseLost: the lease ended before it was released. What the holder did
	// since may have overlapped with the next holder: a store that claims fences keeps it out.
	ErrLeaseLost = errors.New("lease lost")
	// ErrDetached: the lease was detached: its token holds the key now. See [Lease.Detach].
	ErrDetached = errors.New("lease detached")
	// ErrInvalidToken: the text given to [Locker.Resume] is not the token of a lease, is for
	// another prefix, or was written by a newer version.
	ErrInvalidToken = errors.New("invalid token")
	// ErrInvalidKey: the key is empty, too long, or has control bytes; see [ValidateKey].
	ErrInvalidKey = store.ErrInvalidKey
	// ErrInvalidOption: an option has a value that cannot work.
	ErrInvalidOption = errors.New("invalid option")
	// ErrUpgrade: the ctx holds the key as one of several, and asks for it exclusively. The
	// call would wait for itself: release first.
	ErrUpgrade = errors.New("ctx holds the key shared and cannot have it exclusively: take it exclusively in front")
	// ErrInvalidCursor: [Locker.List] did not return this cursor, or its node has left the
	// Cluster since. Begin again with an empty one.
	ErrInvalidCursor = store.ErrInvalidCursor
	// ErrNotExclusive: the lease is not exclusive, or not the one that took the key first but a
	// reentrant one, so [Lease.Downgrade] cannot downgrade it.
	ErrNotExclusive = errors.New("lease is not exclusive")
	// ErrClosed: the Locker was closed.
	ErrClosed = lifecycle.ErrClosed
)

// ConflictError is the refusal of a call whose key is held by another call, or reserved for parked
// work. The call did no work and holds nothing. It matches [ErrConflict].
type ConflictError struct {
	Key string
	// Remaining is how much was left of the holder's lease when the call last asked. The
	// holder may release earlier, or renew. Zero: not known, as when nobody holds the key but
	// it is reserved.
	Remaining time.Duration
	// Waited is how long the call waited before it was refused.
	Waited time.Duration
	// Attempts is how often the call asked for the key, at least 1.
	Attempts int
	// Waiting is how many calls wait for the key, as far as is known: the calls of each other
	// process count as one.
	Waiting int
}

func (e *ConflictError) Error() string {
	if e.Remaining <= 0 { // nobody may hold it
		return fmt.Sprintf("core: acquire %q: key is held, or reserved for parked work (attempts %d, waited %s)",
			e.Key, e.Attempts, e.Waited.Round(time.Millisecond))
	}
	return fmt.Sprintf("core: acquire %q: key is held (attempts %d, waited %s, holder's lease ends in %s)",
		e.Key, e.Attempts, e.Waited.Round(time.Millisecond), e.Remaining.Round(time.Millisecond))
}

// Is makes every ConflictError match ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// DeferredError is the refusal of a call that was accepted to run later: the work is stored, and
// has not run. It matches [ErrDeferred].
type DeferredError struct {
	Key    string
	Ticket Ticket
}

func (e *DeferredError) Error() string {
	return fmt.Sprintf("core: acquire %q: key is held: deferred to queue %q as %s", e.Key, e.Ticket.Queue, e.Ticket.ID)
}

// Is makes every DeferredError match ErrDeferred.
func (e *DeferredError) Is(target error) bool { return target == ErrDeferred }

// notDeferred is an error that a policy or BeforeWait returned, without any deferral that it wraps: only a [Decision]
// defers a call, and whoever is told of a deferral takes the call's work for stored.
func notDeferred(err error) error {
	if errors.Is(err, ErrDeferred) {
		return notDeferredError{err}
	}
	return err
}

type notDeferredError struct{ error }

func (e notDeferredError) Is(target error) bool {
	return target != ErrDeferred && errors.Is(e.error, target)
}

func (e notDeferredError) As(target any) bool {
	_, deferred := target.(**DeferredError)
	return !deferred && errors.As(e.error, target)
}

// MaxKeyLen is the length of the longest key, in bytes: 512.
const MaxKeyLen = store.MaxKeyLen

// ValidateKey checks a key as [Locker.Acquire] does: 1 to 512 bytes, no ASCII control bytes. Its
// error wraps [ErrInvalidKey] and does not repeat the key.
func ValidateKey(key string) error { return store.ValidateKey(key) }
