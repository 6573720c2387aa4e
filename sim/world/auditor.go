//go:build faketime

package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/perkey-go/perkey/core"
)

// stay is somebody who works under a lease, as the auditor sees it: inside as long as the lease's ctx is alive.
type stay struct {
	p      *process
	who    string
	ctx    context.Context
	mode   core.Mode
	limit  int // of a counted one
	fence  int64
	since  int64 // when it was granted, by Redis's clock: a fence may be ahead of that
	began  time.Time
	left   bool
	until  time.Time     // when its lease ends, if nothing lengthens it any more
	over   bool          // it has left, or its lease has ended
	ended  time.Time     // when it left
	again  bool          // others of its process worked under the same lease before
	forced int           // how many calls may have taken its lease, or the grant that it is of, away
	most   time.Duration // for how long it may have its lease; 0: for as long as it likes
	least  time.Duration // for how long nobody else has the key, since the lease was granted
	lost   bool          // its lease had ended when it left
	ofSet  bool          // its lease may end because that of another key was taken away
	tried  bool          // its call counts among auditor.some until it is inside
}

// under is a stay under an exclusive lease.
func under(p *process, who string, lease *core.Lease) *stay {
	return &stay{p: p, who: who, ctx: lease.Context(), mode: core.ModeExclusive, fence: lease.Fence()}
}

// alive reports whether a holder may go on. The ctx of a lease looks at its time, and what it starts then is of the group of whoever
// asks: one that is stopped would never end it.
func (s *stay) alive() bool { return !s.left && (s.p.w.strict("deaf") || s.ctx.Err() == nil) }

// holds reports whether it may have the key: its lease is not lost, although its caller's time may be over.
func (s *stay) holds() bool {
	return !s.left && !errors.Is(context.Cause(s.ctx), core.ErrLeaseLost)
}

// auditor checks who works under the same key.
type auditor struct {
	w       *world
	inside  map[string][]*stay
	fences  map[string]int64 // the greatest by key
	grants  map[grant]*stay  // who was given each
	last    map[string]*stay // who came in last
	line    map[string][]*waiter
	left    map[string][]*stay   // who came in, for as long as they may have the key
	lined   map[string]time.Time // when somebody last waited
	kept    map[string]time.Time // until when somebody may have a key who is not inside
	turn    map[string]*process  // who was served last
	some    map[string]int       // calls that are not in line, and may have this key already
	victims map[string]*stay     // whose lease a call last tried to take away
}

// waiter is a call that waits for a key for as long as its ctx lives.
type waiter struct {
	*stay // that is to be
	ctx   context.Context
	from  time.Time
	turns map[*process]int // how often each other process was served meanwhile
}

// grant is a fence of a key: no other grant has it.
type grant struct {
	key   string
	fence int64
}

func newAuditor(w *world) *auditor {
	return &auditor{
		w: w, inside: map[string][]*stay{}, fences: map[string]int64{}, grants: map[grant]*stay{}, last: map[string]*stay{},
		left: map[string][]*stay{}, lined: map[string]time.Time{}, line: map[string][]*waiter{}, kept: map[string]time.Time{}, turn: map[string]*process{}, some: map[string]int{}, victims: map[string]*stay{},
	}
}

