package console

import (
	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ops"
)

// What templates take that take one value.
type (
	tab struct {
		Href, Text string
		Here       bool
	}
	pair        struct{ Queue, ID string }
	entriesView struct {
		Queue, State string
		Entries      []delayqueue.Entry
	}
	holderView struct {
		Host    string
		PID     int
		Process *processView
	}
)

func newTab(nav, name, href, text string) tab { return tab{href, text, nav == name} }

func newPair(queue, id string) pair { return pair{queue, id} }

func newEntries(queue, state string, entries []delayqueue.Entry) entriesView {
	return entriesView{queue, state, entries}
}

// newHolder joins a holder or waiter to the process that reports it.
func newHolder(v fleetView, of any) holderView {
	var p core.Participant
	switch of := of.(type) {
	case core.Holder:
		p = of.Participant
	case core.Waiter:
		p = of.Participant
	}
	return holderView{p.Host, p.PID, v.Of(p.Locker)}
}

// bad reports whether an event of this kind needs a person.
func bad(kind string) bool {
	switch kind {
	case "lost", "warning", "refused", string(core.OutcomeShed), string(core.OutcomeUnavailable), string(core.OutcomeError),
		string(delayqueue.OutcomeDead), string(delayqueue.OutcomeExpired), string(delayqueue.EnqueueKeyFull), string(delayqueue.EnqueuePrincipalFull),
		string(delayqueue.EnqueueQueueFull), string(delayqueue.EnqueueTooLarge):
		return true
	}
	return false
}

// badWarning reports whether what is warned of needs a person.
func badWarning(kind string) bool {
	return kind != string(core.WarnEvictionUnknown) && kind != string(core.WarnContext)
}

// silent reports whether a process should have reported again when that was read: nobody can tell what it did since.
func silent(p processView) bool { return p.Age > p.SilentAfter() }

func calls(s ops.LockStats, kind string) int64 { return s.Calls[core.OutcomeKind(kind)] }

// losses are the leases that were lost while work ran under them.
func losses(s ops.LockStats) int64 { return s.Lost[core.LossExpired] + s.Lost[core.LossGone] }

func leasesOf(v fleetView, p *processView) (all []leaseView) {
	for _, l := range v.Leases {
		if l.Process == p {
			all = append(all, l)
		}
	}
	return all
}

func waitsOf(v fleetView, p *processView) (all []waitView) {
	for _, w := range v.Waits {
		if w.Process == p {
			all = append(all, w)
		}
	}
	return all
}

func eventsOf(v fleetView, p *processView) (all []eventView) {
	for _, e := range v.Events {
		if e.Process == p {
			all = append(all, e)
		}
	}
	return all
}
