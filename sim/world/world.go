//go:build faketime

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/perkey-go/perkey/sim/plan"
)

// world is what a seed decides.
type world struct {
	config    plan.Config
	r         chance
	began     time.Time
	network   *network
	server    *redisServer
	processes []*process
	groups    int
	calm      bool // there are no faults any more
	lostAt    time.Time
	faults    []string      // the kinds that happen in this world
	pace      time.Duration // between two faults at most
	disturbed time.Time     // until when something may keep the queue's promises of order from being kept: see overtakes
	outages   []outage
	ended     time.Time            // when a process last did
	idle      time.Duration        // a time in which nothing happened
	struck    time.Time            // when the last fault happened
	last      map[string]time.Time // when one of each kind last happened, or ended
	work      func(p *process)
	stop      func(ctx context.Context, p *process) error // ends what a process does, as at the end of main
	lost      int64                                       // what Redis granted before this may be lost, by its clock: see auditor

	digest, order hash.Hash
	events        []event
	first         int // how many events there were at the first violation
	report        plan.Report
}

// kinds are the kinds of faults. A world has about half of them, or few, or hardly any, or one alone, or only mild ones: what is promised
// only while nothing fails, or hardly anything, is seen there.
var kinds = []string{
	"lost", "late", "deaf", "cut", "half-open", "stop", "die", "deploy", "restart", "slow", "full", "read-only", "forget", "busy",
	"clock-back", "clock-forward", "wipe",
}

func newWorld(c plan.Config) *world {
	w := &world{last: map[string]time.Time{}, config: c, r: newChance(c.Seed, 1), began: time.Now(), digest: sha256.New(), order: sha256.New()}
	w.report = plan.Report{Calls: map[string]int{}, Faults: map[string]int{}}
	w.pace = pick(w.r, 5*time.Second, 5*time.Second, 40*time.Second)
	oneIn, all := pick(w.r, 2, 2, 8, 50), kinds
	switch w.r.IntN(6) {
	case 0:
		all = mild
	case 1:
		oneIn, all = 1, []string{pick(w.r, kinds...)}
	}
	for _, kind := range kinds {
		rare := slices.Contains(kinds[len(kinds)-3:], kind)
		if on := slices.Contains(all, kind) && w.r.one(oneIn) && (!rare || w.r.one(4)); (on || slices.Contains(c.With, kind)) && !slices.Contains(c.Without, kind) {
			w.faults = append(w.faults, kind)
		}
	}
	w.server = newServer(w)
	w.network = &network{w: w, r: newChance(c.Seed, 2), serve: w.server.serve}
	return w
}

// only has faults of some kinds happen alone, at a pace.
func (w *world) only(pace time.Duration, kinds ...string) {
	w.pace, w.faults = pace, slices.DeleteFunc(kinds, func(kind string) bool { return slices.Contains(w.config.Without, kind) })
}

// startAll starts some processes, has faults happen while they work, and ends them.
func (w *world) startAll(work func(p *process), stop func(ctx context.Context, p *process) error) {
	w.work, w.stop = work, stop
	n := w.config.Processes
	if n == 0 {
		n = 2 + w.r.IntN(3)
	}
	for i := range n {
		w.start(fmt.Sprint("p", i+1))
	}
	go w.trouble()
	time.Sleep(time.Duration(w.config.Seconds) * time.Second)
	w.end()
}

// on reports whether a kind of faults happens in this world.
func (w *world) on(kind string) bool { return slices.Contains(w.faults, kind) }

// strict reports whether something that is not promised counts as broken too.
func (w *world) strict(what string) bool { return slices.Contains(w.config.Strict, what) }

func (w *world) faulty() bool { return !w.calm }

// event is something that happened, or a command that Redis ran.
type event struct {
	at   time.Duration
	text string
	args []string
}

func (e event) String() string {
	text := strings.TrimSpace(e.text + " " + strings.Join(e.args, " "))
	text = strings.Map(func(r rune) rune {
		if r < ' ' {
			return '.'
		}
		return r
	}, text)
	return fmt.Sprintf("%10.4f %s", e.at.Seconds(), text[:min(len(text), widest)])
}

// widest is how long the text of an event is at most.
const widest = 400

// emit records what somebody does.
func (w *world) emit(who, what, key string, detail ...any) {
	e := event{at: time.Since(w.began), text: fmt.Sprintf("%-8s %-10s %s %s", who, what, key, fmt.Sprint(detail...))}
	fmt.Fprintln(w.digest, e)
	fmt.Fprintln(w.order, who, what, key)
	w.events = append(w.events, e)
}

// happens records a fault.
func (w *world) happens(kind, detail string) {
	w.report.Faults[kind]++
	w.struck = time.Now()
	w.last[kind] = w.struck
	w.emit("-", kind, "", detail)
}

// mild are the faults that cost a request or a message: the next try makes up for it.
var mild = []string{"lost", "late", "deaf", "cut", "forget", "busy"}

// spared reports whether nothing has failed since, nor for a while before, but faults of these kinds.
func (w *world) spared(since time.Time, but ...string) bool {
	for kind, last := range w.last {
		if !slices.Contains(but, kind) && !last.Add(20*time.Second).Before(since) {
			return false
		}
	}
	return !w.on("clock-back") && !w.on("clock-forward")
}

// outage is a time in which nobody reached Redis, which kept its data.
type outage struct {
	from time.Time
	d    time.Duration
}