// enter records a holder who begins to work.
func (a *auditor) enter(key string, s *stay) {
	if s.tried {
		defer func() { a.some[key]-- }()
	}
	if !s.alive() {
		return
	}
	s.began, s.since = time.Now(), min(s.fence, a.w.server.micros())
	if of := a.victims[key]; of != nil && s.isOf(of) {
		s.forced++
	}
	a.w.emit(s.who, "enters", key, string(s.mode), " fence ", s.fence)
	all := slices.Clone(a.inside[key]) // to ask a context may wait, and others come in meanwhile
	last, before := a.last[key], 1
	a.inside[key], a.last[key] = append(a.inside[key], s), s
	for _, o := range all {
		if o.over = !o.holds(); !o.alive() || a.excused(o) || a.excused(s) {
			continue
		}
		if s.mode == core.ModeExclusive || o.mode == core.ModeExclusive {
			a.w.violation(s.who, "%s: %s (fence %d) is inside beside %s (%s, fence %d)", key, s.mode, s.fence, o.who, o.mode, o.fence)
		}
		if o.fence < s.fence { // readers may join later
			before++
		}
	}
	if s.mode == core.ModeCounted && before > s.limit {
		a.w.violation(s.who, "%s: number %d of %d", key, before, s.limit)
	}
	if latest := a.fences[key]; s.mode == core.ModeExclusive && s.fence < latest && !a.excused(s) && !a.w.on("clock-back") {
		a.w.violation(s.who, "%s: fence %d after %d", key, s.fence, latest)
	}
	if last != nil && last.least > 0 && (s.mode == core.ModeExclusive || last.mode == core.ModeExclusive) &&
		!a.excused(last) && !a.excused(s) && !last.lost && s.fence != last.fence && !a.w.on("clock-back") {
		if apart := time.Duration(s.since-last.since) * time.Microsecond; apart > 0 && apart < last.least-ahead {
			a.w.violation(s.who, "%s: it is granted %s after %s, which has it for at least %s", key, apart, last.who, last.least)
		}
	}
	this := grant{key, s.fence}
	if other := a.grants[this]; other != nil && (!s.again || other.p != s.p) && !a.w.on("clock-back") {
		a.w.violation(s.who, "%s: fence %d, which %s was given", key, s.fence, other.who)
	}
	a.grants[this] = s
	a.fences[key] = max(a.fences[key], s.fence)
	a.inside[key] = slices.DeleteFunc(a.inside[key], func(o *stay) bool { return o.over })
	a.left[key] = append(slices.DeleteFunc(a.left[key], func(o *stay) bool { return !o.near() }), s)
}

// leave records that a holder is done.
func (a *auditor) leave(key string, s *stay) {
	if errors.Is(context.Cause(s.ctx), core.ErrLeaseLost) && s.forced == 0 && !s.ofSet && s.most == 0 && !s.p.ending && a.w.quiet(s.began) {
		a.w.violation(s.who, "%s: its lease is lost, and nothing failed", key)
	}
	o, once := a.w.away(time.Now().Add(-2 * s.p.ttl)) // what was handed over is to be confirmed first
	if once && o.from.After(s.began.Add(2*time.Second)) && o.d < s.p.ttl*2/3-time.Second && errors.Is(context.Cause(s.ctx), core.ErrLeaseLost) &&
		s.forced == 0 && !s.ofSet && s.most == 0 && !s.p.ending && a.w.spared(s.began, "restart", "forget", "deaf") {
		a.w.violation(s.who, "%s: its lease is lost, and Redis was away for %s, of %s", key, o.d, s.p.ttl)
	}
	if held := time.Since(s.began); s.most > 0 && held > s.most+10*time.Millisecond && s.alive() {
		a.w.violation(s.who, "%s: it still has its lease after %s, of at most %s", key, held, s.most)
	}
	s.left, s.ended, s.lost = true, time.Now(), s.ctx.Err() != nil
	a.w.emit(s.who, "leaves", key)
}

// ahead is by how much a fence may be ahead of Redis's time: after a ForceRelease it is above all that a process can have handed on. And
// the embedded Redis has fractions of milliseconds, which a script loses that keeps an expiry as it is.
const ahead = 70 * time.Millisecond

// waits records a call that waits, and returns what ends that.
func (a *auditor) waits(ctx context.Context, s *stay, key string) func() {
	this := &waiter{s, ctx, time.Now(), map[*process]int{}}
	a.line[key] = append(a.line[key], this)
	return func() {
		a.line[key] = slices.DeleteFunc(a.line[key], func(o *waiter) bool { return o == this })
		a.lined[key] = time.Now()
	}
}

// served checks that a call that was granted its key has not overtaken another one.
func (a *auditor) served(key string, s *stay, began time.Time, waited bool) {
	last := a.turn[key]
	a.turn[key] = s.p
	for _, o := range slices.Clone(a.line[key]) {
		if o.p.dead || o.ctx.Err() != nil || !a.w.quiet(o.from) {
			continue
		}
		first := began.Sub(o.from) > queued
		if first && !waited {
			a.w.violation(s.who, "%s: it does not wait, and overtakes %s, which waits for %s", key, o.who, time.Since(o.from))
		}
		if first && waited && o.p == s.p && s.mode == core.ModeExclusive && o.mode == s.mode { // readers come in together
			a.w.violation(s.who, "%s: it overtakes %s of its process, which waits for %s", key, o.who, time.Since(o.from))
		}
		if o.p != s.p && s.p != last {
			if o.turns[s.p]++; o.turns[s.p] > mostTurns {
				a.w.violation(o.who, "%s: it waits for %s, and %s was served %d times meanwhile", key, time.Since(o.from), s.p.name, o.turns[s.p])
			}
		}
	}
}

