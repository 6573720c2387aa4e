//go:build faketime

package main

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// message is a piece of work, as whoever stores it and whoever runs it see it.
type message struct {
	id, ticket    string // ticket: what the queue called it
	kind, key     string
	principal     string
	payload       []byte
	called        time.Time // when the call that stores it began
	acked         time.Time // when a call said that it is stored
	delay, maxAge time.Duration
	fresh         bool // it ran at once, and was not stored
	refused       bool // the queue was full
	result, told  bool // its handler set one, and nothing failed; its handler set one
	asked         bool // somebody asked for it to be cancelled
	redriven      int
	leads         bool             // it was redriven, and goes before what it halted
	news          int              // how many calls said that they stored it
	seen          delayqueue.State // the final state that it was seen in

	starts, done, failed int
	spent                int               // attempts that failed, and were not ended by a worker that stops
	unsettled            int               // attempts that were interrupted, or whose end Redis was perhaps not told of
	conflicts            int               // of those that failed: another key was held
	first                int64             // when it was first started, by Redis's clock
	firstAt              time.Time         // the same by the clock of the world
	doneAt               time.Time         // when it was last done
	running              []*stay           // its attempts
	entry                *delayqueue.Entry // what the queue said of it in the end
}

// ticketed reports whether the queue gives it its id.
func (m *message) ticketed() bool {
	return m.kind == "park" || m.kind == "quiet" || m.kind == "nameless"
}

// name is what the queue knows it by.
func (m *message) name() string {
	if m.ticket != "" {
		return m.ticket
	}
	return m.id
}

// ledger knows what was stored, and checks what becomes of it.
type ledger struct {
	w        *world
	attempts int           // that a message has at most
	window   time.Duration // for which a key is kept for a parked call; 0: it is not checked
	all      []*message
	byID     map[string]*message
	purged   bool // of dead letters, at the end
	patient  bool // workers claim messages for so long that lost requests cost them nothing
	forgets  bool // what ended is forgotten soon, for want of room
}

func newLedger(w *world, attempts int, window time.Duration) *ledger {
	return &ledger{w: w, attempts: attempts, window: window, byID: map[string]*message{}}
}

// patient is longer than it takes to make up for a request or two that are lost.
const patient = 4 * time.Second

// named returns the message that the queue knows by a name.
func (l *ledger) named(name string) *message {
	for _, m := range l.all {
		if m.name() == name {
			return m
		}
	}
	return nil
}

func (l *ledger) add(m *message) {
	l.all = append(l.all, m)
	l.byID[m.id] = m
}

// any returns a message that was acknowledged, or nil: mostly one of the latest.
func (l *ledger) any(r chance) *message {
	if len(l.all) == 0 {
		return nil
	}
	m := l.all[max(0, len(l.all)-1-r.IntN(pick(r, 5, 20, 100)))]
	if m.acked.IsZero() {
		return nil
	}
	return m
}

// of returns the message that a handler was given.
func (l *ledger) of(dm delayqueue.Message) *message {
	id, _, _ := strings.Cut(string(dm.Payload), " ")
	m := l.byID[id]
	if m == nil || !bytes.Equal(dm.Payload, m.payload) || dm.Key != m.key || m.ticket != "" && dm.ID != m.ticket || !m.ticketed() && dm.ID != m.id {
		l.w.violation("-", "a handler was given %s (%.20q, key %q), which nobody stored", dm.ID, dm.Payload, dm.Key)
		return nil
	}
	if m.ticket == "" && m.ticketed() {
		m.ticket = dm.ID
	}
	return m
}

// stored records what a call said that was to store a message.
func (l *ledger) stored(m *message, isNew bool, err error) {
	if err != nil {
		m.refused = m.acked.IsZero() && errors.Is(err, delayqueue.ErrFull)
		return
	}
	m.refused = false
	if m.acked.IsZero() {
		m.acked = time.Now()
	}
	if isNew {
		if m.news++; m.news > 1 && !l.lost(m) {
			l.w.violation("-", "%s was stored %d times", m.id, m.news)
		}
	}
}

