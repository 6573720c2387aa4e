package core

import (
	"errors"
	"fmt"
)

// LossKind is why a lease ended before its release. The kinds are few and fixed, so they make good
// metric labels.
type LossKind string

// Why a lease ended before its release.
const (
	// LossExpired: the lease was not renewed in time, since Redis was away or the process
	// was stopped; or its [MaxHold] is over.
	LossExpired LossKind = "expired"
	// LossGone: Redis does not know the lease any more. Redis lost data, or the record was deleted; or the lease
	// was ended as by LossForced or LossReleased, and the message was lost.
	LossGone LossKind = "gone"
	// LossForced: [Locker.ForceRelease] took the key away.
	LossForced LossKind = "forced"
	// LossReleased: another process that had the lease's token released it.
	LossReleased LossKind = "released"
	// LossClosed: the Locker was closed.
	LossClosed LossKind = "closed"
)

// loss is a LossKind in words.
type loss struct {
	kind LossKind
	text string
}

var (
	ranOut    = loss{LossExpired, "it was not renewed in time"}
	notOurs   = loss{LossGone, "redis says that the key is not ours"}
	forced    = loss{LossForced, "it was taken away with ForceRelease"}
	elsewhere = loss{LossReleased, "it was released by another that had its token"}
)

type lossError struct {
	key string
	loss
}

func lost(key string, why loss) error { return &lossError{key, why} }

func (e *lossError) Error() string {
	return fmt.Sprintf("core: %q: %v: %s", e.key, ErrLeaseLost, e.text)
}

func (e *lossError) Unwrap() error { return ErrLeaseLost }

// lossOf returns the kind of a lease's end from the cause of its context.
func lossOf(cause error) LossKind {
	if e, ok := errors.AsType[*lossError](cause); ok {
		return e.kind
	}
	return LossClosed
}
