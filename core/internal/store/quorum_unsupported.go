package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// unsupported is the answer to what only one deployment has an answer to.
func unsupported(op string) error {
	return fmt.Errorf("core: %s: a quorum has no one answer, ask a Locker on each of its nodes: %w", op, errors.ErrUnsupported)
}

// AcquireAll implements Store.
func (q *Quorum) AcquireAll(context.Context, AcquireAllRequest) (AcquireAllReply, error) {
	return AcquireAllReply{}, unsupported("acquire all")
}

// Refresh implements Store.
func (q *Quorum) Refresh(context.Context, []Refresh) []RefreshReply { return nil } // nothing is queued

// Admit implements Store.
func (q *Quorum) Admit(string, string, []Follower, func([]int64, error)) bool { return false }

// Confirm implements Store.
func (q *Quorum) Confirm(context.Context, func() []Renewal, int, time.Duration) ([]bool, int, error) {
	return nil, 0, unsupported("confirm")
}

// Downgrades implements Store.
func (q *Quorum) Downgrades() error { return unsupported("downgrade") }

// Downgrade implements Store.
func (q *Quorum) Downgrade(context.Context, DowngradeRequest) (bool, error) {
	return false, q.Downgrades()
}

// Inspect implements Store.
func (q *Quorum) Inspect(context.Context, string) (Info, error) {
	return Info{}, unsupported("inspect")
}

// List implements Store.
func (q *Quorum) List(context.Context, string, int) ([]Info, string, error) {
	return nil, "", unsupported("list")
}

// Force implements Store.
func (q *Quorum) Force(context.Context, string, int64) (int64, error) {
	return 0, unsupported("force release")
}

// Reserve implements Store.
func (q *Quorum) Reserve(context.Context, string, time.Duration) (int64, error) {
	return 0, unsupported("reserve")
}

// Unreserve implements Store.
func (q *Quorum) Unreserve(context.Context, string, int64) (bool, error) {
	return false, unsupported("unreserve")
}
