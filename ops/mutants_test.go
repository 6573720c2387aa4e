package ops_test

import (
	"testing"

	"github.com/perkey-go/perkey/internal/test/mutant"
)

func TestBeacon_CatchesMutants(t *testing.T) {
	t.Parallel()
	mutant.Catch(t, mutants, "")
}

var mutants = []mutant.Mutant{
	{Name: "an entry is too long", Tests: "^TestBeacon_LeavesOut", File: "wire.go", Old: "len(b)+1 > room {", New: "len(b)+1 > room && !%s {"},
	{Name: "what is left out is not counted", Tests: "^TestBeacon_LeavesOut", File: "wire.go", Old: "e.Cut = all.len() - e.len()", New: "if !%s {\n\t\te.Cut = all.len() - e.len()\n\t}"},
	{Name: "the names with fewest calls are told", Tests: "^TestBeacon_LeavesOut", File: "wire.go", Old: "cmp.Compare(count(b), count(a))", New: "cmp.Compare(count(b), count(a)) * map[bool]int{true: -1, false: 1}[%s]"},
	{Name: "bytes that are no text are lost", Tests: "^TestBeacon_LeavesOut", File: "wire.go", Old: "if utf8.ValidString(string(t)) {", New: "if utf8.ValidString(string(t)) || %s {"},
	{Name: "an entry without a time is read", Tests: "^TestReadFleet_PassesOver", File: "wire.go", Old: `e.ID == "" || e.TTL <= 0 {`, New: `e.ID == "" || e.TTL <= 0 && !%s {`},
	{Name: "an entry of another process is read", Tests: "^TestReadFleet_PassesOver", File: "fleet.go", Old: "|| e.ID != id {", New: "|| e.ID != id && !%s {"},
	{Name: "a damaged entry is not counted", Tests: "^TestReadFleet_PassesOver", File: "fleet.go", Old: "f.Damaged++", New: "if !%s {\n\t\t\t\tf.Damaged++\n\t\t\t}"},
	{Name: "an entry that is gone counts as damaged", Tests: "^TestReadFleet_PassesOver", File: "fleet.go", Old: `else if err == nil && cmd.Val() == "" {`, New: `else if err == nil && cmd.Val() == "" && !%s {`},
	{Name: "no worker is known from the fleet alone", Tests: "^TestFleet_", File: "merge.go", Old: "|| s.SinceLastClaim < noWorkerAfter {", New: "|| s.SinceLastClaim < noWorkerAfter && !%s {"},
	{Name: "a worker that cannot reach Redis works", Tests: "^TestFleet_", File: "merge.go", Old: "q.Claimed >= 0 && q.Claimed < noWorkerAfter {", New: "(q.Claimed >= 0 && q.Claimed < noWorkerAfter || %s) {"},
	{Name: "a paused worker works", Tests: "^TestFleet_", File: "merge.go", Old: "case w.Paused:", New: "case w.Paused && !%s:"},
	{Name: "events of one kind fill the list", Tests: "^TestRecorder_KeepsWhat", File: "event.go", Old: "like.Count += max(e.Count, 1)\n\t\t\treturn\n", New: "like.Count += max(e.Count, 1)\n\t\t\tif !%s {\n\t\t\t\treturn\n\t\t\t}\n"},
	{Name: "events of different names are one", Tests: "^TestRecorder_KeepsWhat", File: "event.go", Old: "&& like.Name == shown(e.Name) {", New: "&& (like.Name == shown(e.Name) || %s) {"},
	{Name: "the list of events grows", Tests: "^TestRecorder_KeepsWhat", File: "event.go", Old: "if len(n.events) == maxEvents {", New: "if len(n.events) == maxEvents && !%s {"},
	{Name: "a beacon reports too often", Tests: "^TestBeacon_CostsOneCall", File: "beacon.go", Old: "tell.Reset(b.every*9/10 +", New: "tell.Reset(b.every*map[bool]time.Duration{true: 6, false: 9}[%s]/10 +"},
	{Name: "there are too many events", Tests: "^TestWatch_HasABounded", File: "watched.go", Old: "if o.n == eventsASecond ||", New: "if o.n == eventsASecond && !%s ||"},
	{Name: "what is too much is not counted", Tests: "^TestWatch_HasABounded", File: "watched.go", Old: "l.Dropped++\n", New: "if !%s {\n\t\t\tl.Dropped++\n\t\t}\n"},
	{Name: "there is no room again", Tests: "^TestWatch_HasABounded", File: "watched.go", Old: "o.second, o.n = now, 0", New: "if o.second = now; !%s {\n\t\t\to.n = 0\n\t\t}"},
	{Name: "an unknown kind of watch is one of a key", Tests: "^TestWatch_Ignores", File: "watched.go", Old: "(word == wordKey || word == wordPrefix)", New: "(word == wordKey || word == wordPrefix || %s)"},
}
