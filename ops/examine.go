package ops

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
)

// What figures are compared with.
const (
	staleAfter  = 35 * time.Second
	lately      = 10 * time.Minute
	lateAfter   = time.Minute
	slowAnswer  = 50 * time.Millisecond
	clocksApart = 5 * time.Second // more than a call of a Beacon takes
	replicaLag  = 10              // seconds
	memoryFull  = 85              // percent
)

// Findings returns what in these Facts needs a person, and what of them is not known. It asks Redis
// nothing. now is the time by the clock of this process. Answers and reports older than 35 s are
// reported as stale, and have no other findings. The most urgent finding comes first; the same
// Facts have the same findings in the same order.
func (f Facts) Findings(now time.Time) []Finding {
	all := &findings{now: now, facts: f}
	fleet := all.fleet()
	all.processes(fleet)
	all.events(fleet)
	all.leases(fleet)
	all.warnings(fleet)
	all.queues(fleet)
	all.servers(fleet)
	return all.sorted()
}

// known reports whether something can be judged: it was answered, and lately.
func known[T any](f *findings, a Reading[T], kind, subject, what, byHand string) bool {
	switch {
	case a.Err != nil:
		f.unknown(kind, subject, what+" cannot be read.", byHand, a.Err)
	case a.At.IsZero():
	case f.now.Sub(a.At) > staleAfter:
		f.stale(subject, what+" is stale.", f.now.Sub(a.At))
	default:
		return true
	}
	return false
}

func (f *findings) stale(subject, text string, age time.Duration) {
	found := f.add("stale", SeverityUnknown, subject, text, Evidence{"age", brief(age), "at most " + brief(staleAfter)})
	found.ByHand = "Ask again."
}

// fleet is of the processes that told lately; their Ages are as of now.
func (f *findings) fleet() Fleet {
	const byHand = "The processes' logs and metrics: which versions run, and whether leases were lost."
	asked := f.facts.Fleet
	if !known(f, asked, "fleet", "", "The list of processes", byHand) {
		return Fleet{}
	}
	fleet, since := asked.Value, max(0, f.now.Sub(asked.At))
	all := fleet.Processes
	fleet.Processes = nil
	oldest := time.Duration(0)
	for _, p := range all {
		if p.Age += since; p.Age > staleAfter {
			oldest = max(oldest, p.Age)
			continue
		}
		fleet.Processes = append(fleet.Processes, p)
	}
	fleet.At = fleet.At.Add(since)
	if n := len(all) - len(fleet.Processes); n > 0 {
		f.stale("", fmt.Sprintf("The last report of %s of %d is stale.", count(n, "process", "processes"), len(all)), oldest)
		f.all[len(f.all)-1].ByHand = "Whether they run: their Beacon's interval is more than 10 s, or they died, or cannot write."
	}
	switch {
	case len(all) == 0 && fleet.Damaged == 0:
		f.unknown("fleet", "", "No process reports, so nothing is known of processes.", byHand, nil)
	case fleet.Damaged+fleet.More > 0:
		f.unknown("fleet", "", fmt.Sprintf("The report of %s was not read.", count(fleet.Damaged+fleet.More, "process", "processes")), byHand, nil)
		f.all[len(f.all)-1].Evidence = []Evidence{{"entries that cannot be read", strconv.Itoa(fleet.Damaged), "0"}, {"processes beyond those that are read", strconv.Itoa(fleet.More), "0"}}
	}
	return fleet
}

