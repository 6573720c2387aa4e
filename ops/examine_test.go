package ops_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/ops"
)

var examined = time.UnixMilli(1_800_000_000_000)

// healthy are Facts of which nothing is to be said: each has a figure that is just not too much.
func healthy() *ops.Facts {
	process := func(id string) ops.Process {
		return ops.Process{
			ID: id, Host: "h", PID: 7, Service: "shop", Version: "v1.0.0", Age: 5 * time.Second,
			Snapshot: ops.Snapshot{
				At: examined.Add(-5 * time.Second).Add(4 * time.Second), Config: &ops.ConfigStats{Hash: "c1"},
				Warnings: []ops.WarningStats{{Source: "locks", Kind: string(core.WarnUnreachable)}},
				Events: []ops.Event{
					{At: examined.Add(-11 * time.Minute), Source: "locks", Kind: "lost", Count: 1},
					{At: examined, Source: "config", Kind: "done", Count: 1},
				},
			},
			Local: core.Local{Leases: []core.LocalLease{
				{Key: "k", Held: time.Hour, TTL: 15 * time.Second, Remaining: 6 * time.Second},
				{Key: "young", Held: 5 * time.Second, TTL: 15 * time.Second, Remaining: time.Second, Contended: true},
			}},
			Workers: []delayqueue.Local{
				{Queue: "ship", Service: "shop", Partitions: 2, Slots: 4, LastClaim: examined.Add(-6 * time.Second)},
				{Queue: "ship", Service: "old", Partitions: 3, Stopped: true},
			},
		}
	}
	return &ops.Facts{
		Servers: ops.Reading[[]ops.Server]{At: examined, Value: []ops.Server{{
			Addr: "s:1", RoundTrips: []time.Duration{time.Millisecond, time.Second, 50 * time.Millisecond},
			Info: map[string]string{
				"role": "master", "maxmemory_policy": "noeviction", "maxmemory": "100", "used_memory": "84", "aof_enabled": "0",
				"slave0": "ip=1.2.3.4,port=6379,state=online,offset=14,lag=10", "cmdstat_get": "calls=1", "cmdstat_wait": "calls=1",
			},
			Save: ops.Reading[string]{At: examined, Value: "3600 1"}, Rights: ops.Reading[ops.Rights]{At: examined, Value: ops.Rights{User: "app"}},
		}}},
		Fleet: ops.Reading[ops.Fleet]{At: examined, Value: ops.Fleet{At: examined, Processes: []ops.Process{process("a"), process("b")}}},
		Queues: ops.Reading[[]ops.QueueFacts]{At: examined, Value: []ops.QueueFacts{{
			Info: delayqueue.Info{Name: "ship", Service: "shop", Partitions: 2},
			Stats: ops.Reading[delayqueue.Stats]{At: examined, Value: delayqueue.Stats{
				Due: 3, Lateness: time.Minute, SinceLastClaim: 29 * time.Second, ClockBack: 5 * time.Second, Totals: delayqueue.Totals{Expired: 9, Died: 9},
			}},
		}}},
	}
}

func server(f *ops.Facts) *ops.Server           { return &f.Servers.Value[0] }
func process(f *ops.Facts) *ops.Process         { return &f.Fleet.Value.Processes[1] }
func queueStats(f *ops.Facts) *delayqueue.Stats { return &f.Queues.Value[0].Stats.Value }

func happens(source, kind, queue string) func(*ops.Facts) {
	return func(f *ops.Facts) {
		p := process(f)
		p.Snapshot.Events = append(p.Snapshot.Events, ops.Event{
			At: p.Snapshot.At.Add(-9 * time.Minute), Source: source, Kind: kind, Queue: queue, Key: "k\n1", Count: 3,
		})
	}
}

// ended has holds of the name of all leases end: most took d, and one of them a minute.
func ended(f *ops.Facts, most int64, d time.Duration) {
	process(f).Snapshot.Locks = []ops.LockStats{{Hold: ops.Histogram{
		Buckets: []ops.Bucket{{AtMost: d, Count: most}, {AtMost: time.Minute, Count: 1}}, Count: most + 1,
	}}}
}

func warns(kind core.WarningKind) func(*ops.Facts) {
	return func(f *ops.Facts) {
		process(f).Snapshot.Warnings = []ops.WarningStats{{Source: "locks", Kind: string(kind), Open: 1}}
	}
}

var errSaid = errors.New("NOPERM no")