// lost reports whether Redis may have lost a message, or all that it knew of it.
func (l *ledger) lost(m *message) bool { return m.called.Before(l.w.lostAt) }

func (l *ledger) missing(who string, m *message) {
	switch {
	case m.acked.IsZero() || l.lost(m):
	case l.purged && m.seen != delayqueue.StateDone && m.starts > 0: // it may have been a dead letter
	case l.forgets && !l.waits(m):
	default:
		l.w.violation(who, "%s (%s) was stored, and is not found", m.id, m.kind)
	}
}

// saw records the state that a call said a message is in.
func (l *ledger) saw(m *message, state delayqueue.State, redriven int) {
	if !state.Ended() || l.lost(m) || m.redriven != redriven {
		return
	}
	if m.seen != "" && m.seen != state && m.redriven == 0 {
		l.w.violation("-", "%s was %s, and is %s", m.id, m.seen, state)
	}
	m.seen = state
	l.check(m, state)
}

// check checks that a final state has its reason.
func (l *ledger) check(m *message, state delayqueue.State) {
	reason := true
	switch state {
	case delayqueue.StateDone:
		reason = m.done > 0
	case delayqueue.StateCancelled:
		reason = m.asked
	case delayqueue.StateSuperseded:
		reason = m.starts == m.conflicts && slices.ContainsFunc(l.all, func(o *message) bool { return o.replaces(m) && !o.refused })
	case delayqueue.StateExpired:
		age := time.Since(m.called) + l.w.server.ahead
		if m.failed > 0 || m.starts > 0 && !l.w.quiet(m.called) { // it failed, or was lost
			age += 30 * time.Second // it would be too old for its next attempt
		}
		reason = age >= m.maxAge
	case delayqueue.StateDead:
		reason = m.failed > 0 || m.starts >= l.attempts || l.w.on("stop") || l.w.on("die")
	}
	if !reason {
		l.w.violation("-", "%s (%s; %d starts, %d done, %d failed) is %s for no reason", m.id, m.kind, m.starts, m.done, m.failed, state)
	}
}

// replaces reports whether a message may take the place of another.
func (m *message) replaces(o *message) bool {
	return m != o && m.kind == o.kind && (m.kind == "coalesce" || m.kind == "debounce" || m.kind == "quiet") && m.key == o.key && m.principal == o.principal
}

// replaced checks that a message that is started was not replaced well before.
func (l *ledger) replaced(m *message) {
	for _, o := range l.all {
		if o.replaces(m) && !m.acked.IsZero() && m.acked.Before(o.called) && !o.acked.IsZero() && time.Since(o.acked) > 2*time.Second &&
			m.starts == m.conflicts && m.redriven == 0 && (l.w.quiet(m.called) || l.patient && l.w.spared(m.called, mild...)) {
			l.w.violation("-", "%s is started, and %s replaced it %s ago", m.id, o.id, time.Since(o.acked))
			return
		}
	}
}

// early reports whether a message is started within its quiet period. What it takes the place of may have waited for long enough.
func (l *ledger) early(m *message) bool {
	if m.kind != "debounce" && m.kind != "quiet" || time.Since(m.called) >= quietPeriod-2*time.Millisecond { // Redis's times are in whole ones
		return false
	}
	var started time.Time
	for _, o := range l.all {
		if o.replaces(m) && o.starts > o.conflicts {
			started = later(started, o.called) // one that was stored before is superseded
		}
	}
	return !slices.ContainsFunc(l.all, func(o *message) bool {
		return o.replaces(m) && o.called.Before(m.called) && o.starts == o.conflicts && time.Since(o.called) >= quietPeriod && later(o.called, o.acked).After(started)
	})
}

