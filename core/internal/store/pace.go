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
	// How many names one step reads, and on how many keys it reports: Redis serves no other request meanwhile.
	scanAtOnce    = 50
	inspectAtOnce = 10
	// A pause that would be shorter is left out: timers are not that fine.
	shortestPause = time.Millisecond / 2
	// inspectTakes is how long Redis takes for a report on one key, where that is not measured.
	inspectTakes = 20 * time.Microsecond
)

// pacer lets the steps of all calls of List run one at a time, with pauses so that the time that
// they take of Redis is at most 1/listShare.
type pacer struct {
	free chan struct{} // holds one: the step that has taken it may use next
	next time.Time
}

func newPacer() *pacer {
	p := &pacer{free: make(chan struct{}, 1)}
	p.free <- struct{}{}
	return p
}

// step runs f when the pacer allows it. f returns for how long Redis worked.
func (d *deployment) step(ctx context.Context, f func() (busy time.Duration, err error)) error {
	p := d.listing
	select {
	case <-p.free:
	case <-ctx.Done():
		return ctxerr.Of(ctx)
	}
	defer func() { p.free <- struct{}{} }()
	if pause := time.Until(p.next); pause >= shortestPause {
		select {
		case <-time.After(pause):
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

// timed sends commands in one pipeline, and returns how long the server took for them, by its own
// clock.
func timed(ctx context.Context, node redis.Cmdable, add func(redis.Pipeliner)) time.Duration {
	pipe := node.Pipeline()
	from := pipe.Time(ctx)
	add(pipe)
	to := pipe.Time(ctx)
	_, _ = pipe.Exec(ctx) // each command has its own error
	return to.Val().Sub(from.Val())
}
