package console

import (
	"fmt"
	"slices"
	"time"

	"github.com/perkey-go/perkey/ops"
)

// area is a part of what can go wrong, and what was found there.
type area struct {
	Name, Ask string
	Severity  ops.Severity // of its gravest finding; empty: there is none
	Findings  []ops.Finding
	Fine      string // what is said if there are none
}

// Level is how much the area needs a person, in one word.
func (a area) Level() string {
	if a.Severity == "" {
		return "good"
	}
	return string(a.Severity)
}

// Word is what a person reads.
func (a area) Word() string { return words[a.Severity] }

var words = map[ops.Severity]string{"": "Good", ops.SeverityUnknown: "Not known", ops.SeverityLook: "Look", ops.SeverityAct: "Act now"}

// asked is a panel as findings take it.
func asked[T, V any](p panel[T], value V) ops.Reading[V] {
	return ops.Reading[V]{At: p.At, Value: value, Err: p.Err}
}

// findings are what there is to say of what was read.
func findings(queues []queueView, fleet panel[fleetView], more func(*ops.Facts)) []ops.Finding {
	f := ops.Facts{Fleet: asked(fleet, fleet.Data.Fleet), Queues: ops.Reading[[]ops.QueueFacts]{At: time.Now()}}
	for _, q := range queues {
		f.Queues.Value = append(f.Queues.Value, ops.QueueFacts{Info: q.Info, Stats: asked(q.Stats, q.Stats.Data), Parked: q.Parked})
	}
	if more != nil {
		more(&f)
	}
	return f.Findings(time.Now())
}

// judge notes what is found of each queue.
func judge(queues []queueView, found []ops.Finding) {
	for i := range queues {
		q := &queues[i]
		is := func(kind string) bool {
			return slices.ContainsFunc(found, func(f ops.Finding) bool { return f.Kind == kind && f.Subject == q.Name })
		}
		q.Unworked, q.Behind = is("no_worker"), is("late")
	}
}

// areas says of each area whether it needs a person. What is not up to date is not known.
func areas(found []ops.Finding, queues []queueView, fleet panel[fleetView], servers panel[[]ops.Server]) []area {
	all := []area{
		{Name: "Flow", Ask: "does parked work get done?", Fine: flow(queues)},
		{Name: "Exclusion", Ask: "has one holder been one holder?", Fine: count(int64(fleet.Data.Held), "lease is", "leases are") + " held, and none was lost lately."},
		{Name: "Redis", Ask: "can it be relied on?", Fine: load(servers.Data)},
		{Name: "Processes", Ask: "are all there, and alike?", Fine: count(int64(len(fleet.Data.Processes)), "process", "processes") + " of one version."},
	}
	for i, which := range []ops.Area{ops.AreaFlow, ops.AreaExclusion, ops.AreaRedis, ops.AreaFleet} {
		a := &all[i]
		for _, f := range found { // the gravest comes first
			if f.Area == which {
				a.Findings = append(a.Findings, f)
			}
		}
		if len(a.Findings) > 0 {
			a.Severity = a.Findings[0].Severity
		} else if which == ops.AreaExclusion && (!fleet.OK() || len(fleet.Data.Processes) == 0) {
			a.Severity, a.Fine = ops.SeverityUnknown, "The list of processes is not known."
		}
	}
	return all
}

func flow(queues []queueView) string {
	parked := int64(0)
	for _, q := range queues {
		parked += q.Stats.Data.Queued + q.Stats.Data.Running
	}
	if len(queues) == 0 {
		return "There is no queue."
	}
	return count(parked, "message is queued or running", "messages are queued or running") + ", and none is late."
}

func load(servers []ops.Server) string {
	var clients, perSecond int64
	took := time.Duration(0)
	for _, s := range servers {
		v := serverOf(s)
		clients, perSecond, took = clients+v.Clients, perSecond+v.OpsPerSecond, max(took, v.Took)
	}
	return fmt.Sprintf("%s operations a second, %s clients. An answer takes %s.", num(perSecond), num(clients), dur(took))
}

// findingLink is the page that shows what was found; empty: none does.
func findingLink(f ops.Finding) string {
	switch {
	case f.Area == ops.AreaExclusion || f.Kind == "shed":
		return "keys"
	case f.Area == ops.AreaFleet:
		return "processes"
	case f.Kind == "dead":
		return "dead"
	case f.Area == ops.AreaFlow && f.Subject == "":
		return "queues"
	case f.Area == ops.AreaFlow:
		return link("queue", "queue", f.Subject)
	}
	return ""
}

// evidence is a finding's, but for the keys, which have links, and what is as it should be.
func evidence(f ops.Finding) []ops.Evidence {
	return slices.DeleteFunc(slices.Clone(f.Evidence), func(e ops.Evidence) bool { return e.Figure == ops.EvidenceKeys || e.Is == e.Want })
}
