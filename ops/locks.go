package ops

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/nilcheck"
)

type lockCounters struct {
	calls         [len(outcomes)]atomic.Int64
	held, waiting atomic.Int64
	hold, wait    histogram
	lost          [len(lossKinds)]atomic.Int64
	unreleased    atomic.Int64
}

func (c *lockCounters) used() bool {
	return anyCounted(c.calls[:]) || c.waiting.Load() != 0
}

type renewalCounters struct {
	leases, failed atomic.Int64
	took           histogram
}

// Locks returns an observer for Lockers, [core.WithObserver], that counts events in r and then
// passes them to next. A nil next is [core.DefaultObserver]: lost leases and warnings are logged as
// without an observer.
func (r *Recorder) Locks(next core.Observer) core.Observer {
	if nilcheck.IsNil(next) {
		next = core.DefaultObserver(nil)
	}
	return &lockObserver{r, next}
}

type lockObserver struct {
	*Recorder
	next core.Observer
}

func (o *lockObserver) OnOutcome(ctx context.Context, e core.Outcome) {
	c := o.locks.of(e.Name)
	c.calls[indexOf(outcomes[:], e.Kind)].Add(1)
	if e.Leases != 0 {
		c.held.Add(int64(e.Leases))
	}
	if e.DidWait {
		c.waiting.Add(-1)
		c.wait.add(e.Waited)
	}
	if e.Kind == core.OutcomeShed || e.Kind == core.OutcomeUnavailable {
		o.notable.add(callEvent(&e), e.Cause)
	}
	if w := o.watched.Load(); w != nil {
		w.add(callEvent(&e), e.Cause, e.Keys...)
	}
	// Of a call that has several keys it is not known for which it waited.
	if conflicted(&e) && e.Key != "" && (e.Keys == nil || e.Kind != core.OutcomeAcquired) {
		now := time.Now()
		o.contended.add(e.Key)
		o.conflicts.add(now, e.Key, 1)
		if e.DidWait {
			o.waits.add(now, e.Key, e.Waited.Seconds())
		}
	}
	o.next.OnOutcome(ctx, e)
}

func conflicted(e *core.Outcome) bool {
	return e.DidWait || e.Kind == core.OutcomeConflict || e.Kind == core.OutcomeDeferred || e.Kind == core.OutcomeShed
}

func (o *lockObserver) OnWaiting(ctx context.Context, e core.Waiting) {
	o.locks.of(e.Name).waiting.Add(1)
	if w := o.watched.Load(); w != nil {
		w.add(Event{At: time.Now(), Source: sourceLocks, Kind: "waiting", Key: e.Key, Name: e.Name, ID: e.ID}, nil)
	}
	o.next.OnWaiting(ctx, e)
}

func (o *lockObserver) OnReleased(ctx context.Context, e core.Released) {
	c := o.locks.of(e.Name)
	if e.Err != nil {
		c.unreleased.Add(1)
	}
	o.ended(c, e.Key, e.Held)
	if w := o.watched.Load(); w != nil {
		w.add(releaseEvent(&e), e.Err)
	}
	o.next.OnReleased(ctx, e)
}

func (o *lockObserver) OnLost(ctx context.Context, e core.Lost) {
	c := o.locks.of(e.Name)
	c.lost[indexOf(lossKinds[:], e.Kind)].Add(1)
	o.ended(c, e.Key, e.Held)
	o.notable.add(lossEvent(&e), e.Cause)
	if w := o.watched.Load(); w != nil {
		w.add(lossEvent(&e), e.Cause)
	}
	o.next.OnLost(ctx, e)
}

// ended records the end of a lease.
func (r *Recorder) ended(c *lockCounters, key string, held time.Duration) {
	c.held.Add(-1)
	c.hold.add(held)
	if r.contended.has(key) {
		r.holds.add(time.Now(), key, held.Seconds())
	}
}

func (o *lockObserver) OnUnclaimed(ctx context.Context, e core.Unclaimed) {
	o.unclaimed.Add(1)
	o.next.OnUnclaimed(ctx, e)
}

func (o *lockObserver) OnRenewed(ctx context.Context, e core.Renewed) {
	if e.Err != nil {
		o.renewals.failed.Add(1)
	}
	o.renewals.leases.Add(int64(e.Leases))
	o.renewals.took.add(e.Latency)
	o.next.OnRenewed(ctx, e)
}

func (o *lockObserver) OnWarning(ctx context.Context, w core.Warning) {
	o.warnings.add(warning{sourceLocks, string(w.Kind)}, w.Node, w.Resolved)
	o.notable.add(warningEvent(sourceLocks, string(w.Kind), w.Node, w.Detail, w.Resolved), w.Err)
	o.next.OnWarning(ctx, w)
}