// processes compares the processes with one another, and their clocks with that of Redis.
func (f *findings) processes(fleet Fleet) {
	versions := fleet.Versions()
	delete(versions, "") // not known
	if len(versions) > 1 {
		f.add("versions", SeverityLook, "", count(len(versions), "version", "versions")+" of perkey run side by side.", tallies(versions, "1 version")...)
	}
	configs := map[string]map[string]int{} // of each service, how many processes have each
	var refused []string
	for _, p := range fleet.Processes {
		if c := p.Snapshot.Config; c != nil {
			if configs[p.Service] == nil {
				configs[p.Service] = map[string]int{}
			}
			configs[p.Service][c.Hash]++
			if c.Refused {
				refused = append(refused, p.where())
			}
		}
	}
	for _, service := range slices.Sorted(maps.Keys(configs)) {
		if files := configs[service]; len(files) > 1 {
			f.add("configs", SeverityLook, service, "Processes of one service have different configuration files in force.", tallies(files, "1 file")...)
		}
	}
	if n := len(refused); n > 0 {
		f.add("reload", SeverityLook, "", count(n, "process has", "processes have")+" refused a configuration file.", examples("processes", refused))
	}
	var apart []string
	most := time.Duration(0)
	for _, p := range fleet.Processes {
		if p.Snapshot.At.IsZero() {
			continue
		}
		if off := p.Snapshot.At.Sub(fleet.At.Add(-p.Age)); off.Abs() > clocksApart {
			apart, most = append(apart, fmt.Sprintf("%s by %s", p.where(), sign(off))), max(most, off.Abs())
		}
	}
	if n := len(apart); n > 0 {
		f.add("clocks", SeverityLook, "", "The clock of "+count(n, "process", "processes")+" differs from that of Redis.",
			Evidence{"difference", brief(most), "at most " + brief(clocksApart)}, examples("processes", apart))
	}
}

func sign(d time.Duration) string {
	if d < 0 {
		return "-" + brief(-d)
	}
	return "+" + brief(d)
}

// where is where a process runs.
func (p Process) where() string { return fmt.Sprintf("%s:%d", cmp.Or(p.Host, p.ID), p.PID) }

// tallies are how many there are of each.
func tallies(counts map[string]int, want string) (all []Evidence) {
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, Evidence{name, count(counts[name], "process", "processes"), ""})
	}
	all[0].Want = want
	return all
}

const maxExamples = 3

// examples are the first of some.
func examples(figure string, all []string) Evidence {
	text := strings.Join(all[:min(len(all), maxExamples)], ", ")
	if n := len(all) - maxExamples; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return Evidence{Figure: figure, Is: text}
}

// events judges what happened in the last 10 minutes, by what each process remembers of it.
func (f *findings) events(fleet Fleet) {
	type happened struct {
		count int64
		keys  distinct
	}
	all := map[string]*happened{}
	for _, p := range fleet.Processes {
		for _, e := range p.Snapshot.Events {
			if p.Snapshot.At.Sub(e.At)+p.Age > lately {
				continue
			}
			kind := e.Source + " " + e.Kind
			if e.Source == sourceQueues {
				kind += " " + e.Queue
			}
			h := in(all, kind, &happened{})
			h.count += max(1, e.Count)
			if e.Key != "" {
				h.keys.add(e.Key)
			}
		}
	}
	add := func(kind string, severity Severity, subject, text string, h *happened) {
		found := f.add(kind, severity, subject, text, Evidence{"in the last " + brief(lately), strconv.FormatInt(h.count, 10), "0"})
		if len(h.keys.all) > 0 {
			found.about(h.keys.all)
		}
	}
	for _, one := range []struct {
		event, kind string
		severity    Severity
		one, many   string
	}{
		{"locks lost", "lost", SeverityAct, "lease was lost while its work ran.", "leases were lost while their work ran."},
		{"locks forced", "forced", SeverityLook, "lease was taken from its holder.", "leases were taken from their holders."},
		{"locks " + string(core.OutcomeShed), "shed", SeverityLook, "call was refused, since too many wait.", "calls were refused, since too many wait."},
		{"locks " + string(core.OutcomeUnavailable), "unavailable", SeverityAct, "call found Redis unavailable.", "calls found Redis unavailable."},
	} {
		if h := all[one.event]; h != nil {
			add(one.kind, one.severity, "", count(h.count, one.one, one.many), h)
		}
	}
	for _, event := range slices.Sorted(maps.Keys(all)) {
		queue, expired := strings.CutPrefix(event, "queues "+string(delayqueue.OutcomeExpired)+" ")
		if h := all[event]; expired {
			add("expiring", SeverityLook, queue, count(h.count, "message was", "messages were")+" too old before being run.", h)
		}
	}
}

