package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
)

// scoreboard counts what happens, and watches that no key ever has two handlers
// inside. It is the locker's observer too: that is how it knows who waited.
type scoreboard struct {
	core.NopObserver
	redis string

	mu         sync.Mutex
	start      time.Time
	rows       map[string]*row
	inside     map[string]int
	maxInside  int
	violations int
	failure    error // the first
}

type row struct {
	policy                                            string
	requests, ran, rejected, parked, replayed, failed int
	waits                                             []time.Duration
}

var routes = []string{routePay, routeCart, routeShip}

func newScoreboard(redis string) *scoreboard {
	return &scoreboard{redis: redis, start: time.Now(), inside: map[string]int{}, rows: map[string]*row{
		routePay:  {policy: "reject"},
		routeCart: {policy: "retry"},
		routeShip: {policy: "retry, then delay"},
	}}
}

// enter counts a handler inside key until the returned func is called.
func (b *scoreboard) enter(key string) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inside[key]++
	b.maxInside = max(b.maxInside, b.inside[key])
	if b.inside[key] > 1 {
		b.violations++
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.inside[key]--
	}
}

func (b *scoreboard) count(route string, f func(*row)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b.rows[route])
}

func (b *scoreboard) requested(route string) { b.count(route, func(r *row) { r.requests++ }) }
func (b *scoreboard) rejected(route string)  { b.count(route, func(r *row) { r.rejected++ }) }
func (b *scoreboard) parked(route string)    { b.count(route, func(r *row) { r.parked++ }) }

func (b *scoreboard) ran(route string, replayed bool) {
	b.count(route, func(r *row) {
		if replayed {
			r.replayed++
		} else {
			r.ran++
		}
	})
}

func (b *scoreboard) failed(route string, err error) {
	b.count(route, func(r *row) { r.failed++ })
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure == nil {
		b.failure = fmt.Errorf("%s: %w", route, err)
	}
}

// OnOutcome counts the calls that waited for their key and have it.
func (b *scoreboard) OnOutcome(_ context.Context, e core.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.rows[e.Name]; r != nil && e.Kind == core.OutcomeAcquired && e.DidWait {
		r.waits = append(r.waits, e.Waited)
	}
}

// live prints the board until the returned func is called: redrawn in place on a
// terminal, not at all elsewhere.
func (b *scoreboard) live(out io.Writer, terminal bool) (stop func()) {
	if !terminal {
		return func() {}
	}
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			table := b.table()
			fmt.Fprint(out, table)
			select {
			case <-stopped:
				fmt.Fprintf(out, "\x1b[%dA\x1b[J", strings.Count(table, "\n"))
				return
			case <-time.After(150 * time.Millisecond):
				fmt.Fprintf(out, "\x1b[%dA\x1b[J", strings.Count(table, "\n"))
			}
		}
	}()
	return func() { close(stopped); <-done }
}

func (b *scoreboard) print(out io.Writer) { fmt.Fprint(out, b.table()) }

func (b *scoreboard) table() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s strings.Builder
	fmt.Fprintf(&s, "%-21s %-17s %8s %6s %8s %6s %8s %8s %7s %9s\n",
		"route", "on conflict", "requests", "ran", "refused", "waited", "p50", "p99", "parked", "replayed")
	for _, name := range routes {
		r := b.rows[name]
		fmt.Fprintf(&s, "%-21s %-17s %8d %6d %8d %6d %8s %8s %7d %9d\n", name, r.policy,
			r.requests, r.ran, r.rejected, len(r.waits), percentile(r.waits, 50), percentile(r.waits, 99), r.parked, r.replayed)
	}
	outcome := "one key, one handler at a time"
	if b.violations > 0 {
		outcome = "VIOLATED"
	}
	fmt.Fprintf(&s, "\nmost handlers ever inside one key: %d   violations: %d   (%s, %.1f s)\n",
		b.maxInside, b.violations, outcome, time.Since(b.start).Seconds())
	return s.String()
}

func percentile(ds []time.Duration, p int) string {
	if len(ds) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(ds))
	return fmt.Sprintf("%.1fms", float64(sorted[(len(sorted)-1)*p/100].Microseconds())/1000)
}

func (b *scoreboard) total() (t row) {
	for _, r := range b.rows {
		t.requests += r.requests
		t.ran += r.ran
		t.rejected += r.rejected
		t.parked += r.parked
		t.replayed += r.replayed
		t.failed += r.failed
		t.waits = append(t.waits, r.waits...)
	}
	return t
}

// outcome returns what was promised and not kept.
func (b *scoreboard) outcome(lost int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.total()
	var errs []error
	fail := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fail(b.violations > 0 || b.maxInside != 1, "%d handlers were inside one key at once", b.maxInside)
	fail(lost > 0, "%d parked requests were lost", lost)
	fail(t.replayed < t.parked, "%d requests were parked and %d replayed", t.parked, t.replayed)
	fail(t.failed > 0, "%d requests failed, the first with: %w", t.failed, b.failure)
	fail(t.ran+t.rejected+t.parked+t.failed != t.requests, "%d requests, but %d ran, %d were refused, %d parked",
		t.requests, t.ran, t.rejected, t.parked)
	fail(b.rows[routePay].rejected == 0, "the policy reject was never exercised")
	fail(len(b.rows[routeCart].waits) == 0, "the policy retry was never exercised")
	fail(t.parked == 0 || t.replayed == 0, "the policy delay was never exercised")
	return errors.Join(errs...)
}

// summary is the last line of -once.
func (b *scoreboard) summary() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.total()
	return fmt.Sprintf("demo: requests=%d ran=%d rejected=%d waited=%d parked=%d replayed=%d max_inside=%d violations=%d redis=%s",
		t.requests, t.ran, t.rejected, len(t.waits), t.parked, t.replayed, b.maxInside, b.violations, b.redis)
}
