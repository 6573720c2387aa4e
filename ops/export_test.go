package ops

import (
	"strings"
	"time"

	"github.com/perkey-go/perkey/delayqueue"
)

// What a Recorder knows of kinds.
var (
	Outcomes     = outcomes[:]
	LossKinds    = lossKinds[:]
	EnqueueKinds = enqueueKinds[:]
	SettleKinds  = settleKinds[:]
	RequestKinds = requestKinds[:]
	RecordKinds  = recordKinds[:]
	TaskKinds    = taskKinds[:]
	ReloadKinds  = reloadKinds[:]
)

const SketchSize = sketchSize

// Sketch is a sketch of its own.
type Sketch struct{ s sketch }

func (s *Sketch) Add(now time.Time, key string, weight float64) { s.s.add(now, key, weight) }
func (s *Sketch) Top(now time.Time) []HotKey                    { return s.s.top(now) }

// Watches is how many watches a process knows of.
func (r *Recorder) Watches() int {
	if w := r.watched.Load(); w != nil {
		return len(w.watches)
	}
	return 0
}

// Endless sets the keys whose records have no expiry, or why that is not known.
func (f *Facts) Endless(at time.Time, err error, keys ...string) {
	f.endless = Reading[[]string]{at, keys, err}
}

// ID is that of the watch in Redis.
func (w *Watcher) ID() string { return w.watch.id }

// RunbookOf is where the runbook has a kind of finding.
func RunbookOf(kind string) string {
	var f findings
	return f.add(kind, SeverityLook, "", "").Runbook
}

// NeededRights are the rights that services need, by their use.
func NeededRights() map[string][]string {
	all := map[string][]string{}
	for _, n := range needed {
		all[n.use] = strings.Fields(n.rights)
	}
	return all
}

// Lacks are the rights that a user lacks, by what ACL GETUSER and ACL CAT say.
func Lacks(prefix string, getuser any, categories map[string][]string) (map[string][]string, error) {
	u := aclUser{categories: categories}
	err := u.parse(getuser)
	return u.missing(prefix), err
}

// Check is what a change of messages is refused for, by their number.
func (m *Messages) Check(state delayqueue.State, counted int64, exact bool) error {
	return m.check(state, counted, exact)
}

// Scripts are the sources, by name.
func Scripts() map[string]string {
	return map[string]string{
		"beacon": beaconScript.Source(), "withdraw": withdrawScript.Source(), "fleet": fleetScript.Source(), "watch": watchScript.Source(),
	}
}