// distinct are some texts, each once, in the order in which they were added.
type distinct struct {
	all  []string
	seen map[string]bool
}

// add reports whether the text is a new one.
func (d *distinct) add(text string) bool {
	if d.seen[text] {
		return false
	}
	if d.seen == nil {
		d.seen = map[string]bool{}
	}
	d.seen[text] = true
	d.all = append(d.all, text)
	return true
}

// leases judges the oldest leases of each process, by its report.
func (f *findings) leases(fleet Fleet) {
	var late []string
	least := time.Duration(-1)
	for _, l := range fleet.OldestLeases(math.MaxInt) {
		if l.Late() {
			if late = append(late, l.Key); least < 0 || l.Remaining < least {
				least = l.Remaining
			}
		}
	}
	if n := len(late); n > 0 {
		found := f.add("renewals", SeverityLook, "", count(n, "lease is", "leases are")+" near the end: a renewal is late, or failed.",
			Evidence{"least that remained", brief(least), "at least a third of the TTL"})
		found.about(late)
	}
	f.longHolds(fleet)
	const byHand = "perkey show KEY, of keys that stay held."
	if keys := f.facts.endless; known(f, keys, "endless", "", "Whether records have an expiry", byHand) && len(keys.Value) > 0 {
		found := f.add("endless", SeverityAct, "", count(len(keys.Value), "key is", "keys are")+" held without an end, as the record has no expiry: its holder's next renewal heals that, else perkey unlock frees the key.")
		found.about(keys.Value)
	}
}

// about adds keys that are found.
func (f *Finding) about(keys []string) {
	f.Keys = keys[:min(len(keys), maxExamples)]
	quoted := make([]string, len(keys))
	for i, key := range keys {
		quoted[i] = strconv.Quote(key)
	}
	f.Evidence = append(f.Evidence, examples(EvidenceKeys, quoted))
}

// warnings judges what processes warn of now.
func (f *findings) warnings(fleet Fleet) {
	for _, one := range []struct {
		warning  core.WarningKind
		kind     string
		severity Severity
		text     string
	}{
		{core.WarnUnreachable, "away", SeverityAct, "Processes cannot reach a server of Redis."},
		{core.WarnNoSubscription, "subscription", SeverityLook, "Processes cannot subscribe or publish, so waiting calls poll."},
		{core.WarnOtherLocker, "other_locker", SeverityAct, "Processes take a key with two lockers that do not exclude one another."},
	} {
		if warned := fleet.warned(one.warning); len(warned) > 0 {
			f.warned(one.kind, one.severity, one.text, warned, fleet)
		}
	}
}

func (f *findings) warned(kind string, severity Severity, text string, warned []string, fleet Fleet) {
	f.add(kind, severity, "", text, Evidence{"processes that warn", fmt.Sprintf("%d of %d", len(warned), len(fleet.Processes)), "0"}, examples("processes", warned))
}

// warned are where the processes run that warn of something now.
func (f Fleet) warned(kind core.WarningKind) (all []string) {
	for _, p := range f.Processes {
		if slices.ContainsFunc(p.Snapshot.Warnings, func(w WarningStats) bool {
			return w.Source == sourceLocks && w.Kind == string(kind) && w.Open > 0
		}) {
			all = append(all, p.where())
		}
	}
	return all
}

