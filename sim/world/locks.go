//go:build faketime

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perkey-go/perkey/core"
)

// locks is a world of processes whose goroutines call for few keys, in every way that there is.
func (w *world) locks() {
	l := &locksWorkload{w: w, r: newChance(w.config.Seed, 4), more: newChance(w.config.Seed, 8), auditor: newAuditor(w), tokens: map[string]detached{}, runs: map[int64]*stay{}, waiting: map[string]int{}, every: pick(newChance(w.config.Seed, 7), 4*time.Second, 12*time.Second)}
	l.keys, l.calls = lockKeys[:1+l.r.IntN(len(lockKeys))], some(l.r, lockCalls)
	l.longest = 2500 * time.Millisecond
	switch l.r.IntN(8) {
	case 0: // what dead processes leave is seen
		l.calls, l.tries = []string{"try"}, true
		w.only(40*time.Second, "die", "deploy") // for longer than a dead process may have a key
	case 1: // what an outage costs who works for long is seen
		l.calls, l.longest = []string{"exclusive", "shared", "counted"}, 20*time.Second
		w.only(15*time.Second, "restart")
	case 2: // a key that processes hand to one another for long
		l.keys, l.calls, l.longest, l.hot, w.faults = lockKeys[:1], []string{"exclusive"}, 60*time.Millisecond, true, nil
	}
	go l.auditor.watch(l.keys)
	w.startAll(l.work, l.stop)
	l.settle()
}

type locksWorkload struct {
	w       *world
	r, more chance // more: for what came later, so that the decisions of r stay
	auditor *auditor
	keys    []string
	calls   []string
	tokens  map[string]detached // by key
	runs    map[int64]*stay     // of Once, by their fences
	period  *stay               // the last run that Redis knows to have succeeded
	waiting map[string]int      // calls under way, by process
	every   time.Duration       // is the period of Once
	tries   bool                // nobody waits, and the first key is counted
	longest time.Duration       // for which somebody works
	hot     bool                // the next call comes at once, and keeps its place
}

// detached is a lease that waits for who resumes it.
type detached struct {
	token string
	fence int64
}

var lockKeys = []string{"k0", "k1", "k2"}

// lockCalls are what a call can be, each as often as it stands here.
var lockCalls = []string{"exclusive", "exclusive", "exclusive", "try", "shared", "shared", "counted", "counted", "all", "force", "resume", "max-hold", "min-hold", "reentrant", "herd"}

// work is what a process does.
func (l *locksWorkload) work(p *process) {
	for g := range 4 {
		go func() {
			for n := 0; !p.over(); n++ {
				if !l.hot {
					time.Sleep(l.r.between(0, 600*time.Millisecond))
				}
				l.waiting[p.name]++
				l.call(p, fmt.Sprintf("%s.%d.%d", p.name, g, n))
				l.waiting[p.name]--
			}
		}()
	}
	p.told.confirmed = l.confirmed
	go func() {
		for n := 0; !p.over(); n++ {
			time.Sleep(l.r.between(0, 4*time.Second))
			l.once(p, fmt.Sprintf("%s.once.%d", p.name, n))
		}
	}()
	go l.lead(p)
}

const onceKey, leadKey = "once", "lead"