// away returns when Redis was away, if it was once since then.
func (w *world) away(since time.Time) (last outage, once bool) {
	n := 0
	for _, o := range w.outages {
		if o.from.Add(o.d).After(since) {
			n, last = n+1, o
		}
	}
	return last, n == 1
}

// recovered reports whether Redis has been back since well before, which kept its data, and nothing else has failed for a while.
func (w *world) recovered(since time.Time) bool {
	if len(w.outages) == 0 || !w.spared(since, "restart") {
		return false
	}
	last := w.outages[len(w.outages)-1]
	return last.from.Add(last.d + 2*time.Second).Before(since)
}

// disturb records that something happens, or lasts for d, after which the queue need not keep a key for parked work for a while: what was
// claimed is lost, and waits for its next attempt.
func (w *world) disturb(d time.Duration) {
	w.disturbed = later(w.disturbed, time.Now().Add(d+10*time.Second))
}

// quiet reports whether nothing has failed since, nor for a while before.
func (w *world) quiet(since time.Time) bool {
	return w.struck.Add(20*time.Second).Before(since) && w.disturbed.Before(since) && !w.on("clock-back") && !w.on("clock-forward")
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// violation records a broken promise.
func (w *world) violation(who, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.emit(who, "VIOLATION", "", text)
	if len(w.report.Violations) == 0 {
		stacks := make([]byte, 1<<22)
		w.report.Stacks = string(stacks[:runtime.Stack(stacks, true)])
		w.first = len(w.events)
	}
	w.report.Violations = append(w.report.Violations, fmt.Sprintf("%.4f %s: %s", time.Since(w.began).Seconds(), who, text))
}

// trouble has faults happen until the world is calm.
func (w *world) trouble() {
	r := newChance(w.config.Seed, 3)
	for {
		time.Sleep(r.between(300*time.Millisecond, w.pace))
		if w.calm {
			return
		}
		var whole []string
		for _, kind := range w.faults {
			if !slices.Contains([]string{"lost", "late", "deaf"}, kind) {
				whole = append(whole, kind)
			}
		}
		if len(whole) > 0 {
			w.strike(r, pick(r, whole...))
		}
	}
}

func (w *world) strike(r chance, kind string) {
	switch alive := w.alive(); kind {
	case "stop":
		if p := pick(r, alive...); !p.stopped {
			go p.pause(r.between(200*time.Millisecond, 6*time.Second))
		}
	case "die":
		if len(alive) > 2 {
			pick(r, alive...).die(r.one(2))
		}
	case "deploy":
		if p := pick(r, alive...); !p.stopped && len(alive) > 1 && len(w.processes) < mostProcesses {
			p.end(r.between(0, 3*time.Second))
		}
	case "cut", "half-open":
		open := w.network.open()
		if len(open) == 0 {
			return
		}
		e := pick(r, open...)
		w.happens(kind, e.process.name)
		if kind == "cut" {
			e.cut()
		} else {
			e.part()
		}
	case "restart":
		w.happens(kind, "")
		d := r.between(0, pick(r, time.Second, 3*time.Second, 7*time.Second))
		w.outages = append(w.outages, outage{time.Now(), d})
		w.server.restart(d, true)
	case "wipe":
		w.happens(kind, "")
		w.lost, w.lostAt = w.server.micros(), time.Now()
		w.server.restart(r.between(0, time.Second), false)
	case "slow":
		w.happens(kind, "")
		w.disturb(4 * time.Second)
		w.network.slow = r.between(50*time.Millisecond, 1200*time.Millisecond)
		time.Sleep(r.between(time.Second, 4*time.Second))
		w.network.slow, w.last[kind] = 0, time.Now()
	case "full", "read-only":
		w.happens(kind, "")
		w.server.refuses = map[string]refusal{"full": growth, "read-only": writes}[kind]
		time.Sleep(r.between(100*time.Millisecond, 4*time.Second))
		w.server.refuses = nothing
	case "busy":
		w.happens(kind, "")
		w.server.cost = r.between(500*time.Microsecond, 5*time.Millisecond)
		time.Sleep(r.between(time.Second, 6*time.Second))
		w.server.cost = 0
	case "forget":
		w.happens(kind, "")
		w.server.forget()
	case "clock-back":
		d := r.between(time.Millisecond, 3*time.Second)
		w.happens(kind, d.String())
		w.server.set(-d)
	case "clock-forward":
		d := r.between(time.Millisecond, 3*time.Second)
		w.happens(kind, d.String())
		w.server.set(d)
		w.lost = w.server.micros() + (10 * time.Second).Microseconds() // a process may not have heard of it yet
	}
}

// end ends the faults.
func (w *world) end() {
	w.calm = true
	w.emit("-", "calm", "")
	time.Sleep(6 * time.Second) // what has begun ends
	w.network.slow, w.server.refuses, w.server.cost = 0, nothing, 0
}

func (w *world) finish() plan.Report {
	if w.first == 0 && w.config.Trace {
		w.first = len(w.events)
	}
	for _, e := range w.events[:w.first] {
		if e.args == nil || w.config.Trace {
			w.report.Events = append(w.report.Events, e.String())
		}
	}
	w.report.Processes = len(w.processes)
	w.report.Virtual = time.Since(w.began) - w.idle
	w.report.Digest = fmt.Sprintf("%x", w.digest.Sum(nil)[:8])
	w.report.Order = fmt.Sprintf("%x", w.order.Sum(nil)[:8])
	return w.report
}
