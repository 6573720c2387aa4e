package schedule_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core/internal/schedule"
)

// playsVar is how many plays there are, if not so many that they take a second.
const playsVar = "PERKEY_SCHEDULE_PLAYS"

// grant is an item, and what the reference model knows of it.
type grant struct {
	schedule.Times
	id       int
	held     bool
	deadline schedule.Moment
	renewAt  schedule.Instant
}

// world is a process with a schedule, on a machine whose clocks run apart. Time is a number.
// The reference model keeps no order: it looks at every grant.
type world struct {
	rng      *rand.Rand
	now      schedule.Moment
	schedule *schedule.Schedule[*grant]
	wakeAt   schedule.Instant // as the schedule said
	grants   []*grant         // that were added, ended ones too
	setBack  bool             // the wall clock may be set back
	late     time.Duration    // how late Next may be called
	next     schedule.Moment  // when it was called last, or nothing was held
	slept    time.Duration    // the last time that the machine was suspended
	ahead    time.Duration    // of the wall clock, as the schedule can know
	log      []string
	broken   string

	expired, renewed, asleep int
}

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 11))}
	w.now = schedule.Moment{Mono: schedule.Instant(time.Minute), Wall: 1_700_000_000_000_000_000}
	w.next = w.now
	w.setBack = w.rng.IntN(4) == 0
	w.late = []time.Duration{0, time.Millisecond, 50 * time.Millisecond}[w.rng.IntN(3)]
	w.schedule = schedule.New[*grant](func(at schedule.Instant) { w.wakeAt = at })
	return w
}

// ahead is how far the wall clock is ahead of the monotonic one.
func ahead(m schedule.Moment) time.Duration { return time.Duration(m.Wall - int64(m.Mono)) }

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%12s %s", time.Duration(w.now.Mono)-time.Minute, fmt.Sprintf(format, args...)))
}

func (w *world) breaks(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
		w.note("BROKEN: %s", w.broken)
	}
}

func (w *world) count() (n int) {
	for _, g := range w.grants {
		if g.held {
			n++
		}
	}
	return n
}

// some is a time up to most, often a short one.
func (w *world) some(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most>>(4*w.rng.IntN(4)))+1) + 1)
}

// times are for a new grant, or one that is renewed.
func (w *world) times() (deadline schedule.Moment, renewAt schedule.Instant) {
	left := w.some(time.Minute)
	deadline = schedule.Moment{Mono: w.now.Mono + schedule.Instant(left), Wall: w.now.Wall + int64(left)}
	if w.rng.IntN(8) == 0 { // asked for before the machine was suspended
		deadline.Wall -= int64(w.slept)
	}
	if w.rng.IntN(4) > 0 {
		renewAt = w.now.Mono + schedule.Instant(w.some(left))
	}
	return deadline, renewAt
}

func (w *world) add() {
	if w.count() == 0 {
		w.next = w.now
	}
	g := &grant{id: len(w.grants), held: true}
	g.deadline, g.renewAt = w.times()
	g.Start(g.deadline, g.renewAt)
	w.grants = append(w.grants, g)
	if w.count() == 1 || ahead(g.deadline) < w.ahead {
		w.ahead = ahead(g.deadline)
	}
	w.note("add %d for %s", g.id, time.Duration(g.deadline.Mono-w.now.Mono))
	w.schedule.Add(g, w.now.Mono)
}

func (w *world) set(g *grant) {
	deadline, renewAt := w.times()
	switch w.rng.IntN(4) {
	case 0: // only extended
		renewAt = g.renewAt
	case 1: // only put off, or sooner
		deadline = g.Deadline()
	}
	w.note("set %d to %s", g.id, time.Duration(deadline.Mono-w.now.Mono))
	w.schedule.Set(g, deadline, renewAt)
	if deadline.Mono >= g.deadline.Mono {
		g.deadline = deadline
	}
	g.renewAt = renewAt
	if g.held {
		w.ahead = min(w.ahead, ahead(g.deadline))
	}
}

func (w *world) remove(g *grant) {
	w.note("remove %d", g.id)
	w.schedule.Remove(g)
	g.held = false
}

// run lets time pass, and calls Next as the timer says.
func (w *world) run(d time.Duration) {
	for end := w.now.Mono + schedule.Instant(d); ; {
		w.timerIsRight()
		at := max(w.wakeAt, w.now.Mono) + schedule.Instant(w.rng.Int64N(int64(w.late)+1))
		if at > end || w.count() == 0 && w.wakeAt <= w.now.Mono {
			w.pass(time.Duration(end - w.now.Mono))
			return
		}
		w.pass(time.Duration(at - w.now.Mono))
		w.look()
	}
}

func (w *world) pass(d time.Duration) {
	w.now.Mono += schedule.Instant(d)
	w.now.Wall += int64(d)
}

// timerIsRight checks that Next will be called in time for every grant, and once a tick.
func (w *world) timerIsRight() {
	for _, g := range w.grants {
		if !g.held {
			continue
		}
		if latest := w.next.Mono + schedule.Instant(schedule.Tick); w.wakeAt > latest {
			w.breaks("it wakes %s after the tick", time.Duration(w.wakeAt-latest))
		}
		if w.wakeAt > g.deadline.Mono || g.renewAt != 0 && w.wakeAt > g.renewAt {
			w.breaks("it wakes too late for %d", g.id)
		}
	}
}

