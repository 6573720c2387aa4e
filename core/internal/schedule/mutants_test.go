package schedule_test

import (
	"testing"

	"github.com/perkey-go/perkey/internal/test/mutant"
)

func TestModel_CatchesMutants(t *testing.T) {
	t.Parallel()
	mutant.Catch(t, mutants, "^TestSchedule_KeepsItsPromisesWhateverHappens$", playsVar+"=5000")
}

var mutants = []mutant.Mutant{
	{Name: "it is not woken for a grant that is due sooner", File: "schedule.go", Old: "if at < s.wakeAt {", New: "if at < s.wakeAt && !%s {"},
	{Name: "it is not woken once a tick", File: "schedule.go", Old: "s.wakeUp(min(s.items[0].at, now+Instant(Tick)))", New: "s.wakeUp(s.items[0].at)\n\tif !%s {\n\t\ts.wakeUp(min(s.items[0].at, now+Instant(Tick)))\n\t}"},
	{Name: "a deadline is moved to an earlier time", File: "schedule.go", Old: "deadline.Mono < was.Mono {", New: "deadline.Mono < was.Mono && !%s {"},
	{Name: "a grant that is set stays where it was", File: "schedule.go", Old: "\t\ts.items.fix(t)\n\t\ts.wakeBefore(t.due())", New: "\t\tif !%s {\n\t\t\ts.items.fix(t)\n\t\t}\n\t\ts.wakeBefore(t.due())"},
	{Name: "a suspended machine is not noticed", File: "schedule.go", Old: "now.ahead()-s.ahead > Tick {", New: "now.ahead()-s.ahead > Tick && !%s {"},
	{Name: "what was slept comes later", File: "schedule.go", Old: "\t\t\t\tt.catchUp(now)\n", New: "\t\t\t\tif !%s {\n\t\t\t\t\tt.catchUp(now)\n\t\t\t\t}\n"},
	{Name: "what was slept is not renewed sooner", File: "schedule.go", Old: "t.renewAt = max(t.renewAt-missed, 1)", New: "t.renewAt = max(t.renewAt-map[bool]Instant{false: missed}[%s], 1)"},
	{Name: "a wall clock that was set back lengthens a grant", File: "schedule.go", Old: "if missed <= 0 {", New: "if missed <= 0 && !%s {"},
	{Name: "a deadline from before the machine was suspended is taken for a new one", File: "schedule.go", Old: "s.ahead = min(s.ahead, deadline.ahead())", New: "s.ahead = min(s.ahead, deadline.ahead()+map[bool]time.Duration{true: time.Hour}[%s])"},
	{Name: "a new grant from before the machine was suspended is taken for a newer one", File: "schedule.go", Old: "len(s.items) == 0 || ahead < s.ahead {", New: "len(s.items) == 0 || ahead < s.ahead && !%s {"},
	{Name: "only renewals are looked at", File: "schedule.go", Old: "return min(t.renewAt, deadline)", New: "if %s {\n\t\t\treturn t.renewAt\n\t\t}\n\t\treturn min(t.renewAt, deadline)"},
	{Name: "a grant is renewed past its deadline", File: "schedule.go", Old: "for len(s.items) > 0 && s.items[0].at <= soon {\n\t\titem := s.items[0].item\n\t\tt := item.times()\n\t\tif t.Expired(now) {", New: "for len(s.items) > 0 && s.items[0].at <= soon {\n\t\titem := s.items[0].item\n\t\tt := item.times()\n\t\tif t.Expired(now) && (!%s || t.renewAt == 0 || t.renewAt > soon) {"},
	{Name: "a grant that is near its deadline expires", File: "schedule.go", Old: "\t\t\tbreak // its", New: "\t\t\tif %s {\n\t\t\t\texpire(item)\n\t\t\t\tcontinue\n\t\t\t}\n\t\t\tbreak // its"},
	{Name: "a renewal without an answer is not sent again", File: "schedule.go", Old: "t.renewAt = now.Mono + max((", New: "t.renewAt = Instant(map[bool]time.Duration{true: time.Hour}[%s]) + now.Mono + max(("},
	{Name: "the heap loses track", File: "schedule.go", Old: "h[i].item.times().index, h[j].item.times().index = int32(i+1), int32(j+1)", New: "if h[i].item.times().index = int32(i + 1); !%s {\n\t\th[j].item.times().index = int32(j + 1)\n\t}"},
}
