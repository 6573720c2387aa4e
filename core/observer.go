package core

import (
	"context"
	"log/slog"
	"time"
)

// Observer is told what a Locker does: of calls on their own goroutines, of the rest on the Locker's, renewals included. So its methods
// must be safe for concurrent use and quick, and must not call the Locker. A panic of OnLost, OnUnclaimed, OnRenewed or OnWarning is
// logged with [slog.Default]; one of another method passes through the call to its caller. Embed [NopObserver], so that methods that are added later do not break
// your implementation.
//
// Keys are in the events for logs and traces; they make poor metric labels.
type Observer interface {
	// OnOutcome is called when a call for a key has been decided, before the call returns and before
	// it runs its function. It is called exactly once for each call of TryAcquire, Acquire, Do, Once,
	// TryAcquireAll, AcquireAll and Resume, of [Guard.Do], and of [Guard.Peek] if that meets a
	// conflict; for [Locker.Lead] once for each try. It is also called for a call with an invalid key or
	// option, and for one that ends in a panic of its policy. Steps on the way, such as
	// the decisions of a policy, are not outcomes.
	//
	// If the call was granted its key, ctx is that of the lease, or of the [LeaseSet]. If
	// OnOutcome panics, the key is released.
	OnOutcome(ctx context.Context, e Outcome)
	// OnWaiting is called when a call begins to wait for a key that is held: at most once for
	// each call, before the call's outcome, whose DidWait is then true.
	OnWaiting(ctx context.Context, e Waiting)
	// OnReleased is called when a lease was released by its holder, or detached.
	OnReleased(ctx context.Context, e Released)
	// OnLost is called when a lease ended before it was released. Its Release waits for that a
	// little, so that what is added to the span of a request is there in time.
	OnLost(ctx context.Context, e Lost)
	// OnUnclaimed is called when a grant comes after its call has left, which its outcome does not tell: the key is released at
	// once. Many of them mean that Redis is slower than callers wait.
	OnUnclaimed(ctx context.Context, e Unclaimed)
	// OnRenewed is called when Redis has answered a batch of renewals, or has failed to.
	OnRenewed(ctx context.Context, e Renewed)
	// OnWarning is called when something is found that makes locks less reliable or slower than they
	// could be, and when it is over.
	OnWarning(ctx context.Context, w Warning)
}

// Released describes a lease that its holder released, for [Observer].OnReleased.
type Released struct {
	Key, Name string
	// Fence is the lease's, as in its [Outcome].
	Fence int64
	// Held is the time from the grant to the release.
	Held time.Duration
	// Err is why Redis could not be told of the release; the key is free when its lease expires. Nil:
	// Redis was told.
	Err error
	// Detached: the key stays held, for the process that has the lease's token; see [Lease.Detach].
	Detached bool
}

// Lost describes a lease that ended before its holder released it, for [Observer].OnLost.
type Lost struct {
	Key, Name string
	// Fence is the lease's, as in its [Outcome].
	Fence int64
	// Held is the time from the grant until the loss was noticed.
	Held time.Duration
	Kind LossKind
	// Cause wraps [ErrLeaseLost]. It is also the cause of the lease's context, unless that ended earlier.
	Cause error
}

// Unclaimed describes a grant that no call took, for [Observer].OnUnclaimed.
type Unclaimed struct {
	Key string
}

// Renewed describes one batch of renewals, for [Observer].OnRenewed.
type Renewed struct {
	// Leases is how many leases were in the batch, and Latency how long Redis took to answer.
	Leases  int
	Latency time.Duration
	// Err is the first error of the batch, or nil. The renewals that failed are tried again.
	Err error
}

// NopObserver does nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

// OnOutcome does nothing.
func (NopObserver) OnOutcome(context.Context, Outcome) {}

// OnWaiting does nothing.
func (NopObserver) OnWaiting(context.Context, Waiting) {}

// OnReleased does nothing.
func (NopObserver) OnReleased(context.Context, Released) {}

// OnLost does nothing.
func (NopObserver) OnLost(context.Context, Lost) {}

// OnUnclaimed does nothing.
func (NopObserver) OnUnclaimed(context.Context, Unclaimed) {}

// OnRenewed does nothing.
func (NopObserver) OnRenewed(context.Context, Renewed) {}