// Each case changes one thing of the healthy Facts, in which each kind is absent, and is all that is found.
// It is long since most of it is a table.
func TestFacts_FindingsOfEachKind(t *testing.T) {
	t.Parallel()
	require.Empty(t, healthy().Findings(examined))
	require.Empty(t, healthy().Findings(examined.Add(30*time.Second)), "all is 35 s old at most")
	require.Empty(t, (&ops.Facts{}).Findings(examined), "nothing was asked")
	nameless := healthy()
	nameless.Queues.Value[0].Info = delayqueue.Info{Name: "ship"}
	require.Empty(t, nameless.Findings(examined), "what a queue's manifest says is not known")
	tested := map[string]bool{}
	for _, c := range []struct {
		change func(*ops.Facts)
		is     string // severity, kind and subject
		shown  string // in the text or the evidence
	}{
		{func(f *ops.Facts) { f.Queues.Err = errSaid }, "unknown queue ", "NOPERM"},
		{func(f *ops.Facts) { f.Queues.Value[0].Stats.Err = errSaid }, "unknown queue ship", "NOPERM"},
		{func(f *ops.Facts) { f.Queues.Value[0].Info.Err = delayqueue.ErrOtherLayout }, "unknown queue ship", "another layout"},
		{func(f *ops.Facts) {
			queueStats(f).SinceLastClaim = time.Minute
			f.Fleet.Value.Processes[0].Workers, f.Fleet.Value.Processes[1].Workers = nil, nil
		}, "act no_worker ship", "last claim: 1 min ago (want at most 30 s)"},
		{func(f *ops.Facts) { queueStats(f).Lateness = 90 * time.Second }, "act late ship", "lateness: 1 min 30 s (want at most 1 min)"},
		{func(f *ops.Facts) {
			s := queueStats(f)
			s.Paused, s.PausedUntil, s.Lateness = true, examined, time.Hour
		}, "look paused ship", "2027-01-15 08:00:00 UTC"},
		{func(f *ops.Facts) { queueStats(f).ClockBack = time.Hour }, "look clocks ship", "ahead by: 1 h 0 min (want at most 5 s)"},
		{func(f *ops.Facts) { queueStats(f).Dead = 2 }, "look dead ship", "2 dead letters."},
		{func(f *ops.Facts) { queueStats(f).Dead = 2; happens("queues", "dead", "ship")(f) }, "act dead ship", "died in the last 10 min, as processes report: 3"},
		{happens("queues", "expired", "ship"), "look expiring ship", "3 messages"},
		{happens("locks", "shed", ""), "look shed ", "3 calls"},
		{happens("locks", "lost", ""), "act lost ", `keys: "k\n1"`},
		{happens("locks", "forced", ""), "look forced ", "3 leases"},
		{happens("locks", "unavailable", ""), "act unavailable ", "3 calls"},
		{func(f *ops.Facts) { process(f).Local.Leases[0].Remaining = 4900 * time.Millisecond }, "look renewals ", "4.9 s (want at least a third of the TTL)"},
		{func(f *ops.Facts) {
			process(f).Local.Leases[1] = core.LocalLease{Key: "long", Held: 61 * time.Second, TTL: time.Hour, Remaining: time.Hour, Contended: true}
		}, "look long_holds ", "longest hold: 1 min 6 s (want at most 1 min)"},
		{func(f *ops.Facts) {
			process(f).Local.Waits = []core.LocalWait{{Key: "k"}, {Key: "k"}}
		}, "look long_holds ", "calls that wait, as their processes report: 2"},
		{func(f *ops.Facts) {
			f.Queues.Value[0].Parked = map[string]int{"k": 3, "young": 1}
		}, "look long_holds ", "messages queued after them: 3"},
		{func(f *ops.Facts) {
			ended(f, 99, 100*time.Millisecond)
			process(f).Local.Leases[1].Held = 11 * time.Second
			process(f).Local.Leases[1].Remaining = 6 * time.Second
		}, "look long_holds ", "longest hold: 16 s (want at most 10 s)"},
		{warns(core.WarnUnreachable), "act away ", "1 of 2"},
		{warns(core.WarnNoSubscription), "look subscription ", "h:7"},
		{warns(core.WarnOtherLocker), "act other_locker ", "h:7"},
		{func(f *ops.Facts) { f.Servers.Err = errSaid }, "act away ", "NOPERM"},
		{func(f *ops.Facts) { f.Servers.Err = fmt.Errorf("a ring: %w", errors.ErrUnsupported) }, "unknown away ", "a ring"},
		{func(f *ops.Facts) { *server(f) = ops.Server{Addr: "s:1", Err: errSaid} }, "act away s:1", "within 1.5 s"},
		{func(f *ops.Facts) { server(f).Info["role"] = "slave" }, "act read_only s:1", "slave (want master)"},
		{func(f *ops.Facts) { server(f).Info["maxmemory_policy"] = "volatile-lru" }, "act eviction s:1", "volatile-lru (want noeviction)"},
		{func(f *ops.Facts) { delete(server(f).Info, "maxmemory_policy") }, "unknown eviction s:1", "does not report"},
		{func(f *ops.Facts) {
			delete(server(f).Info, "maxmemory_policy")
			warns(core.WarnEviction)(f)
		}, "act eviction ", "1 of 2"},
		{func(f *ops.Facts) { server(f).Info["used_memory"] = "85" }, "act memory s:1", "85 %"},
		{func(f *ops.Facts) { server(f).RoundTrips[2]++ }, "look latency s:1", "want at most 50 ms"},
		{func(f *ops.Facts) { server(f).Info["slave0"] = "ip=1.2.3.4,port=6379,state=online,offset=14,lag=11" }, "look replicas s:1", "1.2.3.4:6379 online, 11 s"},
		{func(f *ops.Facts) { server(f).Info["slave0"] = "ip=1.2.3.4,port=6379,state=wait_bgsave,offset=0,lag=0" }, "look replicas s:1", "wait_bgsave"},
		{func(f *ops.Facts) { delete(server(f).Info, "cmdstat_wait") }, "look replicas s:1", "calls of WAIT: 0"},
		{func(f *ops.Facts) { server(f).Save.Value = "" }, "look persistence s:1", "parked work"},
		{func(f *ops.Facts) { server(f).Save.Err = errSaid }, "unknown persistence s:1", "NOPERM"},
		{func(f *ops.Facts) { server(f).Rights.Value.Missing = map[string][]string{"queues": {"+zadd"}} }, "act rights s:1", "missing for queues: +zadd"},
		{func(f *ops.Facts) { server(f).Rights.Err = errSaid }, "unknown rights s:1", "NOPERM"},
		{func(f *ops.Facts) { f.Endless(examined, nil, "k\n1", "k2") }, "act endless ", `keys: "k\n1", "k2"`},
		{func(f *ops.Facts) { f.Endless(examined, errSaid) }, "unknown endless ", "NOPERM"},
		{func(f *ops.Facts) { f.Fleet.Err = errSaid }, "unknown fleet ", "NOPERM"},
		{func(f *ops.Facts) { f.Fleet.Value.Processes = nil }, "unknown fleet ", "No process"},
		{func(f *ops.Facts) { f.Fleet.Value.Damaged, f.Fleet.Value.More = 1, 2 }, "unknown fleet ", "3 processes"},
		{func(f *ops.Facts) { process(f).Age = 36 * time.Second }, "unknown stale ", "1 process of 2"},
		{func(f *ops.Facts) { process(f).Version = "v1.1.0" }, "look versions ", "v1.0.0: 1 process"},
		{func(f *ops.Facts) { process(f).Snapshot.Config.Hash = "c2" }, "look configs shop", "c2: 1 process"},
		{func(f *ops.Facts) { process(f).Snapshot.Config.Refused = true }, "look reload ", "h:7"},
		{func(f *ops.Facts) { process(f).Workers[0].Service = "bank" }, "act services ship", "service bank: 1 process (want shop)"},
		{func(f *ops.Facts) { process(f).Workers[0].Partitions = 8 }, "act partitions ship", "8 partitions: 1 process (want 2)"},
		{func(f *ops.Facts) { process(f).Snapshot.At = examined.Add(time.Second) }, "look clocks ", "h:7 by +6 s"},
	} {
		f := healthy()
		c.change(f)
		found := f.Findings(examined)
		is, shown := []string{}, ""
		for _, one := range found {
			is = append(is, fmt.Sprintf("%s %s %s", one.Severity, one.Kind, one.Subject))
			shown += one.Text + fmt.Sprint(one.Evidence)
			assert.True(t, strings.HasSuffix(one.Text, "."), one.Text)
			assert.NotContains(t, one.Text+fmt.Sprint(one.Evidence), "\n")
			assert.Equal(t, one.Severity == ops.SeverityUnknown, one.ByHand != "", "%+v", one)
			tested[one.Kind] = true
		}
		assert.Equal(t, []string{c.is}, is, "%v", found)
		assert.Contains(t, shown, c.shown)
	}
	for _, kind := range ops.FindingKinds() {
		assert.True(t, tested[kind], "no test finds %s", kind)
	}
}

