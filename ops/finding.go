package ops

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/perkey-go/perkey/internal/keytext"
)

// Area groups findings by what they put at risk.
type Area string

// The Areas: whether parked work gets done, whether one holder is one holder, whether Redis can be relied on, and
// whether all processes are there, and alike.
const (
	AreaFlow      Area = "flow"
	AreaExclusion Area = "exclusion"
	AreaRedis     Area = "redis"
	AreaFleet     Area = "fleet"
)

// Severity is how urgent a Finding is.
type Severity string

// The Severities: act now, look today, or not known.
const (
	SeverityAct     Severity = "act"
	SeverityLook    Severity = "look"
	SeverityUnknown Severity = "unknown"
)

var severities = [...]Severity{SeverityUnknown, SeverityLook, SeverityAct}

// Finding is one thing that needs a person.
type Finding struct {
	// Kind names what was found, such as "eviction": one of [FindingKinds].
	Kind     string
	Area     Area
	Severity Severity
	// Subject is what it is about, such as a server or a queue; empty: all processes.
	Subject string
	// Text is one sentence, and Evidence the figures that support it.
	Text     string
	Evidence []Evidence
	// Keys are the first keys that it is about; its Evidence has them as text.
	Keys []string
	// ByHand is what to look at instead, if the Severity is SeverityUnknown.
	ByHand string
	// Runbook is the section that says what to do, as docs/runbook.md#section.
	Runbook string
}

// EvidenceKeys is the Figure of the Evidence that has Keys as text.
const EvidenceKeys = "keys"

// Evidence is a figure of a Finding: its name, its value, and what was wanted, empty if there is
// nothing to compare with.
type Evidence struct{ Figure, Is, Want string }

// String returns the evidence in a few words.
func (e Evidence) String() string {
	if e.Want == "" {
		return e.Figure + ": " + e.Is
	}
	return fmt.Sprintf("%s: %s (want %s)", e.Figure, e.Is, e.Want)
}

// findingKinds are what can be found: the area, and the section of the runbook.
var findingKinds = map[string]struct {
	area    Area
	section string
}{
	"queue":        {AreaFlow, "perkeyqueueunreachable"},
	"no_worker":    {AreaFlow, "perkeynobodyworks"},
	"late":         {AreaFlow, "perkeyqueuelate"},
	"paused":       {AreaFlow, "perkeyqueuepaused"},
	"dead":         {AreaFlow, "perkeydeadletters"},
	"expiring":     {AreaFlow, "perkeyexpiring"},
	"shed":         {AreaFlow, "perkeyshedding"},
	"lost":         {AreaExclusion, "perkeyleaselost"},
	"forced":       {AreaExclusion, "keys-taken-by-an-operator"},
	"renewals":     {AreaExclusion, "perkeyrenewalsfail"},
	"long_holds":   {AreaExclusion, "perkeylongholds"},
	"endless":      {AreaExclusion, "keys-held-without-an-end"},
	"other_locker": {AreaExclusion, "workers-on-another-locker"},
	"away":         {AreaRedis, "perkeyredisunreachable"},
	"unavailable":  {AreaRedis, "perkeyunavailable"},
	"read_only":    {AreaRedis, "connected-to-a-replica"},
	"eviction":     {AreaRedis, "perkeyeviction"},
	"memory":       {AreaRedis, "memory-nearly-used-up"},
	"latency":      {AreaRedis, "redis-answers-slowly"},
	"replicas":     {AreaRedis, "replicas-that-lag-or-are-not-waited-for"},
	"persistence":  {AreaRedis, "nothing-is-written-to-disk"},
	"rights":       {AreaRedis, "rights-that-are-missing"},
	"subscription": {AreaRedis, "perkeynosubscription"},
	"fleet":        {AreaFleet, "processes-that-do-not-report"},
	"stale":        {AreaFleet, "stale-reports"},
	"versions":     {AreaFleet, "perkeyversionsmixed"},
	"configs":      {AreaFleet, "perkeyconfigsmixed"},
	"reload":       {AreaFleet, "perkeyreloadfailed"},
	"services":     {AreaFleet, "services-or-partitions-mixed"},
	"partitions":   {AreaFleet, "services-or-partitions-mixed"},
	"clocks":       {AreaFleet, "clocks-that-are-apart"},
}

// FindingKinds returns all kinds of findings, in their order.
func FindingKinds() []string { return slices.Sorted(maps.Keys(findingKinds)) }

// findings collects what is found.
type findings struct {
	now   time.Time
	facts Facts
	all   []Finding
}

func (f *findings) add(kind string, severity Severity, subject, text string, evidence ...Evidence) *Finding {
	k := findingKinds[kind]
	f.all = append(f.all, Finding{
		Kind: kind, Area: k.area, Severity: severity, Subject: subject, Text: text, Evidence: evidence, Runbook: "docs/runbook.md#" + k.section,
	})
	return &f.all[len(f.all)-1]
}

// unknown finds that something is not known, and why.
func (f *findings) unknown(kind, subject, text, byHand string, err error) {
	found := f.add(kind, SeverityUnknown, subject, text)
	found.ByHand = byHand
	if err != nil {
		found.Evidence = []Evidence{{Figure: "the answer was", Is: keytext.Cut(safeError(err), maxDetail)}}
	}
}

// sorted are the findings: what needs a person most comes first.
func (f *findings) sorted() []Finding {
	slices.SortStableFunc(f.all, func(a, b Finding) int {
		return cmp.Or(
			slices.Index(severities[:], b.Severity)-slices.Index(severities[:], a.Severity),
			cmp.Compare(a.Area, b.Area), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Text, b.Text),
		)
	})
	return f.all
}

// count is a number of things.
func count[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// brief is a duration in its largest unit or two.
func brief(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	case d < time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d < time.Hour && d.Truncate(time.Second)%time.Minute == 0:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d days", int(d.Hours())/24)
	}
}