// once calls for a period's run.
func (l *locksWorkload) once(p *process, who string) {
	ctx, leave := context.WithTimeout(context.Background(), l.r.between(time.Second, 5*time.Second))
	defer leave()
	l.w.report.Calls["once"]++
	p.told.calling()
	ran, err := p.locker.Once(ctx, onceKey, l.every, func(ctx context.Context) error {
		lease, _ := core.LeaseFrom(ctx)
		s := under(p, who, lease)
		l.auditor.enter(onceKey, s)
		if last := l.period; last != nil && s.alive() && !l.auditor.excused(last) && !l.auditor.excused(s) && !l.w.on("clock-back") {
			if apart := time.Duration(s.since-last.since) * time.Microsecond; apart < l.every*9/10-ahead { // as Redis has the times
				l.w.violation(who, "it was granted its period %s after %s was", apart, last.who)
			}
		}
		l.runs[s.fence] = s
		l.stayFor(ctx, 800*time.Millisecond)
		l.auditor.leave(onceKey, s)
		if l.r.one(4) {
			delete(l.runs, s.fence)
			return errPlanned
		}
		if s.alive() {
			left := l.w.server.TTL("perkey:lock{}:" + onceKey)
			s.until = time.Now().Add(left)
			as(0, func() { go l.owes(s, left) })
		}
		return nil
	})
	l.w.emit(who, "once", onceKey, ran, " ", err)
	if !errors.Is(err, errPlanned) {
		l.expect(who, "once", err)
	}
}

// owes begins a run's period, too, if Redis could be told for long enough before its lease ended.
func (l *locksWorkload) owes(run *stay, left time.Duration) {
	const step, enough = 20 * time.Millisecond, 2 * time.Second
	now := time.Now()
	end, well := now.Add(left-100*time.Millisecond), now // since when
	for ; now.Before(end); now = time.Now() {
		w := l.w
		if w.network.down || w.network.slow > 0 || w.server.refuses != nothing || w.struck.After(now.Add(-step)) || run.p.stopped || w.on("half-open") || w.on("clock-back") || w.on("clock-forward") {
			well = now
		}
		if run.p.dead || run.p.ending || l.auditor.excused(run) {
			return
		}
		if now.Sub(well) > enough {
			if l.period == nil || l.period.fence < run.fence {
				l.period = run
			}
			return
		}
		time.Sleep(step)
	}
}

// stop ends a process. Then each of its calls has had its outcome, and each lease its end.
func (l *locksWorkload) stop(ctx context.Context, p *process) error {
	err := p.locker.Shutdown(ctx)
	if err != nil {
		_ = p.locker.Close() // the last commands may take longer
	}
	time.Sleep(time.Second)
	l.accounted(p)
	return err
}

func (l *locksWorkload) accounted(p *process) {
	if t := p.told; t.calls != t.outcomes || t.granted != t.ended {
		l.w.violation(p.name, "%d calls had %d outcomes; of %d leases %d ended", t.calls, t.outcomes, t.granted, t.ended)
	}
}

// confirmed begins a period, once Redis was told that its run succeeded.
func (l *locksWorkload) confirmed(e core.Released) {
	// A release that may have run before, and finds nothing, counts as one that did.
	if run := l.runs[e.Fence]; run != nil && e.Key == onceKey && time.Now().Before(run.until) {
		l.period = run
	}
}

// lead has a process be a candidate, and lead for a while each time.
func (l *locksWorkload) lead(p *process) {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	as(0, func() { time.AfterFunc(time.Duration(l.w.config.Seconds)*time.Second, leave) })
	for n := 0; ctx.Err() == nil && !p.ending && !l.w.calm; n++ {
		who := fmt.Sprintf("%s.lead.%d", p.name, n)
		l.w.report.Calls["lead"]++
		err := p.locker.Lead(ctx, leadKey, func(ctx context.Context) error {
			lease, _ := core.LeaseFrom(ctx)
			s := under(p, who, lease)
			l.auditor.enter(leadKey, s)
			l.stayFor(ctx, pick(l.r, 4*time.Second, 30*time.Second))
			l.auditor.leave(leadKey, s)
			return nil
		})
		if err != nil && ctx.Err() == nil && !p.ending {
			l.w.violation(who, "lead: %v", err)
		}
	}
}