// A call is in the queue soon. While it waits, each other process is served once in each mode, and may be served once more.
const queued, mostTurns = 200 * time.Millisecond, 6

// near reports whether somebody may have the key: it is inside, or what ends that is under way.
func (s *stay) near() bool {
	if s.p.dead && !s.left {
		return false
	}
	const way = 300 * time.Millisecond
	return !s.left || time.Since(s.ended) < way || time.Since(s.began) < s.least+way
}

// leftover is for how long a process that ended may have keys: its first lease of ten seconds, or its TTL.
const leftover = 13 * time.Second

// refused checks that a call that does not wait was refused for a reason: while nothing fails, there are others, or may be.
func (a *auditor) refused(key string, s *stay) {
	others, readers := 0, 0
	for _, o := range a.left[key] {
		if o.near() {
			if others++; o.mode == s.mode {
				readers++
			}
		}
	}
	free := others == 0 || others == readers && (s.mode == core.ModeShared || s.mode == core.ModeCounted && others < s.limit)
	if free && len(a.line[key]) == 0 && time.Since(a.lined[key]) > idle && time.Now().After(a.kept[key]) && a.some[key] == 1 &&
		a.w.spared(time.Now(), "die", "deaf", "forget", "busy", "full") && time.Since(a.w.ended) > leftover {
		a.w.violation(s.who, "%s: it is refused %s, and there are %d others", key, s.mode, others)
	}
}

// idle is for how long a key may be free while somebody waits for it and nothing fails: longer than a MinHold, and than who was granted it
// and does not hear of it may delay the others.
const idle = 3 * time.Second

// watch checks that keys are not free while somebody waits for them. To ask a context may wait, and others come and go meanwhile.
func (a *auditor) watch(keys []string) {
	busy := map[string]time.Time{} // when each was last not free
	for ; !a.w.calm; time.Sleep(200 * time.Millisecond) {
		for _, key := range keys {
			now := time.Now()
			if slices.ContainsFunc(slices.Clone(a.inside[key]), (*stay).holds) || now.Before(a.kept[key]) || a.some[key] > 0 || busy[key].IsZero() {
				busy[key] = now
			}
			for _, o := range slices.Clone(a.line[key]) {
				since := later(o.from, busy[key])
				if now.Sub(since) > idle && !o.p.dead && o.ctx.Err() == nil && (a.w.quiet(since) || a.w.recovered(since)) {
					a.w.violation(o.who, "%s: it waits, and the key is free for %s", key, now.Sub(busy[key]))
					busy[key] = now
				}
			}
		}
	}
}

// excused reports whether a lease may have been given to another: it was taken away, or Redis lost it, or its clock was set forward.
func (a *auditor) excused(s *stay) bool {
	return s.forced > 0 || !a.w.strict("redis") && a.mayBeGone(s)
}

func (a *auditor) mayBeGone(s *stay) bool {
	return s.fence < a.w.lost || s.began.Before(a.w.lostAt) && !s.began.IsZero()
}

// takes records that a call is about to take a lease away. It takes the grant, which may be another call's of the same process by then.
func (a *auditor) takes(key string, s *stay) {
	s.forced++
	a.victims[key] = s
	for _, o := range a.inside[key] {
		if o.isOf(s) {
			o.forced++
		}
	}
}

// isOf reports whether a stay may be under the grant of an earlier one: that has so many fences.
func (s *stay) isOf(earlier *stay) bool {
	const block = 1 << 16
	return s.p == earlier.p && s.fence > earlier.fence && s.fence < earlier.fence+block
}

// taken records that a lease was taken away. Its holder is told at its next renewal, or learns it from its own clock.
func (a *auditor) taken(key string, s *stay) {
	as(0, func() {
		time.AfterFunc(2*s.p.ttl, func() {
			if !s.p.stopped && !s.p.dead && s.alive() {
				a.w.violation(s.who, "%s: it was taken away, and it was not told", key)
			}
		})
	})
}

// documented reports whether an error is one that a caller is told to expect.
func documented(err error, others ...error) bool {
	for _, e := range append(others, core.ErrConflict, core.ErrUnavailable, core.ErrLeaseLost, core.ErrClosed, context.DeadlineExceeded, context.Canceled) {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