// A hold is long by what is usual for its name: by more than ten times, and never before 10 s, or only after 10 min.
func TestFacts_HoldsAreLongByWhatIsUsual(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ended        int64
		usual, holds time.Duration
		long         bool
	}{
		{0, 0, 59 * time.Second, false},
		{0, 0, 61 * time.Second, true},
		{98, time.Millisecond, 59 * time.Second, false}, // too few have ended
		{99, time.Millisecond, 9 * time.Second, false},
		{99, time.Millisecond, 11 * time.Second, true},
		{999, 5 * time.Second, 49 * time.Second, false},
		{999, 5 * time.Second, 51 * time.Second, true},
		{999, 30 * time.Second, 299 * time.Second, false},
		{999, 30 * time.Second, 301 * time.Second, true},
		{999, 5 * time.Minute, 9 * time.Minute, false},
		{999, 5 * time.Minute, 11 * time.Minute, true},
	} {
		f := healthy()
		for i := range f.Fleet.Value.Processes {
			f.Fleet.Value.Processes[i].Age, f.Fleet.Value.Processes[i].Local.Leases = 0, nil
		}
		process(f).Local.Leases = []core.LocalLease{{Key: "k", Held: c.holds, TTL: time.Hour, Remaining: time.Hour, Contended: true}}
		ended(f, c.ended, c.usual)
		found := f.Findings(examined)
		assert.Equal(t, c.long, len(found) == 1, "%+v: %v", c, found)
		if c.long {
			assert.Equal(t, []string{"k"}, found[0].Keys)
			assert.Equal(t, []string{"k"}, f.LongHeld())
		} else {
			assert.Empty(t, f.LongHeld())
		}
	}
}