// call makes one call, and works under what it got.
func (l *locksWorkload) call(p *process, who string) {
	kind, key := pick(l.r, l.calls...), pick(l.r, l.keys...)
	if kind == "herd" && !l.r.one(8) {
		kind = "try"
	}
	timeout := l.r.between(50*time.Millisecond, 12*time.Second)
	if l.hot || l.r.one(8) {
		timeout = 5 * time.Minute // it keeps its place
	}
	ctx, leave := context.WithTimeout(context.Background(), timeout)
	defer leave()
	l.w.report.Calls[kind]++
	l.w.emit(who, kind, key, "for ", timeout)
	var err error
	switch kind {
	case "all":
		err = l.all(ctx, p, who, key)
	case "force":
		l.force(ctx, p, who, key)
	case "herd":
		l.herd(p, who)
	case "reentrant":
		err = l.reentrant(ctx, p, who, key)
	case "resume":
		given := l.tokens[key]
		if given.token == "" {
			return
		}
		delete(l.tokens, key)
		var lease *core.Lease
		p.told.calling()
		if lease, err = p.locker.Resume(ctx, given.token); err == nil {
			if lease.Fence() != given.fence {
				l.w.violation(who, "%s: fence %d was handed on, and is %d", key, given.fence, lease.Fence())
			}
			delete(l.auditor.grants, grant{key, lease.Fence()}) // it is that of the lease that was detached
			l.hold(key, lease, under(p, who, lease))
		}
	default:
		err = l.one(ctx, p, who, key, kind)
	}
	if err != nil {
		l.w.emit(who, "fails", key, err)
		if !documented(err) {
			l.w.violation(who, "%s of %s: %v", kind, key, err)
		}
	}
}

func (l *locksWorkload) one(ctx context.Context, p *process, who, key, kind string) error {
	s, acquire := &stay{p: p, who: who, mode: core.ModeExclusive}, p.locker.Acquire
	var opts []core.AcquireOption
	switch kind {
	case "try":
		acquire = p.locker.TryAcquire
		switch mode := l.r.IntN(4); {
		case mode == 0 && (!l.tries || key != lockKeys[0]):
			s.mode, opts = core.ModeShared, append(opts, core.Shared())
		case mode == 1 || l.tries && key == lockKeys[0]:
			s.mode, s.limit, opts = core.ModeCounted, 2, append(opts, core.Counted(2))
		}
	case "shared":
		s.mode, opts = core.ModeShared, append(opts, core.Shared())
	case "counted":
		s.mode, s.limit, opts = core.ModeCounted, 2, append(opts, core.Counted(2))
	case "max-hold":
		s.most = pick(l.more, 300*time.Millisecond, 1500*time.Millisecond)
		opts = append(opts, core.MaxHold(s.most))
	case "min-hold":
		s.least = 700 * time.Millisecond
		opts = append(opts, core.MinHold(s.least))
	}
	p.told.calling()
	served := func() {}
	if s.tried = kind == "try"; s.tried {
		l.auditor.some[key]++
	} else {
		served = l.auditor.waits(ctx, s, key)
	}
	began := time.Now()
	lease, err := acquire(ctx, key, opts...)
	served()
	if err == nil {
		l.auditor.served(key, s, began, !s.tried)
	}
	if s.tried && errors.Is(err, core.ErrConflict) {
		l.auditor.refused(key, s)
	}
	if err != nil {
		if s.tried {
			l.auditor.some[key]--
		}
		return err
	}
	s.ctx, s.fence = lease.Context(), lease.Fence()
	l.hold(key, lease, s)
	return nil
}

