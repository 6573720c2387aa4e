package core

import (
	"context"

	"github.com/perkey-go/perkey/core/internal/store"
	"github.com/perkey-go/perkey/internal/observing"
)

// Warning reports something that makes locks less reliable or slower than they could be. No call
// fails because of it.
type Warning struct {
	Kind WarningKind
	// Node is the address of the server in question; empty if it is not about one server.
	Node string
	// Detail describes what was found.
	Detail string
	// Err is the underlying error, if there is one.
	Err error
	// Resolved: what an earlier Warning of this kind reported is over.
	Resolved bool
}

// WarningKind is the kind of a [Warning].
type WarningKind string

const (
	// WarnEviction reports that the server's maxmemory-policy lets it evict the records of held
	// keys. Records have a TTL, so the volatile policies evict them too. It is reported once
	// for each primary, after the first lease of a Locker with [WithObserver]. Set noeviction.
	WarnEviction WarningKind = store.WarnEviction
	// WarnEvictionUnknown reports that the server's maxmemory-policy could not be read.
	WarnEvictionUnknown WarningKind = store.WarnEvictionUnknown
	// WarnNoSubscription reports that the Locker has no subscription: Redis denies SUBSCRIBE or PUBLISH or
	// does not answer, or, with Sentinel, the subscription could not follow the client's
	// commands to a new primary. Waiting calls poll, and a holder learns of ForceRelease at its next
	// renewal. It is reported once, and again, as resolved, when there is a subscription.
	WarnNoSubscription WarningKind = store.WarnNoSubscription
	// WarnUnreachable reports that a server does not answer: calls for its keys
	// fail at once with [ErrUnavailable] until it does. It is reported once, and again, as
	// resolved, when it answers.
	WarnUnreachable WarningKind = store.WarnUnreachable
	// WarnContext reports that a call was given a framework's own context, such as a
	// *gin.Context, in a handler that runs under a lease. The call finds the lease, but its ctx
	// does not end when the client leaves or the lease is lost. It is reported once. Give
	// calls c.Request.Context(), or set gin's Engine.ContextWithFallback.
	WarnContext WarningKind = "context"
	// WarnOtherLocker reports that a call under a lease asked for the same key by a Locker with
	// another client or prefix, such as when the Locker of a delayqueue.Worker is not that of the guards. On
	// one Redis, with one prefix, the call waits for its own caller; otherwise the two leases do not
	// exclude one another. It is reported once. Give both Lockers one client and one prefix.
	WarnOtherLocker WarningKind = "other_locker"
)

func warningOf(w store.Warning) Warning {
	return Warning{Kind: WarningKind(w.Kind), Node: w.Node, Detail: w.Detail, Err: w.Err, Resolved: w.Resolved}
}

func (l *Locker) warn(w Warning) {
	observing.TellAside(context.Background(), nil, "core", func() { l.observer.OnWarning(context.Background(), w) })
}

func (l *Locker) warnContext() {
	l.warnedContext.Do(func() {
		l.warn(Warning{Kind: WarnContext, Detail: "a call's ctx is a framework's context, such as a *gin.Context, " +
			"which does not end when the client leaves or the lease is lost: give it c.Request.Context(), or set gin's Engine.ContextWithFallback"})
	})
}

func (l *Locker) warnOtherLocker() {
	l.warnedLocker.Do(func() {
		l.warn(Warning{Kind: WarnOtherLocker, Detail: "a call is made under a lease on the same key of a Locker with another " +
			"client or prefix, such as a worker's: it waits for itself, or the two do not exclude one another: give both Lockers one client and one prefix"})
	})
}

// checkEviction warns an Observer that was given of every primary that may evict records.
func (l *Locker) checkEviction() {
	switch l.observer.(type) {
	case NopObserver, *defaultObserver:
		return
	}
	ctx := l.life.Context()
	warnings := l.store.Evictions(ctx)
	if ctx.Err() != nil {
		return // what failed may have failed because the Locker closes
	}
	for _, w := range warnings {
		l.warn(warningOf(w))
	}
}
