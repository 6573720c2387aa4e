package console

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/perkey-go/perkey/core"
)

// level is how much an area needs a person.
type level int

const (
	levelGood level = iota
	levelUnknown
	levelLook // somebody should look, today
	levelAct  // now
)

func (l level) String() string { return [...]string{"good", "unknown", "look", "act"}[l] }

// Word is what a person reads.
func (l level) Word() string { return [...]string{"Good", "Not known", "Look", "Act now"}[l] }

// area is a part of what can go wrong, and what was found there.
type area struct {
	Name, Ask string
	Level     level
	Findings  []finding
	Fine      string // what is said if there are none
}

// finding is one thing that needs a person, and where it is seen.
type finding struct {
	Level         level
	Text, Section string // of the runbook
	Link          string // the page that shows it
}

func (a *area) find(l level, section, link, format string, args ...any) {
	a.Findings = append(a.Findings, finding{l, fmt.Sprintf(format, args...), section, link})
	a.Level = max(a.Level, l)
}

// lately is how old an event may be that still matters.
const lately = 10 * time.Minute

// areas says of each area whether it needs a person. What is not up to date is not known.
func areas(queues []queueView, known bool, fleet panel[fleetView], servers panel[redisView]) []area {
	all := []area{flow(queues, known), exclusion(fleet), health(servers), processes(fleet)}
	for i := range all {
		slices.SortStableFunc(all[i].Findings, func(a, b finding) int { return int(b.Level - a.Level) })
	}
	return all
}

func flow(queues []queueView, known bool) area {
	a := area{Name: "Flow", Ask: "does parked work get done?"}
	parked := int64(0)
	for _, q := range queues {
		s, link := q.Stats.Data, link("queue", "queue", q.Name)
		parked += s.Queued + s.Running
		switch {
		case !q.Stats.OK():
			a.find(levelUnknown, "PerkeyQueueUnreachable", link, "Queue %s cannot be read.", q.Name)
			continue
		case q.Unworked:
			a.find(levelAct, "PerkeyNobodyWorks", link, "Queue %s: %s, and no worker is seen.", q.Name, count(s.Due, "message is due", "messages are due"))
		case q.Behind():
			a.find(levelAct, "PerkeyQueueLate", link, "Queue %s is %s behind: %s.", q.Name, dur(s.Lateness), count(s.Due, "message is due", "messages are due"))
		}
		if s.Paused {
			a.find(levelLook, "PerkeyQueuePaused", link, "Queue %s is paused until %s UTC.", q.Name, clock(s.PausedUntil))
		}
		if s.Dead > 0 {
			a.find(levelLook, "PerkeyDeadLetters", "dead", "Queue %s has %s.", q.Name, count(s.Dead, "dead letter", "dead letters"))
		}
		if s.Halted > 0 {
			a.find(levelLook, "PerkeyDeadLetters", "dead", "Queue %s: dead letters halt %s.", q.Name, count(s.Halted, "key", "keys"))
		}
	}
	switch {
	case !known && len(queues) == 0:
		a.find(levelUnknown, "PerkeyQueueUnreachable", "queues", "Which queues there are cannot be read.")
	case len(queues) == 0:
		a.Fine = "There is no queue."
	default:
		a.Fine = fmt.Sprintf("%s, and none is more than a minute late.", count(parked, "message is queued or running", "messages are queued or running"))
	}
	return a
}

