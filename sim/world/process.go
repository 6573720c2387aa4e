//go:build faketime

package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
)

// process is a group of goroutines with a client of its own, which is stopped and killed as a whole.
type process struct {
	w             *world
	name          string
	group         int
	ttl           time.Duration
	rdb           *redis.Client
	locker        *core.Locker
	dead, stopped bool
	ending        bool // it was told to end
	told          told
}

// told is what the observer of a process was told of, and what was called for.
type told struct {
	core.NopObserver
	calls, outcomes, granted, ended, unclaimed int
	confirmed                                  func(e core.Released) // of a release that Redis was told of
}

// calling counts a call that has one outcome.
func (t *told) calling() { t.calls++ }

func (t *told) OnOutcome(_ context.Context, e core.Outcome) {
	if e.Key != leadKey { // it has one for each try
		t.outcomes++
	}
	t.granted += e.Leases
}

func (t *told) OnUnclaimed(context.Context, core.Unclaimed) { t.unclaimed++ }

func (t *told) OnLost(context.Context, core.Lost) { t.ended++ }

func (t *told) OnReleased(_ context.Context, e core.Released) {
	t.ended++
	if e.Err == nil && t.confirmed != nil {
		t.confirmed(e)
	}
}

// start starts a process, and has it do its work.
func (w *world) start(name string) {
	w.groups++
	p := &process{w: w, name: name, group: serverGroup + w.groups, ttl: w.r.between(time.Second, pick(w.r, 1500*time.Millisecond, 3500*time.Millisecond, 8*time.Second, 12*time.Second))}
	w.processes = append(w.processes, p)
	retries := pick(w.r, -1, 1, 3)
	started := make(chan struct{})
	go func() {
		simJoin(p.group)
		p.rdb = redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:6379", MaxRetries: retries, DisableIdentity: true, ReadTimeout: 1500 * time.Millisecond, DialTimeout: time.Second,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return w.network.dial(p) },
		})
		var err error
		p.locker, err = core.New(p.rdb, core.WithTTL(p.ttl), core.WithLogger(discard), core.WithObserver(&p.told))
		if err != nil {
			panic(err)
		}
		close(started)
		w.work(p)
	}()
	<-started
	w.emit(name, "starts", "")
}

// pause stops a process for a while.
func (p *process) pause(d time.Duration) {
	p.w.happens("stop", fmt.Sprintf("%s for %s", p.name, d))
	p.w.disturb(d)
	p.stopped = true
	simStop(p.group)
	time.Sleep(d)
	if p.dead {
		return
	}
	p.stopped = false
	simGo(p.group)
	p.w.emit(p.name, "goes on", "")
}

// die ends a process for good. Its connections end with it, unless its machine does.
func (p *process) die(withMachine bool) {
	p.w.happens("die", p.name)
	p.w.disturb(0)
	p.dead, p.w.ended = true, time.Now()
	simStop(p.group)
	for _, e := range p.w.network.open() {
		if e.process != p {
			continue
		}
		if withMachine {
			e.part()
		} else {
			e.cut()
		}
	}
}

// mostProcesses is how many there are, those that ended among them.
const mostProcesses = 40

// end ends a process as a service is that gets a new version, and starts another in its place. What it does not end within a while, it
// gives up.
func (p *process) end(within time.Duration) {
	p.w.report.Faults["deploy"]++ // it is none: what is promised while nothing fails holds
	p.w.emit("-", "deploy", "", p.name, " within ", within)
	p.ending = true
	as(p.group, func() {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			err := p.w.stop(ctx, p)
			cancel()
			time.Sleep(time.Second) // its calls hear of it
			p.w.emit(p.name, "ends", "", err)
			if p.dead {
				return
			}
			p.dead, p.w.ended = true, time.Now()
			_ = p.rdb.Close()
			as(0, func() { go p.w.start(fmt.Sprint("p", p.w.groups+1)) })
			simStop(p.group)
		}()
	})
}

// stopAll ends all processes, for which there is time.
func (w *world) stopAll() {
	for _, p := range slices.Clone(w.alive()) {
		as(p.group, func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := w.stop(ctx, p); err != nil {
				w.violation(p.name, "stop: %v", err)
			}
		})
	}
}

// over reports whether a process makes no calls any more.
func (p *process) over() bool { return p.w.calm || p.ending }

// alive are the processes that did not die, and were not told to end.
func (w *world) alive() (alive []*process) {
	for _, p := range w.processes {
		if !p.dead && !p.ending {
			alive = append(alive, p)
		}
	}
	return alive
}
