package store

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core/internal/lifecycle"
	"github.com/perkey-go/perkey/internal/ctxerr"
)

const (
	// Listing keys takes 1/listShare of a Redis at most.
	listShare = 20
	// What one step asks of Redis, which answers nobody else meanwhile: names to look at, and
	// keys to report on.
	scanAtOnce    = 50
	inspectAtOnce = 10
	// Steps that owe less go on at once: timers are no finer.
	shortestPause = time.Millisecond / 2
	// inspectTakes is what a report on one key takes, where that is not measured.
	inspectTakes = 20 * time.Microsecond
)

// pacer has the steps of all who list keys come one at a time, and no sooner than what the steps before
// took of Redis is 1/listShare of the time since.
type pacer struct {
	free chan struct{} // holds one: who has it may use next
	next time.Time
}

func newPacer() *pacer {
	p := &pacer{free: make(chan struct{}, 1)}
	p.free <- struct{}{}
	return p
}

// step runs f when it is its turn. f returns for how long Redis worked.
func (d *deployment) step(ctx context.Context, f func() (busy time.Duration, err error)) error {
	p := d.listing
	select {
	case <-p.free:
	case <-ctx.Done():
		return ctxerr.Of(ctx)
	}
	defer func() { p.free <- struct{}{} }()
	if pause := time.Until(p.next); pause >= shortestPause {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctxerr.Of(ctx)
		case <-d.life.Over():
			return lifecycle.ErrClosed
		}
	}
	began := time.Now()
	busy, err := f()
	busy = min(max(busy, 0), time.Since(began)) // Redis's clock may be set while it works
	if p.next.Before(began) {
		p.next = began
	}
	p.next = p.next.Add(listShare * busy)
	return err
}

// timed sends commands with one pipeline, and returns how long the server took for them by its own clock.
func timed(ctx context.Context, node redis.Cmdable, add func(redis.Pipeliner)) time.Duration {
	pipe := node.Pipeline()
	from := pipe.Time(ctx)
	add(pipe)
	to := pipe.Time(ctx)
	_, _ = pipe.Exec(ctx) // each command has its own error
	return to.Val().Sub(from.Val())
}
