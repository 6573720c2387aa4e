package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
)

// scoreboard counts what happens, and watches that no key ever has two handlers
// inside. It is the locker's observer too: that is how it knows who waits.
type scoreboard struct {
	core.NopObserver
	mu  sync.Mutex
	now view // guarded by mu
}

// view is the scoreboard at one moment.
type view struct {
	redis string
	place place
	start time.Time
	rows  []row // as routes

	inside  map[string]*visit
	waiting map[string]int // calls, by key
	parked  map[string]int // requests, by key

	entered    int // how often a handler was let in
	maxInside  int // handlers in one key at once
	violations int // entries to a key with somebody inside, and steps out of order
	lost       int // requests that were parked and have no result
	failure    error
}

// row is what became of the requests for a route.
type row struct {
	route
	n     [tallies]int
	waits []time.Duration // the latest
	event event
}

// tally is what is counted of each route.
type tally int

const (
	requests tally = iota
	ran
	refused
	waited
	parked
	replayed
	failed
	tallies
)

// visit is a handler at work, or several where a promise is broken.
type visit struct {
	route string
	since time.Time
	count int
}

// event is what happened last, for people: it stays for a while. more is said where there is room.
type event struct {
	text, more string
	at         time.Time
}

func newScoreboard(redis string, at place) *scoreboard {
	v := view{redis: redis, place: at, start: time.Now(), inside: map[string]*visit{}, waiting: map[string]int{}, parked: map[string]int{}}
	for _, r := range routes {
		v.rows = append(v.rows, row{route: r})
	}
	return &scoreboard{now: v}
}

func (b *scoreboard) update(f func(v *view)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.now)
}

func (b *scoreboard) view() *view {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.now
	v.rows, v.waiting, v.parked = slices.Clone(v.rows), maps.Clone(v.waiting), maps.Clone(v.parked)
	for i := range v.rows {
		v.rows[i].waits = slices.Sorted(slices.Values(v.rows[i].waits))
	}
	v.inside = map[string]*visit{}
	for key, at := range b.now.inside {
		v.inside[key] = new(*at)
	}
	return &v
}

// row is that of a route by its name; one that nobody sees if that has none.
func (v *view) row(name string) *row {
	for i := range v.rows {
		if v.rows[i].name == name {
			return &v.rows[i]
		}
	}
	return new(row)
}

// enter counts a handler inside key until leave is called. again: the request was parked, and now runs. nth numbers all
// runs, in the order in which they begin.
func (b *scoreboard) enter(route, key string, again bool) (nth int, leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &b.now
	if again {
		add(v.parked, key, -1)
		more := ", the last of its key"
		if n := v.parked[key]; n > 0 {
			more = fmt.Sprintf(", with %d more to come", n)
		}
		v.row(route).tell(key+": runs now, as it was parked", more)
	}
	at := v.inside[key]
	if at == nil {
		at = &visit{route: route, since: time.Now()}
		v.inside[key] = at
	}
	if at.count++; at.count > 1 {
		v.violations++
	}
	v.entered++
	v.maxInside = max(v.maxInside, at.count)
	return v.entered, func() {
		b.update(func(v *view) {
			if at.count--; at.count == 0 {
				delete(v.inside, key)
			}
		})
	}
}

// count counts a request.
func (b *scoreboard) count(route string, as ...tally) {
	b.update(func(v *view) {
		for _, t := range as {
			v.row(route).n[t]++
		}
	})
}

func (b *scoreboard) failed(route string, err error) {
	b.update(func(v *view) {
		v.row(route).n[failed]++
		v.failure = cmp.Or(v.failure, fmt.Errorf("%s: %w", route, err))
	})
}

// OnWaiting counts a call that waits from now on.
func (b *scoreboard) OnWaiting(_ context.Context, e core.Waiting) {
	b.update(func(v *view) { add(v.waiting, e.Key, 1) })
}

// OnOutcome counts the calls that do not wait any more, and those that were refused or parked.
func (b *scoreboard) OnOutcome(_ context.Context, e core.Outcome) {
	b.update(func(v *view) {
		r := v.row(e.Name)
		if e.DidWait {
			add(v.waiting, e.Key, -1)
		}
		switch {
		case e.Kind == core.OutcomeAcquired && e.DidWait:
			r.n[waited]++
			r.waits = append(r.waits[max(0, len(r.waits)-1000):], e.Waited)
			r.tell(e.Key+": waited "+short(e.Waited), " until the one before was done")
		case e.Kind == core.OutcomeConflict:
			r.n[refused]++
			r.tell(e.Key+": refused with 409", ", as another request is inside")
		case e.Kind == core.OutcomeDeferred:
			r.n[parked]++
			add(v.parked, e.Key, 1)
			r.tell(e.Key+": parked with 202", ", to run in its turn")
		}
	})
}

// add counts by key what there is of it. A request may run before it is known to be parked: then it is -1 for a moment.
func add(all map[string]int, key string, n int) {
	if all[key] += n; all[key] == 0 {
		delete(all, key)
	}
}

// tell has the row say what happened, unless what it said before is too new to have been read.
func (r *row) tell(text, more string) {
	if now := time.Now(); now.Sub(r.event.at) >= 1500*time.Millisecond {
		r.event = event{text, more, now}
	}
}

func (v *view) total() (n [tallies]int) {
	for _, r := range v.rows {
		for t := range r.n {
			n[t] += r.n[t]
		}
	}
	return n
}

// broken returns what was promised and not kept. exercised: every policy must have had something to do.
func (v *view) broken(exercised bool) error {
	var errs []error
	fail := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	n := v.total()
	fail(v.maxInside > 1, "%d handlers were inside one key at once", v.maxInside)
	fail(v.violations > 0, "%d violations", v.violations)
	fail(v.lost > 0, "%d parked requests were lost", v.lost)
	fail(n[failed] > 0, "%d requests failed, the first with: %w", n[failed], v.failure)
	if exercised {
		fail(n[ran]+n[refused]+n[parked] != n[requests], "%d requests, but %d ran, %d were refused, %d parked", n[requests], n[ran], n[refused], n[parked])
		fail(n[replayed] != n[parked], "%d requests were parked and %d replayed", n[parked], n[replayed])
		fail(v.row(routePay).n[refused] == 0, "the policy reject was never exercised")
		fail(v.row(routeCart).n[waited] == 0, "the policy retry was never exercised")
		fail(v.row(routeShip).n[parked] == 0, "the policy delay was never exercised")
	}
	return errors.Join(errs...)
}
