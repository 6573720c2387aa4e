package core

import (
	"errors"
	"fmt"
	"time"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/core/internal/store"
)

// What can go wrong, distinguished by [errors.Is]. A caller's own ctx that ended is
// none of these: it is reported as context.Canceled or
// context.DeadlineExceeded, with the ctx's cause.
var (
	// ErrConflict: the key is held by somebody else, perhaps in a newer version's format, or
	// reserved. Matches every *ConflictError.
	ErrConflict = errors.New("key is held")
	// ErrDeferred: the work was accepted to run later. Matches every *DeferredError.
	ErrDeferred = errors.New("deferred")
	// ErrUnavailable: Redis could not be reached, or would not serve the
	// request. Nothing is known about the key, and no work ran.
	ErrUnavailable = store.ErrUnavailable
	// ErrNotReplicated: fewer replicas than WaitReplicas asks for have the grant. It was
	// released, and no work ran. Comes with ErrUnavailable.
	ErrNotReplicated = errors.New("grant not replicated")
	// ErrLeaseLost: the lease ended before it was released. What the holder did
	// since may have overlapped with the next holder: a store that claims fences keeps it out.
	ErrLeaseLost = errors.New("lease lost")
	// ErrDetached: the lease was detached: its key is held by its token now.
	ErrDetached = errors.New("lease detached")
	// ErrInvalidToken: what should be resumed is not a lease's token, not one of this
	// Locker's prefix, or one of a newer version.
	ErrInvalidToken = errors.New("invalid token")
	// ErrInvalidKey: the key is empty, too long, or holds control bytes.
	ErrInvalidKey = store.ErrInvalidKey
	// ErrInvalidOption: an option has a value that cannot work.
	ErrInvalidOption = errors.New("invalid option")
	// ErrUpgrade: the ctx holds the key together with others, and asks for it
	// exclusively: it would wait for itself. Release first.
	ErrUpgrade = errors.New("ctx holds the key shared and cannot have it exclusively")
	// ErrInvalidCursor: List did not give this cursor, or its node has left the
	// Cluster since. Begin again with an empty one.
	ErrInvalidCursor = store.ErrInvalidCursor
	// ErrNotExclusive: only an exclusive lease can be downgraded, and only by the call
	// that took the key first, not by a reentrant one.
	ErrNotExclusive = errors.New("lease is not exclusive")
	// ErrClosed: the Locker was closed.
	ErrClosed = lifecycle.ErrClosed
)

// ConflictError is the refusal of a call whose key is held by somebody else, or reserved
// for parked work.
type ConflictError struct {
	Key string
	// Remaining is what was left of the holder's lease at the last try. The
	// holder may release earlier, or renew. Zero: not known, as when the key is reserved for parked work
	// and nobody holds it.
	Remaining time.Duration
	// Waited is how long the call waited before it was refused.
	Waited time.Duration
	// Attempts is how often the call asked for the key, at least 1.
	Attempts int
	// Waiting is how many calls wait for the key, as far as is known: those of other
	// processes count as one each.
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

// DeferredError is the refusal of a call that was accepted to run later.
type DeferredError struct {
	Key    string
	Ticket Ticket
}

func (e *DeferredError) Error() string {
	return fmt.Sprintf("core: acquire %q: key is held: deferred to queue %q as %s", e.Key, e.Ticket.Queue, e.Ticket.ID)
}

// Is makes every DeferredError match ErrDeferred.
func (e *DeferredError) Is(target error) bool { return target == ErrDeferred }

// MaxKeyLen is the length of the longest key, in bytes: 512.
const MaxKeyLen = store.MaxKeyLen

// ValidateKey checks a key as Acquire does: 1 to 512 bytes, no ASCII control
// bytes. Its error wraps ErrInvalidKey and does not repeat the key.
func ValidateKey(key string) error { return store.ValidateKey(key) }