// cancelled checks that what a call cancelled was not too old for that.
func (l *ledger) cancelled(who string, m *message, began time.Time) {
	if late := began.Sub(m.acked); late > m.maxAge+time.Second && m.redriven == 0 && !l.w.on("clock-back") {
		l.w.violation(who, "%s is cancelled %s after it was stored, its age is at most %s", m.id, late, m.maxAge)
	}
}

// standstill is for how long a process may stand still between a look at the time and what it does then.
func (l *ledger) standstill() time.Duration {
	if l.w.on("stop") {
		return 7 * time.Second
	}
	return 100 * time.Millisecond
}

// waits reports whether a message is in the queue for sure, and was not given to a handler that failed.
func (l *ledger) waits(m *message) bool {
	return !m.acked.IsZero() && !m.fresh && m.seen == "" && m.done == 0 && m.failed == 0 && !m.asked && m.redriven == 0 &&
		m.kind != "coalesce" && m.kind != "debounce" && m.kind != "quiet" && time.Since(m.called) < m.maxAge && !l.lost(m) && l.w.quiet(m.called)
}

// mayWait reports whether a message may be in the queue.
func (m *message) mayWait() bool {
	return !m.refused && !m.fresh && (m.seen == "" || m.redriven > 0) && (m.done == 0 || time.Since(m.doneAt) < 10*time.Second)
}

// start records that a handler begins, and returns what to call when it ends.
func (l *ledger) start(ctx context.Context, p *process, m *message, dm delayqueue.Message) func(error) {
	l.w.emit(p.name, "starts", m.key, m.id, " attempt ", dm.Attempt, " losses ", dm.Losses)
	who := p.name
	clock := l.w.on("clock-forward") || l.w.on("clock-back")
	began := time.Now()
	l.replaced(m)
	m.starts++
	m.leads = false
	if m.first == 0 {
		m.first, m.firstAt = l.w.server.micros(), time.Now()
	}
	switch {
	case l.lost(m):
	case m.fresh:
		l.w.violation(who, "%s ran at once, and was stored", m.id)
	case m.seen != "" && m.redriven == 0:
		l.w.violation(who, "%s is %s, and is started", m.id, m.seen)
	case !clock && time.Since(m.called) < m.delay-2*time.Millisecond: // Redis has whole ones
		l.w.violation(who, "%s is started %s after it was stored, its delay is %s", m.id, time.Since(m.called), m.delay)
	case !clock && m.redriven == 0 && !m.acked.IsZero() && time.Since(m.acked) > m.maxAge+l.standstill():
		l.w.violation(who, "%s is started %s after it was stored, its age is at most %s", m.id, time.Since(m.called), m.maxAge)
	case m.done > 0 && dm.Losses == 0 && m.redriven == 0:
		l.w.violation(who, "%s was done, and is started without a loss", m.id)
	case dm.Losses > m.unsettled && l.patient && l.w.spared(m.called, mild...):
		l.w.violation(who, "%s has %d losses, %d attempts were not settled: at most messages were lost", m.id, dm.Losses, m.unsettled)
	case dm.Attempt-1 > m.spent+dm.Losses && m.redriven == 0:
		l.w.violation(who, "%s is in attempt %d, after %d that failed and %d losses", m.id, dm.Attempt, m.spent, dm.Losses)
	case dm.Losses > 0 && m.unsettled == 0 && l.w.quiet(m.called):
		l.w.violation(who, "%s has %d losses, and nothing failed", m.id, dm.Losses)
	case !clock && m.key != "" && slices.ContainsFunc(l.all, func(o *message) bool {
		return o.leads && o.key == m.key && !o.asked && o.acked.Before(m.called) && !l.lost(o)
	}):
		l.w.violation(who, "%s is started before what halted its key, and was redriven", m.id)
	case !clock && l.early(m):
		l.w.violation(who, "%s is started within its quiet period", m.id)
	}
	s := &stay{p: p, ctx: ctx}
	for _, o := range m.running {
		if o.alive() && s.alive() && !l.lost(m) && !l.w.on("clock-forward") {
			l.w.violation(who, "%s runs in %s already", m.id, o.p.name)
		}
	}
	m.running = append(m.running, s)
	returned := false
	return func(err error) {
		if returned {
			return
		}
		returned, s.left = true, true
		l.w.emit(p.name, "ends", m.key, m.id, " ", err)
		if ctx.Err() != nil && !p.ending && l.w.quiet(began) {
			l.w.violation(who, "%s is told to stop, and nothing failed: %v", m.id, context.Cause(ctx))
		}
		if ctx.Err() != nil || l.w.disturbed.After(time.Now()) {
			m.unsettled++
		}
		if err == nil {
			m.done++
			m.doneAt = time.Now()
		} else {
			m.failed++
			if errors.Is(err, errPanics) || !errors.Is(context.Cause(ctx), delayqueue.ErrStopped) {
				m.spent++
			}
		}
		if errors.Is(err, core.ErrConflict) {
			m.conflicts++
		}
	}
}