func exclusion(fleet panel[fleetView]) area {
	a := area{Name: "Exclusion", Ask: "has one holder been one holder?"}
	if unknown(&a, fleet) {
		return a
	}
	v := fleet.Data
	lost := map[string]int64{}
	for _, e := range v.Events {
		if time.Since(e.At) < lately && e.Source == "locks" {
			lost[e.Kind] += max(1, e.Count)
		}
	}
	if n := lost["lost"]; n > 0 {
		a.find(levelAct, "PerkeyLeaseLost", "keys", "%s lost in the last 10 minutes, while work ran.", count(n, "lease was", "leases were"))
	}
	if n := lost["forced"]; n > 0 {
		a.find(levelLook, "PerkeyLeaseLost", "keys", "%s by an operator in the last 10 minutes.", count(n, "lease was taken", "leases were taken"))
	}
	late, long := int64(0), int64(0)
	for _, l := range v.Leases {
		if l.Late() && time.Since(l.Process.At) < 20*time.Second {
			late++
		}
		if l.Wanted && l.Held > time.Minute {
			long++
		}
	}
	if late > 0 {
		a.find(levelLook, "PerkeyRenewalsFail", "keys", "%s close to the end: the renewal is late.", count(late, "lease is", "leases are"))
	}
	if long > 0 {
		a.find(levelLook, "PerkeyLongHolds", "keys", "%s for more than a minute while others wait.", count(long, "key is held", "keys are held"))
	}
	if n := lost[string(core.OutcomeShed)]; n > 0 {
		a.find(levelLook, "PerkeyShedding", "keys", "%s in the last 10 minutes because too many waited.", count(n, "call was refused", "calls were refused"))
	}
	a.Fine = fmt.Sprintf("%s held, and none was lost lately.", count(int64(v.Held), "lease is", "leases are"))
	return a
}

func health(servers panel[redisView]) area {
	a := area{Name: "Redis", Ask: "can it be relied on?"}
	if redis.HasErrorPrefix(servers.Err, "NOPERM") || errors.Is(servers.Err, errors.ErrUnsupported) {
		a.find(levelUnknown, "", "", "What Redis says about itself (INFO) cannot be read: %s", short(120, servers.Err.Error()))
		return a
	} else if !servers.OK() {
		a.find(levelAct, "PerkeyUnavailable", "", "Redis does not answer.")
		return a
	}
	var clients, perSecond int64
	for _, s := range servers.Data.Servers {
		clients, perSecond = clients+s.Clients, perSecond+s.OpsPerSecond
		if s.Policy != "" && s.Policy != "noeviction" {
			a.find(levelAct, "PerkeyEviction", "", "%s may evict held keys: its maxmemory-policy is %s.", s.Addr, s.Policy)
		}
		if s.Full() >= 85 {
			a.find(levelAct, "PerkeyUnavailable", "", "%s uses %d %% of its memory.", s.Addr, s.Full())
		}
	}
	if servers.Data.Took > 250*time.Millisecond {
		a.find(levelLook, "PerkeyRenewalsFail", "", "An answer took %s.", dur(servers.Data.Took))
	}
	a.Fine = fmt.Sprintf("%s operations a second, %s clients. An answer took %s.", num(perSecond), num(clients), dur(servers.Data.Took))
	return a
}

func processes(fleet panel[fleetView]) area {
	a := area{Name: "Processes", Ask: "are all there, and alike?"}
	if unknown(&a, fleet) {
		return a
	}
	v := fleet.Data
	if versions := v.Fleet.Versions(); len(versions) > 1 {
		a.find(levelLook, "PerkeyVersionsMixed", "processes", "%d versions of perkey run side by side.", len(versions))
	}
	open := map[string]int{}
	for _, p := range v.Processes {
		for _, w := range p.Snapshot.Warnings {
			if w.Open > 0 && w.Kind != string(core.WarnEvictionUnknown) {
				open[w.Kind]++
			}
		}
	}
	for kind, n := range open {
		l, section := levelLook, warningSections[kind]
		if kind == string(core.WarnUnreachable) {
			l = levelAct
		}
		a.find(l, section, "processes", "%d of %d processes warn: %s.", n, len(v.Processes), kind)
	}
	slices.SortFunc(a.Findings, func(a, b finding) int { return slices.Compare([]byte(a.Text), []byte(b.Text)) })
	a.Fine = fmt.Sprintf("%s of one version.", count(int64(len(v.Processes)), "process", "processes"))
	return a
}

var warningSections = map[string]string{
	string(core.WarnUnreachable): "PerkeyRedisUnreachable", "eviction": "PerkeyEviction", "no_worker": "PerkeyNobodyWorks",
}

// unknown reports whether processes report nothing that can be judged.
func unknown(a *area, fleet panel[fleetView]) bool {
	switch {
	case !fleet.OK():
		a.find(levelUnknown, "PerkeyUnavailable", "processes", "The reports of processes cannot be read.")
	case len(fleet.Data.Processes) == 0:
		a.Level, a.Fine = levelUnknown, "No process reports."
	default:
		return false
	}
	return true
}
