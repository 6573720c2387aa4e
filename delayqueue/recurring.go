package delayqueue

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// WarnForgotten reports that dead letters were forgotten before their time ([WithDeadRetention]),
// since they took more than half of [WithMaxBytes]. The process that found it reports it, and again, as
// resolved, when it has found no more of them for a minute.
const WarnForgotten WarningKind = "dead_letters_forgotten"

// WarnClockBack reports that the clock of Redis was set back while the queue was in use, by a second or
// more: see [Stats].ClockBack. Each process with a Worker reports it, also one that starts later, and as
// resolved when it has found no further such step for a minute.
const WarnClockBack WarningKind = "clock_back"

const recurringOpen = time.Minute // for how long a warning stays

// recurring is a warning of what can be found again and again: one is open for as long as that goes on.
type recurring struct {
	over  string // the detail of its end: how often it was found, and for how long not
	mu    sync.Mutex
	n     int // found since it is open
	until time.Time
}

// noteForgotten warns of dead letters that were forgotten, the last of a name.
func (q *reporter) noteForgotten(n int, name string) {
	q.found(WarnForgotten, n, fmt.Sprintf("dead letters take more than half of WithMaxBytes, so the oldest are forgotten, now of %q: "+
		"redrive or purge some, or raise WithMaxBytes", name))
}

// noteSetBack warns of a clock that was set back.
func (q *reporter) noteSetBack(ahead time.Duration) {
	q.found(WarnClockBack, 1, fmt.Sprintf("the clock of redis was set back: the queue goes on, and the times that it tells are ahead of that clock by %s", ahead))
}

// found opens a warning, or notes that what it reports goes on. It does not wait for an observer.
func (q *reporter) found(kind WarningKind, n int, detail string) {
	r := q.recurring[kind]
	r.mu.Lock()
	first := r.n == 0
	r.n += n
	r.until = time.Now().Add(recurringOpen)
	r.mu.Unlock()
	if first {
		go q.warn(Warning{Kind: kind, Detail: detail})
		time.AfterFunc(recurringOpen, func() { q.lookAgain(kind) })
	}
}

// lookAgain resolves a warning if nothing was found for long enough, or looks again.
func (q *reporter) lookAgain(kind WarningKind) {
	r := q.recurring[kind]
	r.mu.Lock()
	n, left := r.n, time.Until(r.until)
	if left <= 0 {
		r.n = 0
	}
	r.mu.Unlock()
	if left > 0 {
		time.AfterFunc(left, func() { q.lookAgain(kind) })
		return
	}
	q.warn(Warning{Kind: kind, Resolved: true, Detail: fmt.Sprintf(r.over, n, recurringOpen)})
}

func (q *reporter) warn(w Warning) {
	w.Queue = q.name
	observe(slog.Default(), func() { q.observer.OnWarning(context.Background(), w) })
}