func (w *world) look() {
	expired, due := w.schedule.Next(w.now)
	noticed := ahead(w.now)-w.ahead > schedule.Tick
	w.note("next: %d expired, %d due", len(expired), len(due))
	w.next = w.now
	w.expired, w.renewed = w.expired+len(expired), w.renewed+len(due)
	for _, g := range expired {
		if !g.held || !g.deadline.Passed(w.now) {
			w.breaks("%d expires, and is held: %t, for %s", g.id, g.held, time.Duration(g.deadline.Mono-w.now.Mono))
		}
		g.held = false
	}
	soon := w.now.Mono + schedule.Instant(schedule.Horizon)
	for _, g := range due {
		if !g.held || g.deadline.Passed(w.now) || g.RenewAt() == 0 {
			w.breaks("%d is renewed, and has ended or is never renewed", g.id)
		}
		if g.renewAt > soon && !noticed {
			w.breaks("%d is renewed %s too early", g.id, time.Duration(g.renewAt-w.now.Mono))
		}
		again := w.now.Mono + max((g.deadline.Mono-w.now.Mono)/3, schedule.Instant(2*schedule.Horizon))
		if g.RenewAt() > again || g.RenewAt() <= soon {
			w.breaks("%d is renewed again in %s", g.id, time.Duration(g.RenewAt()-w.now.Mono))
		}
		g.renewAt = g.RenewAt()
	}
	for _, g := range w.grants {
		if !g.held {
			continue
		}
		if g.deadline.Mono <= w.now.Mono {
			w.breaks("%d is over, by the monotonic clock", g.id)
		}
		if over := time.Duration(w.now.Wall - g.deadline.Wall); over > schedule.Tick && !w.setBack {
			w.breaks("%d is over for %s, by the wall clock", g.id, over)
		}
		if g.renewAt != 0 && g.renewAt <= w.now.Mono {
			w.breaks("%d is not renewed", g.id)
		}
		if noticed {
			w.sooner(g, slices.Contains(due, g))
		}
		if g.Deadline() != g.deadline || g.RenewAt() != g.renewAt {
			w.breaks("%d has other times than it was given", g.id)
		}
	}
	if noticed {
		w.ahead = ahead(w.now)
	}
	if w.count() != w.schedule.Len() {
		w.breaks("%d items, and %d grants are held", w.schedule.Len(), w.count())
	}
}

// sooner takes the times of a grant, as it was noticed that the machine was suspended: on the
// monotonic clock it ends and is renewed sooner, but not sooner than on the wall clock.
func (w *world) sooner(g *grant, renewed bool) {
	missed := max(0, ahead(w.now)-ahead(g.deadline))
	if want := g.deadline.Mono - schedule.Instant(missed); g.Deadline().Mono != want || want < w.now.Mono {
		w.breaks("%d lasts %s, and has %s left", g.id, time.Duration(g.Deadline().Mono-w.now.Mono), time.Duration(want-w.now.Mono))
	}
	if !renewed && g.renewAt != 0 && g.RenewAt() != g.renewAt-schedule.Instant(missed) {
		w.breaks("%d is not renewed sooner by %s", g.id, missed)
	}
	if !renewed && g.renewAt != 0 && g.renewAt < g.deadline.Mono && g.RenewAt() >= g.Deadline().Mono {
		w.breaks("%d was to be renewed in time, and is not", g.id)
	}
	g.deadline.Mono, g.renewAt = g.Deadline().Mono, g.RenewAt()
}

func (w *world) play() {
	for range 60 {
		anyone := func() *grant { return w.grants[w.rng.IntN(len(w.grants))] }
		switch n := w.rng.IntN(20); {
		case n < 6 || len(w.grants) == 0:
			w.add()
		case n < 10:
			w.set(anyone())
		case n < 12:
			w.remove(anyone())
		case n == 12:
			slept := w.some(2 * time.Minute)
			w.note("suspended for %s", slept)
			w.now.Wall += int64(slept)
			w.slept = slept
			w.asleep++
		case n == 13 && w.setBack:
			back := w.some(time.Hour)
			w.note("set back by %s", back)
			w.now.Wall -= int64(back)
		default:
			w.run(w.some(time.Minute))
		}
		if w.broken != "" {
			return
		}
	}
	w.run(2 * time.Minute)
	if w.count() > 0 {
		w.breaks("%d grants never end", w.count())
	}
}

// What is promised: nothing expires early, everything expires in time on either clock and
// is renewed in time, whatever is added, moved and removed, and however the clocks run.
func TestSchedule_KeepsItsPromisesWhateverHappens(t *testing.T) {
	t.Parallel()
	plays, err := strconv.Atoi(cmp.Or(os.Getenv(playsVar), "300"))
	require.NoError(t, err, playsVar)
	expired, renewed, asleep := 0, 0, 0
	for seed := range plays {
		w := newWorld(uint64(seed))
		w.play()
		if w.broken != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.broken, strings.Join(w.log[max(0, len(w.log)-40):], "\n"))
		}
		expired, renewed, asleep = expired+w.expired, renewed+w.renewed, asleep+w.asleep
	}
	t.Logf("%d plays: %d grants expired, %d renewals, %d times suspended", plays, expired, renewed, asleep)
	require.Greater(t, min(expired, renewed, asleep), plays)
}
