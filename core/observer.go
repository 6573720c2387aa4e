package core

import (
	"context"
	"log/slog"
	"time"
)

// Observer is told what a Locker does. Its methods are called on the goroutine
// that does it, renewals included: they must be quick and must not call the
// Locker. Embed NopObserver, so that new methods do not break yours.
//
// Keys are in the events for logs and traces; they make poor metric labels.
type Observer interface {
	// OnAcquired: a lease was granted.
	OnAcquired(ctx context.Context, e Acquired)
	// OnConflict: a call met a held key, and the policy decided.
	OnConflict(ctx context.Context, e Conflicted)
	// OnReleased: a lease was released by its holder, or detached.
	OnReleased(ctx context.Context, e Released)
	// OnLost: a lease ended before it was released.
	OnLost(ctx context.Context, e Lost)
	// OnRenewed: a batch of leases was sent for renewal.
	OnRenewed(ctx context.Context, e Renewed)
	// OnWarning: the deployment keeps locks less well than it could, or does so no
	// longer.
	OnWarning(ctx context.Context, w Warning)
}

// Acquired tells of a granted lease.
type Acquired struct {
	Key, Name string
	Fence     int64
	// Waited is the time from the call to the grant; Attempts at least 1.
	Waited   time.Duration
	Attempts int
	// Resumed: the key was held before, and its lease came with a token.
	Resumed bool
}

// Conflicted tells of a call that met a held key.
type Conflicted struct {
	Key, Name string
	Decision  Decision
	Waited    time.Duration
	Attempts  int
}

// Released tells of a lease that its holder gave back.
type Released struct {
	Key, Name string
	Held      time.Duration
	// Err is why Redis was not told; the key is free when its lease ends.
	Err error
	// Detached: the key stays taken, for who has the lease's token.
	Detached bool
}

// Lost tells of a lease that ended before its holder gave it back.
type Lost struct {
	Key, Name string
	Held      time.Duration
	Cause     error
}

// Renewed tells of one round trip of renewals.
type Renewed struct {
	Leases  int
	Latency time.Duration
	// Err is the first transport error; those leases are tried again.
	Err error
}

// NopObserver does nothing.
type NopObserver struct{}

var _ Observer = NopObserver{}

// OnAcquired does nothing.
func (NopObserver) OnAcquired(context.Context, Acquired) {}

// OnConflict does nothing.
func (NopObserver) OnConflict(context.Context, Conflicted) {}

// OnReleased does nothing.
func (NopObserver) OnReleased(context.Context, Released) {}

// OnLost does nothing.
func (NopObserver) OnLost(context.Context, Lost) {}

// OnRenewed does nothing.
func (NopObserver) OnRenewed(context.Context, Renewed) {}

// OnWarning does nothing.
func (NopObserver) OnWarning(context.Context, Warning) {}

// SlogObserver writes events to log: warnings, lost leases and failed releases and
// renewals at Warn, everything else at Debug; at Info that a warning is resolved, or
// that the eviction policy is not known. A nil log is slog's default one.
func SlogObserver(log *slog.Logger) Observer {
	if log == nil {
		log = slog.Default()
	}
	return slogObserver{log}
}

type slogObserver struct{ log *slog.Logger }

func (o slogObserver) OnAcquired(ctx context.Context, e Acquired) {
	o.log.LogAttrs(ctx, slog.LevelDebug, "perkey: acquired", slog.String("key", e.Key), slog.String("name", e.Name),
		slog.Int64("fence", e.Fence), slog.Duration("waited", e.Waited), slog.Int("attempts", e.Attempts))
}

func (o slogObserver) OnConflict(ctx context.Context, e Conflicted) {
	o.log.LogAttrs(ctx, slog.LevelDebug, "perkey: conflict", slog.String("key", e.Key), slog.String("name", e.Name),
		slog.String("decision", e.Decision.String()), slog.Duration("waited", e.Waited), slog.Int("attempts", e.Attempts))
}

func (o slogObserver) OnReleased(ctx context.Context, e Released) {
	attrs := []slog.Attr{slog.String("key", e.Key), slog.String("name", e.Name), slog.Duration("held", e.Held)}
	level := slog.LevelDebug
	if e.Err != nil {
		level, attrs = slog.LevelWarn, append(attrs, slog.Any("error", e.Err))
	}
	o.log.LogAttrs(ctx, level, "perkey: released", attrs...)
}

func (o slogObserver) OnLost(ctx context.Context, e Lost) {
	o.log.LogAttrs(ctx, slog.LevelWarn, "perkey: lease lost", slog.String("key", e.Key), slog.String("name", e.Name),
		slog.Duration("held", e.Held), slog.Any("cause", e.Cause))
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