// Nothing is found of what was told long ago but that it was.
func TestFacts_OfStaleFactsOnlyThat(t *testing.T) {
	t.Parallel()
	ill := func() *ops.Facts {
		f := healthy()
		process(f).Version, queueStats(f).Dead, server(f).Info["maxmemory_policy"] = "v2.0.0", 5, "allkeys-lru"
		happens("locks", "lost", "")(f)
		return f
	}
	kinds := func(found []ops.Finding) (all []string) {
		for _, one := range found {
			all = append(all, one.Kind)
		}
		return all
	}
	require.Equal(t, []string{"lost", "eviction", "versions", "dead"}, kinds(ill().Findings(examined)), "what needs a person most is first")
	require.Equal(t, []string{"stale", "stale", "stale"}, kinds(ill().Findings(examined.Add(36*time.Second))))
	require.Equal(t, []string{"lost", "eviction", "dead", "stale"}, kinds(func() []ops.Finding {
		f := ill()
		f.Fleet.Value.Processes[0].Age = 36 * time.Second
		return f.Findings(examined)
	}()), "of one process nothing is known")
	f := ill()
	f.Fleet.At = examined.Add(-31 * time.Second)
	require.Equal(t, []string{"eviction", "dead", "stale"}, kinds(f.Findings(examined)), "they told it 5 s before it was read")
}

func TestFindings_HaveARunbook(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/runbook.md")
	require.NoError(t, err)
	anchors := map[string]int{}
	for _, section := range regexp.MustCompile(`(?m)^## `).Split(string(text), -1)[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		anchor := strings.ReplaceAll(strings.ToLower(heading), " ", "-")
		anchors[anchor] = 0
		for _, part := range []string{"**What it means.**", "**Look at.**", "**Do.**", "**Risk.**"} {
			assert.Equal(t, 1, strings.Count(body, part), "%s: %s", heading, part)
		}
	}
	for _, kind := range ops.FindingKinds() {
		anchor, ok := strings.CutPrefix(ops.RunbookOf(kind), "docs/runbook.md#")
		require.True(t, ok)
		assert.Contains(t, anchors, anchor, kind)
		anchors[anchor]++
	}
	for anchor, findings := range anchors {
		assert.True(t, findings > 0 || strings.HasPrefix(anchor, "perkey"), "neither a finding nor an alert links to %s", anchor)
	}
}

// What is compared with a user's rights is what the docs print.
func TestNeededRights_AreThoseOfTheDocs(t *testing.T) {
	t.Parallel()
	extra := redistest.Rights(t)
	for use, rights := range ops.NeededRights() {
		want := slices.DeleteFunc(redistest.Rights(t, use), func(r string) bool { return slices.Contains(extra, r) })
		assert.Equal(t, want, rights, use)
	}
}