// handOver is for how long, at the very most, a process may hand a key on among its calls before it hears of a reservation.
const handOver = 200 * time.Millisecond

// overtakes checks that a fresh call that comes in has not overtaken a parked one, which was told so before it was granted the key.
func (l *ledger) overtakes(key string, s, last *stay) {
	if l.w.on("clock-forward") || l.w.on("clock-back") || last != nil && last.p == s.p && time.Since(last.ended) < handOver {
		return
	}
	var parked *message
	for _, m := range l.all {
		switch {
		case m.key != key || m.seen != "":
		case m.starts > 0 && m.done == 0 || m.starts > m.done+m.failed:
			return // it waits for its next attempt: the key is free meanwhile
		case (m.kind == "park" || m.kind == "quiet" && !slices.ContainsFunc(l.all, func(o *message) bool { return o.replaces(m) && o.called.After(m.called) })) && m.starts == 0 && !m.fresh && !m.asked && !m.acked.IsZero() && m.acked.UnixMicro() < s.fence &&
			l.w.disturbed.Before(m.called) && time.Since(m.called) < l.window:
			parked = m
		}
	}
	if parked != nil {
		l.w.violation(s.who, "%s: it overtakes %s, which was parked %s ago", key, parked.id, time.Since(parked.acked))
	}
}

// ended checks how a message ended.
func (l *ledger) ended(m *message, e delayqueue.Entry) {
	m.entry = &e
	if !e.State.Ended() {
		if !l.lost(m) {
			l.w.violation("-", "%s (%s, key %q) is %s two minutes after the last fault: %d starts, due %s", m.id, m.kind, m.key, e.State, m.starts, e.DueAt)
		}
		return
	}
	l.saw(m, e.State, m.redriven)
}

// order checks that messages of a key ran one after the other, in their order: what was stored before another was even called for had ended
// when that was first started.
func (l *ledger) order() {
	if l.w.on("clock-forward") || l.w.on("clock-back") || l.w.on("wipe") {
		return
	}
	plain := func(m *message) bool {
		return m.key != "" && (m.kind == "enqueue" || m.kind == "twice" || m.kind == "park") && m.redriven == 0 && !m.acked.IsZero() && m.entry != nil
	}
	for _, before := range l.all {
		for _, after := range l.all {
			if !plain(before) || !plain(after) || after.key != before.key || after.first == 0 || !before.acked.Before(after.called) {
				continue
			}
			if end := before.entry.EndedAt; !end.IsZero() && end.UnixMilli() > after.first/1000 {
				l.w.violation("-", "%s: %s was started %s before %s ended, which had been stored before", after.key, after.id, end.Sub(time.UnixMicro(after.first)), before.id)
			}
		}
	}
}
