package core

// What a Locker without an Observer logs.

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// maxLossesLogged is how many lost leases are logged one by one within a second.
const maxLossesLogged = 10

// DefaultObserver returns the [Observer] of a Locker without [WithObserver], for an Observer of
// yours that passes events on to it. It logs warnings, and lost leases, at most ten of them in a
// second. A nil log is [slog.Default] at the time of use.
func DefaultObserver(log *slog.Logger) Observer { return &defaultObserver{log: log} }

type defaultObserver struct {
	NopObserver
	log *slog.Logger // nil: slog's default at the time of use

	mu     sync.Mutex
	since  time.Time
	logged int // since then
}

func (o *defaultObserver) OnLost(ctx context.Context, e Lost) {
	o.mu.Lock()
	if now := time.Now(); now.Sub(o.since) >= time.Second {
		o.since, o.logged = now, 0
	}
	o.logged++
	logged := o.logged
	o.mu.Unlock()
	switch {
	case logged <= maxLossesLogged:
		o.slog().OnLost(ctx, e)
	case logged == maxLossesLogged+1:
		o.slog().log.WarnContext(ctx, "perkey: more leases are lost in this second: they are not logged one by one")
	}
}

func (o *defaultObserver) OnWarning(ctx context.Context, w Warning) { o.slog().OnWarning(ctx, w) }

func (o *defaultObserver) slog() slogObserver {
	if o.log != nil {
		return slogObserver{o.log}
	}
	return slogObserver{slog.Default()}
}
