package sqlfence

import (
	"errors"
	"fmt"

	"github.com/perkey-go/perkey/core"
)

// Why a holder is refused, for [errors.Is]. A holder that gets one of them must write nothing, since what it has read
// may be out of date. Other errors are the database's, or the ctx's with its cause: after those, too, begin again with [Claim].
var (
	// ErrStale: a newer holder of the key has claimed. Matches every *StaleError, which
	// matches core.ErrLeaseLost too.
	ErrStale = errors.New("a newer holder has claimed")
	// ErrNotClaimed: the lease has no claim on the key. Its holder did not call Claim before it
	// read, or the row has been removed since.
	ErrNotClaimed = errors.New("not claimed")
)

// StaleError is the refusal of a holder whose key a newer holder has claimed.
type StaleError struct {
	Key   string
	Fence int64 // of the refused holder's lease
	// Newest is the fence that has claimed: about when its lease was granted, in
	// microseconds since 1970. Zero: not known, as after [Exec].
	Newest int64
}

func (e *StaleError) Error() string {
	if e.Newest == 0 {
		return fmt.Sprintf("sqlfence: %q: fence %d changed no row: a newer holder has claimed it, or there is no such row: stop", e.Key, e.Fence)
	}
	return fmt.Sprintf("sqlfence: %q: a newer holder has claimed, with fence %d, and this lease has %d: stop", e.Key, e.Newest, e.Fence)
}

// Is makes every StaleError match ErrStale and core.ErrLeaseLost.
func (e *StaleError) Is(target error) bool {
	return target == ErrStale || target == core.ErrLeaseLost
}