// hold works under a lease, and then releases it, or hands it on.
func (l *locksWorkload) hold(key string, lease *core.Lease, s *stay) {
	who := s.who
	l.auditor.enter(key, s)
	work := lease.Context()
	if l.r.one(12) {
		work = context.Background() // it is deaf
	}
	l.stayFor(work, l.longest)
	if l.hot {
		l.auditor.leave(key, s)
		l.expect(who, "release", lease.Release(context.Background()))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	if l.r.one(6) && s.alive() {
		longer := l.r.between(time.Second, 8*time.Second)
		if s.most > 0 {
			s.most += longer // which that may pass
		}
		err := lease.Extend(ctx, longer)
		l.w.emit(who, "extends", key, longer, err)
		l.expect(who, "extend", err)
		l.stayFor(work, longer)
	}
	if s.mode == core.ModeExclusive && l.r.one(6) && s.alive() {
		s.mode = core.ModeShared // readers may be let in before the reply
		err := lease.Downgrade(ctx)
		l.w.emit(who, "downgrades", key, err)
		l.expect(who, "downgrade", err)
		if err != nil { // it may have it alone
			l.keeps(key, 15*time.Second)
		}
		s.p.told.calling()
		if again, err := s.p.locker.TryAcquire(lease.Context(), key); err == nil {
			l.w.violation(who, "%s: a reader has it exclusively: fence %d", key, again.Fence())
			l.expect(who, "release", again.Release(ctx))
		}
		l.stayFor(lease.Context(), 800*time.Millisecond)
	}
	if s.mode == core.ModeExclusive && l.r.one(8) && s.alive() {
		s.left = true
		l.keeps(key, 15*time.Second)
		token, err := lease.Detach(ctx)
		l.w.emit(who, "detaches", key, err)
		if err == nil {
			l.tokens[key] = detached{token, s.fence}
			return
		}
		s.left = false
		l.expect(who, "detach", err)
	}
	l.auditor.leave(key, s)
	l.expect(who, "release", lease.Release(ctx))
}

// keeps records that somebody may have a key for a while without being inside.
func (l *locksWorkload) keeps(key string, d time.Duration) {
	l.auditor.kept[key] = later(l.auditor.kept[key], time.Now().Add(d))
}

// stayFor works for a while, and stops when it is told to. In the end it works briefly, so that all who wait are served.
func (l *locksWorkload) stayFor(ctx context.Context, most time.Duration) {
	if l.w.calm {
		most = time.Millisecond
	}
	select {
	case <-time.After(l.r.between(time.Millisecond, most)):
	case <-ctx.Done():
	}
}

func (l *locksWorkload) expect(who, what string, err error) {
	if err != nil && !documented(err) {
		l.w.violation(who, "%s: %v", what, err)
	}
}

func (l *locksWorkload) all(ctx context.Context, p *process, who, from string) error {
	keys := l.keys[slices.Index(l.keys, from):]
	p.told.calling()
	for _, key := range keys { // it may take some of them before it has all
		l.auditor.some[key]++
	}
	set, err := p.locker.AcquireAll(ctx, keys)
	for _, key := range keys {
		l.auditor.some[key]--
	}
	if err != nil {
		return err
	}
	var stays []*stay
	for _, key := range set.Keys() {
		s := &stay{p: p, who: who, ctx: set.Context(), mode: core.ModeExclusive, fence: set.Fence(key)}
		s.ofSet = slices.Contains(l.calls, "force")
		l.auditor.enter(key, s)
		stays = append(stays, s)
	}
	l.stayFor(set.Context(), 1200*time.Millisecond)
	for i, key := range set.Keys() {
		l.auditor.leave(key, stays[i])
	}
	release, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	l.expect(who, "release of all", set.Release(release))
	return nil
}

func (l *locksWorkload) force(ctx context.Context, p *process, who, key string) {
	for _, s := range slices.Clone(l.auditor.inside[key]) {
		if s.mode != core.ModeExclusive || !s.alive() {
			continue
		}
		l.auditor.takes(key, s)
		done, err := p.locker.ForceRelease(ctx, key, s.fence)
		l.w.emit(who, "forced", key, done, err)
		switch {
		case err == nil && done:
			l.auditor.taken(key, s)
		case err == nil:
			l.auditor.victims[key] = nil
			s.forced-- // it still has it
		}
		l.expect(who, "force", err)
		return
	}
}

func (l *locksWorkload) reentrant(ctx context.Context, p *process, who, key string) error {
	p.told.calling()
	served := l.auditor.waits(ctx, &stay{p: p, who: who, mode: core.ModeExclusive}, key)
	defer served()
	return p.locker.Do(ctx, key, func(ctx context.Context) error {
		served()
		lease, _ := core.LeaseFrom(ctx)
		s := under(p, who, lease)
		l.auditor.enter(key, s)
		defer l.auditor.leave(key, s)
		p.told.calling()
		return p.locker.Do(ctx, key, func(ctx context.Context) error {
			l.stayFor(ctx, 500*time.Millisecond)
			return nil
		})
	})
}

// A herd has so many calls, of callers with little time; and so many keys, which nobody else calls for.
const herdCalls, herdKeys, herdTime = 300, 100, 400 * time.Millisecond

// herd makes many calls at once, perhaps more than Redis can serve in their time. When they have ended, a call has what it wants soon.
func (l *locksWorkload) herd(p *process, who string) {
	taken, unclaimed, began := 0, p.told.unclaimed, time.Now()
	var all sync.WaitGroup
	for n := range herdCalls {
		key, timeout := fmt.Sprint("h", l.r.IntN(herdKeys)), l.r.between(0, herdTime)
		all.Go(func() {
			ctx, leave := context.WithTimeout(context.Background(), timeout)
			defer leave()
			p.told.calling()
			lease, err := p.locker.Acquire(ctx, key)
			if err != nil {
				l.expect(who, "herd", err)
				return
			}
			taken++
			s := under(p, fmt.Sprint(who, ".", n), lease)
			l.auditor.enter(key, s)
			l.auditor.leave(key, s)
			release, cancel := context.WithTimeout(context.Background(), 4*time.Second)
			defer cancel()
			l.expect(who, "release", lease.Release(release))
		})
	}
	all.Wait()
	p.told.calling()
	ctx, leave := context.WithTimeout(context.Background(), 10*time.Second)
	defer leave()
	lease, err := p.locker.Acquire(ctx, "h0")
	if err == nil {
		err = lease.Release(ctx)
	}
	if err != nil && l.w.disturbed.Before(began) && !p.ending {
		l.w.violation(who, "after a herd: %v", err)
	}
	l.w.emit(who, "herd", "", taken, " taken, ", p.told.unclaimed-unclaimed, " not, cost ", l.w.server.cost)
}

// settle checks what must hold once there are no faults any more: all calls end, each process gets each key, and nothing is left.
func (l *locksWorkload) settle() {
	time.Sleep(time.Minute)
	alive := l.w.alive()
	for _, p := range alive {
		if n := l.waiting[p.name]; n > 0 {
			l.w.violation(p.name, "%d calls still wait a minute after the last fault", n)
		}
		l.accounted(p)
	}
	for _, p := range alive {
		as(p.group, func() {
			for _, key := range l.keys {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				p.told.calling()
				lease, err := p.locker.Acquire(ctx, key)
				if err == nil {
					err = lease.Release(ctx)
				}
				if err == nil { // a release frees a key at once
					p.told.calling()
					lease, err = p.locker.TryAcquire(ctx, key)
				}
				if err == nil {
					err = lease.Release(ctx)
				}
				if err != nil {
					l.w.violation(p.name, "%s cannot be had after the last fault: %v", key, err)
				}
				cancel()
			}
		})
	}
	l.w.stopAll()
	time.Sleep(30 * time.Second)
	for _, name := range l.w.server.keys() {
		for _, key := range lockKeys {
			if strings.HasSuffix(name, key) {
				l.w.violation("redis", "%q is left, for %s", name, l.w.server.TTL(name))
			}
		}
		if strings.Contains(name, "}:h") {
			l.w.violation("redis", "%q is left of a herd, for %s", name, l.w.server.TTL(name))
		}
	}
}