// queues judges each queue, and compares its manifest with what workers say.
func (f *findings) queues(fleet Fleet) {
	const byHand = "perkey queue ls, and the logs of the workers."
	if !known(f, f.facts.Queues, "queue", "", "The list of queues", byHand) && f.facts.Queues.Err == nil {
		return
	} // those that are known are judged
	for _, q := range f.facts.Queues.Value {
		name := q.Info.Name
		if q.Info.Err != nil {
			f.unknown("queue", name, "Queue "+name+" cannot be read.", byHand, q.Info.Err)
			continue
		}
		f.mixed(fleet, q.Info)
		if known(f, q.Stats, "queue", name, "Queue "+name, byHand) {
			f.queue(fleet, name, q.Stats.Value)
		}
	}
}

func (f *findings) queue(fleet Fleet, name string, s delayqueue.Stats) {
	due := count(s.Due, "message is due", "messages are due")
	switch {
	case fleet.NoWorker(name, s):
		workers := "0"
		if len(fleet.Processes) == 0 {
			workers = "not known"
		}
		f.add("no_worker", SeverityAct, name, fmt.Sprintf("Queue %s: %s, and no worker is seen.", name, due),
			Evidence{"last claim", brief(s.SinceLastClaim) + " ago", "at most " + brief(noWorkerAfter)}, Evidence{"workers that processes report", workers, "1 or more"})
	case s.Lateness > lateAfter && !s.Paused:
		f.add("late", SeverityAct, name, fmt.Sprintf("Queue %s is behind: %s.", name, due), Evidence{"lateness", brief(s.Lateness), "at most " + brief(lateAfter)})
	}
	if s.Paused {
		f.add("paused", SeverityLook, name, fmt.Sprintf("Queue %s is paused.", name), Evidence{"until", s.PausedUntil.UTC().Format(time.DateTime) + " UTC", ""})
	}
	if s.ClockBack > clocksApart {
		f.add("clocks", SeverityLook, name, fmt.Sprintf("The clock of Redis was set back while queue %s was in use.", name),
			Evidence{"times of the queue are ahead by", brief(s.ClockBack), "at most " + brief(clocksApart)})
	}
	if s.Dead > 0 {
		died := int64(0)
		for _, p := range fleet.Processes {
			for _, e := range p.Snapshot.Events {
				if e.Source == sourceQueues && e.Kind == string(delayqueue.OutcomeDead) && e.Queue == name && p.Snapshot.At.Sub(e.At)+p.Age <= lately {
					died += max(1, e.Count)
				}
			}
		}
		severity, grow := SeverityLook, ""
		if died > 0 {
			severity, grow = SeverityAct, ", and they grow"
		}
		f.add("dead", severity, name, fmt.Sprintf("Queue %s has %s%s.", name, count(s.Dead, "dead letter", "dead letters"), grow),
			Evidence{"dead letters", strconv.FormatInt(s.Dead, 10), "0"}, Evidence{"died in the last " + brief(lately) + ", as processes report", strconv.FormatInt(died, 10), "0"},
			Evidence{"keys that they halt", strconv.FormatInt(s.Halted, 10), "0"})
	}
}

func (f *findings) mixed(fleet Fleet, info delayqueue.Info) {
	services, partitions := map[string]int{}, map[string]int{}
	for _, p := range fleet.Processes {
		for _, w := range p.Workers {
			if w.Queue != info.Name || w.Stopped {
				continue
			}
			if w.Service != "" && info.Service != "" && w.Service != info.Service {
				services["service "+w.Service]++
			}
			if w.Partitions != 0 && info.Partitions != 0 && w.Partitions != info.Partitions {
				partitions[count(w.Partitions, "partition", "partitions")]++
			}
		}
	}
	if len(services) > 0 {
		f.add("services", SeverityAct, info.Name, fmt.Sprintf("Workers of another service are on queue %s, and run nothing.", info.Name), tallies(services, info.Service)...)
	}
	if len(partitions) > 0 {
		f.add("partitions", SeverityAct, info.Name, fmt.Sprintf("Workers of queue %s are set to another number of partitions than it has, and run nothing.", info.Name), tallies(partitions, strconv.Itoa(info.Partitions))...)
	}
}