// OnWarning does nothing.
func (NopObserver) OnWarning(context.Context, Warning) {}

// SlogObserver returns an [Observer] that logs all events to log. Warnings, lost leases, failed
// releases and renewals, and the outcomes shed, unavailable and error are logged at Warn. That a
// warning is resolved, or that the eviction policy is not known, is logged at Info, and everything
// else at Debug. A nil log is [slog.Default] at the time of the call.
func SlogObserver(log *slog.Logger) Observer {
	if log == nil {
		log = slog.Default()
	}
	return slogObserver{log}
}

type slogObserver struct{ log *slog.Logger }

func (o slogObserver) OnOutcome(ctx context.Context, e Outcome) {
	level := slog.LevelDebug
	switch e.Kind {
	case OutcomeShed, OutcomeUnavailable, OutcomeError:
		level = slog.LevelWarn
	}
	if !o.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("outcome", string(e.Kind)), slog.String("key", e.Key), slog.String("name", e.Name), slog.String("id", e.ID),
		slog.String("mode", string(e.Mode)), slog.Duration("waited", e.Waited), slog.Int("attempts", e.Attempts), slog.Int("waiting", e.Waiting),
	}
	if e.Fence != 0 {
		attrs = append(attrs, slog.Int64("fence", e.Fence))
	}
	if e.Keys != nil {
		attrs = append(attrs, slog.Any("keys", e.Keys))
	}
	if e.Cause != nil {
		attrs = append(attrs, slog.Any("cause", e.Cause))
	}
	o.log.LogAttrs(ctx, level, "perkey: outcome", attrs...)
}

func (o slogObserver) OnWaiting(ctx context.Context, e Waiting) {
	o.log.LogAttrs(ctx, slog.LevelDebug, "perkey: waiting", slog.String("key", e.Key), slog.String("name", e.Name), slog.String("id", e.ID),
		slog.String("mode", string(e.Mode)), slog.Int("waiting", e.Waiting), slog.Duration("remaining", e.Remaining))
}

func (o slogObserver) OnReleased(ctx context.Context, e Released) {
	attrs := []slog.Attr{slog.String("key", e.Key), slog.String("name", e.Name), slog.Int64("fence", e.Fence), slog.Duration("held", e.Held)}
	level := slog.LevelDebug
	if e.Err != nil {
		level, attrs = slog.LevelWarn, append(attrs, slog.Any("error", e.Err))
	}
	o.log.LogAttrs(ctx, level, "perkey: released", attrs...)
}

func (o slogObserver) OnUnclaimed(ctx context.Context, e Unclaimed) {
	o.log.LogAttrs(ctx, slog.LevelDebug, "perkey: unclaimed", slog.String("key", e.Key))
}

func (o slogObserver) OnLost(ctx context.Context, e Lost) {
	o.log.LogAttrs(ctx, slog.LevelWarn, "perkey: lease lost", slog.String("key", e.Key), slog.String("name", e.Name),
		slog.Int64("fence", e.Fence), slog.Duration("held", e.Held), slog.String("kind", string(e.Kind)), slog.Any("cause", e.Cause))
}

func (o slogObserver) OnRenewed(ctx context.Context, e Renewed) {
	attrs := []slog.Attr{slog.Int("leases", e.Leases), slog.Duration("latency", e.Latency)}
	level := slog.LevelDebug
	if e.Err != nil {
		level, attrs = slog.LevelWarn, append(attrs, slog.Any("error", e.Err))
	}
	o.log.LogAttrs(ctx, level, "perkey: renewed", attrs...)
}

func (o slogObserver) OnWarning(ctx context.Context, w Warning) {
	attrs := []slog.Attr{slog.String("kind", string(w.Kind)), slog.Bool("resolved", w.Resolved)}
	if w.Node != "" {
		attrs = append(attrs, slog.String("node", w.Node))
	}
	if w.Detail != "" {
		attrs = append(attrs, slog.String("detail", w.Detail))
	}
	if w.Err != nil {
		attrs = append(attrs, slog.Any("error", w.Err))
	}
	level := slog.LevelWarn
	if w.Resolved || w.Kind == WarnEvictionUnknown {
		level = slog.LevelInfo
	}
	o.log.LogAttrs(ctx, level, "perkey: warning", attrs...)
}
