package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// busyFleet has as much to show as can be, of the worst kind.
func busyFleet(now time.Time) *fleetState {
	hostile := "\x1b[2J<b>\xff" + strings.Repeat("鍵", 100)
	f := &fleetState{Fleet: ops.Fleet{At: now}}
	for i := range 3 {
		p := ops.Process{
			ID: fmt.Sprintf("host-%d/%d/abcd", i, 4000+i), Host: fmt.Sprint("host-", i), PID: 4000 + i, Service: "example.com/shop\x1b]0;", Version: []string{"v1.2.0", "v1.3.0", ""}[i],
			Age: time.Duration(i) * time.Second, Local: core.Local{Held: 30, Waiting: 7},
			Snapshot: ops.Snapshot{
				At: now, Since: now.Add(-time.Hour),
				Locks:    []ops.LockStats{{Name: "pay", Calls: map[core.OutcomeKind]int64{core.OutcomeAcquired: 1000, core.OutcomeConflict: 10}}},
				Warnings: []ops.WarningStats{{Source: "locks", Kind: "unreachable", Open: 1}},
			},
			Workers: []delayqueue.Local{{Queue: "ship", Slots: 8, Running: 3, LastClaim: now}},
		}
		for j := range 30 {
			key := fmt.Sprintf("order:%d:%d", i, j)
			if j == 1 {
				key = hostile
			}
			p.Snapshot.Conflicts = append(p.Snapshot.Conflicts, ops.HotKey{Key: key, Weight: float64(100 - j)})
			p.Snapshot.Events = append(p.Snapshot.Events, ops.Event{
				Process: p.ID, At: now.Add(-time.Duration(j) * time.Minute), Source: "locks", Kind: "lost", Key: key, Name: hostile, Count: int64(j),
			})
			p.Local.Leases = append(p.Local.Leases, core.LocalLease{Key: key, Name: hostile, Held: time.Duration(30-j) * time.Minute, Contended: j%2 == 0})
			p.Local.Waits = append(p.Local.Waits, core.LocalWait{Key: key, Name: "pay", Waited: time.Duration(30-j) * time.Second})
		}
		f.Processes = append(f.Processes, p)
	}
	for i := range 30 {
		f.queues = append(f.queues, queueState{
			QueueWorkers: ops.QueueWorkers{Queue: fmt.Sprint("queue-", i)}, stats: delayqueue.Stats{Due: int64(i), Lateness: time.Minute}, noWorker: i < 9,
		})
	}
	f.queues[1].err = errors.New("another Redis")
	return f
}

func viewOf(f *fleetState, now time.Time) *topView {
	v := &topView{where: "127.0.0.1:6379", prefix: "perkey"}
	v.read(f, now)
	return v
}

// Whatever there is to show, each screen has its size.
func TestTop_FitsTheScreen(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, v := range map[string]*topView{
		"busy": viewOf(busyFleet(now), now), "empty": viewOf(&fleetState{}, now), "nothing read": {where: "h", prefix: "p", late: true},
		"stale": {where: "h", prefix: "p", fleet: busyFleet(now), problem: errors.New("dial\nrefused\x1b[0m " + strings.Repeat("x", 300))},
	} {
		for _, size := range [][2]int{{80, 24}, {120, 40}, {200, 100}, {50, 10}, {20, 5}, {1, 1}} {
			columns, rows := size[0], size[1]
			var b strings.Builder
			s := &screen{out: &b}
			require.NoError(t, s.draw(v.screen(columns, rows, now), columns, rows))
			drawn := strings.NewReplacer(toTheTop, "", endOfLine, "", restOfAll, "", reverse, "", bold, "", alarm, "", plainAgain, "").Replace(b.String())
			lines := strings.Split(strings.TrimSuffix(drawn, "\r\n"), "\r\n")
			assert.LessOrEqual(t, len(lines), rows, "%s %v", name, size)
			for _, l := range lines {
				assert.LessOrEqual(t, cells(l), columns, "%s %v: %s", name, size, l)
				assert.NotContains(t, l, "\x1b", "%s %v", name, size)
			}
			if name == "busy" && rows >= 24 {
				assert.Len(t, lines, rows, "no room is left over")
				for _, head := range []string{"HOT KEY", "OLDEST LEASE", "LONGEST WAIT", "QUEUE", "LAST EVENT", "no worker seen"} {
					assert.Contains(t, drawn, head, size)
				}
			}
		}
	}
}

func TestTop_SaysWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v := viewOf(busyFleet(now), now)
	text := func() string {
		var b strings.Builder
		for _, l := range v.screen(150, 40, now.Add(7*time.Second)) {
			b.WriteString(l.text + "\n")
		}
		return b.String()
	}
	assert.Contains(t, text(), "1 × unknown, 1 × v1.2.0, 1 × v1.3.0")
	assert.Contains(t, text(), "calls/s -")
	assert.NotContains(t, text(), "STALE")
	assert.Contains(t, text(), "not known here")
	v.late = true
	assert.Contains(t, text(), "STALE, read 7.0s ago. Redis does not answer\n")
	v.problem = errors.New("refused")
	assert.Contains(t, text(), "STALE, read 7.0s ago. Redis does not answer: refused\n")

	later := busyFleet(now.Add(10 * time.Second))
	for i := range later.Processes {
		later.Processes[i].Snapshot.Since = now.Add(-time.Hour)
		later.Processes[i].Snapshot.Locks[0].Calls = map[core.OutcomeKind]int64{core.OutcomeAcquired: 1500, core.OutcomeConflict: 30}
	}
	v.read(later, now)
	assert.Contains(t, text(), "calls/s 156, conflict 6")
	assert.NotContains(t, text(), "STALE")
	v.read(later, now)
	assert.Contains(t, text(), "calls/s 156, conflict 6", "it has told nothing new")
	restarted := busyFleet(now.Add(20 * time.Second))
	v.read(restarted, now)
	assert.Contains(t, text(), "calls/s -", "all have begun to count anew")
}

func TestCut_CountsColumns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		columns int
		want    string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"abc", 1, "…"}, {"鍵鍵", 4, "鍵鍵"}, {"鍵鍵鍵", 4, "鍵 …"}, {"鍵鍵鍵", 5, "鍵鍵…"}, {"e\u0301tude", 5, "e\u0301tude"}, {"", 0, ""},
	} {
		got := cut(c.text, c.columns)
		assert.Equal(t, c.want, got)
		assert.LessOrEqual(t, cells(got), max(c.columns, 0))
	}
	assert.Equal(t, "  a", pad("a", 3, true))
	assert.Equal(t, "鍵 ", pad("鍵", 3, false))
}
