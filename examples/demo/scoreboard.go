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

// place is where the service is. local: on a loopback address.
type place struct {
	url   string
	local bool
}

// scoreboard counts what happens, and watches that no key ever has two handlers
// inside. It is the locker's observer too: that is how it knows who waits.
type scoreboard struct {
	core.NopObserver
	redis string
	place place
	start time.Time

	mu      sync.Mutex
	rows    map[string]*row
	inside  map[string]visit
	waiting map[string]int // calls, by key
	parked  map[string]int // requests, by key
	result  counts
}

// counts are about what is promised.
type counts struct {
	entered    int // how often a handler was let in
	maxInside  int // handlers in one key at once
	violations int // entries to a key with somebody inside, and steps out of order
	lostOnes   int // requests that were parked and have no result
	failure    error
}

// row is what became of the requests for a route.
type row struct {
	requests, ran, refused, waited, parked, replayed, failed int

	waits []time.Duration // the latest
	event event
}

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

const (
	eventStays  = 1500 * time.Millisecond
	latestWaits = 1000
)

var routes = []string{routePay, routeCart, routeShip}

func newScoreboard(redis string, at place) *scoreboard {
	return &scoreboard{
		redis: redis, place: at, start: time.Now(),
		rows:   map[string]*row{routePay: {}, routeCart: {}, routeShip: {}},
		inside: map[string]visit{}, waiting: map[string]int{}, parked: map[string]int{},
	}
}

// enter counts a handler inside key until leave is called. nth numbers all runs, in the order in which they begin.
func (b *scoreboard) enter(route, key string) (nth int, leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.inside[key]
	if v.count++; v.count == 1 {
		v.route, v.since = route, time.Now()
	} else {
		b.result.violations++
	}
	b.inside[key] = v
	b.result.entered++
	b.result.maxInside = max(b.result.maxInside, v.count)
	return b.result.entered, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		v := b.inside[key]
		if v.count--; v.count == 0 {
			delete(b.inside, key)
		} else {
			b.inside[key] = v
		}
	}
}

func (b *scoreboard) count(route string, f func(*row)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.rows[route])
}

// replaying counts a parked request that now runs.
func (b *scoreboard) replaying(route, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add(b.parked, key, -1)
	more := ", the last of its key"
	if n := b.parked[key]; n > 0 {
		more = fmt.Sprintf(", with %d more to come", n)
	}
	b.rows[route].tell(key+": runs now, as it was parked", more)
}

func (b *scoreboard) failed(route string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows[route].failed++
	b.result.failure = cmp.Or(b.result.failure, fmt.Errorf("%s: %w", route, err))
}

// swapped counts a step that ran before an earlier one.
func (b *scoreboard) swapped() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.result.violations++
}

// lost counts a parked request without a result.
func (b *scoreboard) lost() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.result.lostOnes++
}

// OnWaiting counts a call that waits from now on.
func (b *scoreboard) OnWaiting(_ context.Context, e core.Waiting) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add(b.waiting, e.Key, 1)
}

// OnOutcome counts the calls that do not wait any more, and those that were refused or parked.
func (b *scoreboard) OnOutcome(_ context.Context, e core.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.DidWait {
		add(b.waiting, e.Key, -1)
	}
	r := b.rows[e.Name]
	if r == nil {
		return
	}
	switch e.Kind {
	case core.OutcomeAcquired:
		if e.DidWait {
			r.waited++
			r.waits = append(r.waits[max(0, len(r.waits)-latestWaits):], e.Waited)
			r.tell(e.Key+": waited "+milliseconds(e.Waited), " until the one before was done")
		}
	case core.OutcomeConflict:
		r.refused++
		r.tell(e.Key+": refused with 409", ", as another request is inside")
	case core.OutcomeDeferred:
		r.parked++
		add(b.parked, e.Key, 1)
		r.tell(e.Key+": parked with 202", ", to run in its turn")
	}
}

// add counts by key what there is of it. A request may run before it is known to be parked: then it is -1 for a moment.
func add(all map[string]int, key string, n int) {
	if all[key] += n; all[key] == 0 {
		delete(all, key)
	}
}

// tell has the row say what happened, unless what it said before is too new to have been read.
func (r *row) tell(text, more string) {
	if now := time.Now(); now.Sub(r.event.at) >= eventStays {
		r.event = event{text, more, now}
	}
}

// entry is a key in one of the lists, and what there is to say of it.
type entry struct{ key, text string }

// view is the scoreboard at one moment.
type view struct {
	counts
	redis   string
	place   place
	elapsed time.Duration
	rows    []row // as routes
	total   row
	inside  []entry // the oldest first
	waiting []entry
	parked  []entry
}

func (b *scoreboard) view() *view {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := &view{
		counts: b.result, redis: b.redis, place: b.place, elapsed: time.Since(b.start),
		waiting: entries(b.waiting, "call"), parked: entries(b.parked, "request"),
	}
	for _, route := range routes {
		r := *b.rows[route]
		r.waits = slices.Sorted(slices.Values(r.waits))
		v.rows = append(v.rows, r)
		v.total.requests += r.requests
		v.total.ran += r.ran
		v.total.refused += r.refused
		v.total.waited += r.waited
		v.total.parked += r.parked
		v.total.replayed += r.replayed
		v.total.failed += r.failed
	}
	for _, key := range slices.SortedFunc(maps.Keys(b.inside), func(x, y string) int {
		return cmp.Or(b.inside[x].since.Compare(b.inside[y].since), cmp.Compare(x, y))
	}) {
		at := b.inside[key]
		v.inside = append(v.inside, entry{key, fmt.Sprintf("%-4s %7s", short(at.route), milliseconds(time.Since(at.since)))})
	}
	return v
}

func entries(all map[string]int, what string) (list []entry) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		switch n := all[key]; {
		case n == 1:
			list = append(list, entry{key, "1 " + what})
		case n > 1:
			list = append(list, entry{key, fmt.Sprintf("%d %ss", n, what)})
		}
	}
	return list
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// broken returns what was promised and not kept. exercised: every policy must have had something to do.
func (v *view) broken(exercised bool) error {
	var errs []error
	fail := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fail(v.maxInside > 1, "%d handlers were inside one key at once", v.maxInside)
	fail(v.violations > 0, "%d violations", v.violations)
	fail(v.lostOnes > 0, "%d parked requests were lost", v.lostOnes)
	fail(v.total.failed > 0, "%d requests failed, the first with: %w", v.total.failed, v.failure)
	if exercised {
		fail(v.total.ran+v.total.refused+v.total.parked != v.total.requests, "%d requests, but %d ran, %d were refused, %d parked",
			v.total.requests, v.total.ran, v.total.refused, v.total.parked)
		fail(v.total.replayed != v.total.parked, "%d requests were parked and %d replayed", v.total.parked, v.total.replayed)
		fail(v.rows[0].refused == 0, "the policy reject was never exercised")
		fail(v.rows[1].waited == 0, "the policy retry was never exercised")
		fail(v.total.parked == 0, "the policy delay was never exercised")
	}
	return errors.Join(errs...)
}

// lastLine is that of -once.
func (v *view) lastLine() string {
	return fmt.Sprintf("demo: requests=%d ran=%d rejected=%d waited=%d parked=%d replayed=%d max_inside=%d violations=%d redis=%s",
		v.total.requests, v.total.ran, v.total.refused, v.total.waited, v.total.parked, v.total.replayed, v.maxInside, v.violations, v.redis)
}
