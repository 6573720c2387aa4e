package schedule_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// brokenVar names what is broken in a test binary that has all mutants.
const brokenVar = "PERKEY_TEST_BROKEN"

// mutant is a broken piece of the schedule, which the model has to catch.
type mutant struct {
	name     string
	old, new string // old stands in schedule.go exactly once; %s in new is the switch
}

var mutants = []mutant{
	{"it is not woken for a grant that is due sooner", "if at < s.wakeAt {", "if at < s.wakeAt && !%s {"},
	{"it is not woken once a tick", "s.wakeUp(min(s.items[0].at, now.Mono+Instant(Tick)))", "s.wakeUp(s.items[0].at)\n\tif !%s {\n\t\ts.wakeUp(min(s.items[0].at, now.Mono+Instant(Tick)))\n\t}"},
	{"a deadline is moved to an earlier time", "deadline.Mono < was.Mono {", "deadline.Mono < was.Mono && !%s {"},
	{"a grant that is set stays where it was", "\t\ts.items.fix(t)\n\t\ts.wakeBefore(t.due())", "\t\tif !%s {\n\t\t\ts.items.fix(t)\n\t\t}\n\t\ts.wakeBefore(t.due())"},
	{"a suspended machine is not noticed", "now.ahead()-s.ahead > Tick {", "now.ahead()-s.ahead > Tick && !%s {"},
	{"what was slept comes later", "\t\t\t\tt.catchUp(now)\n", "\t\t\t\tif !%s {\n\t\t\t\t\tt.catchUp(now)\n\t\t\t\t}\n"},
	{"what was slept is not renewed sooner", "t.renewAt = max(t.renewAt-missed, 1)", "t.renewAt = max(t.renewAt-map[bool]Instant{false: missed}[%s], 1)"},
	{"a wall clock that was set back lengthens a grant", "if missed <= 0 {", "if missed <= 0 && !%s {"},
	{"a deadline from before the machine was suspended is taken for a new one", "s.ahead = min(s.ahead, deadline.ahead())", "s.ahead = min(s.ahead, deadline.ahead()+map[bool]time.Duration{true: time.Hour}[%s])"},
	{"a new grant from before the machine was suspended is taken for a newer one", "len(s.items) == 0 || ahead < s.ahead {", "len(s.items) == 0 || ahead < s.ahead && !%s {"},
	{"only renewals are looked at", "return min(t.renewAt, deadline)", "if %s {\n\t\t\treturn t.renewAt\n\t\t}\n\t\treturn min(t.renewAt, deadline)"},
	{"a grant is renewed past its deadline", "for len(s.items) > 0 && s.items[0].at <= soon {\n\t\titem := s.items[0].item\n\t\tt := item.times()\n\t\tif t.Expired(now) {", "for len(s.items) > 0 && s.items[0].at <= soon {\n\t\titem := s.items[0].item\n\t\tt := item.times()\n\t\tif t.Expired(now) && (!%s || t.renewAt == 0 || t.renewAt > soon) {"},
	{"a grant that is near its deadline expires", "\t\t\tbreak // its", "\t\t\tif %s {\n\t\t\t\texpire(item)\n\t\t\t\tcontinue\n\t\t\t}\n\t\t\tbreak // its"},
	{"a renewal without an answer is not sent again", "t.renewAt = now.Mono + max((", "t.renewAt = Instant(map[bool]time.Duration{true: time.Hour}[%s]) + now.Mono + max(("},
	{"the heap loses track", "h[i].item.times().index, h[j].item.times().index = int32(i+1), int32(j+1)", "if h[i].item.times().index = int32(i + 1); !%s {\n\t\th[j].item.times().index = int32(j + 1)\n\t}"},
}

func TestModel_CatchesMutants(t *testing.T) {
	if os.Getenv(brokenVar) != "" {
		t.Skip("this is a mutant")
	}
	t.Parallel()
	binary := buildMutants(t)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(binary, "-test.run", "^TestSchedule_KeepsItsPromisesWhateverHappens$", "-test.timeout", "2m")
			cmd.Env = append(os.Environ(), brokenVar+"="+m.name, playsVar+"=5000")
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "the model sees nothing")
			verdict := strings.Join(strings.SplitN(string(out), "\n", 3)[:2], "\n")
			t.Logf("%s", verdict)
		})
	}
}

// buildMutants builds this test with all mutants, each behind a switch.
func buildMutants(t *testing.T) (binary string) {
	t.Helper()
	dir := t.TempDir()
	content, err := os.ReadFile("schedule.go")
	require.NoError(t, err)
	source := string(content) + fmt.Sprintf("\nvar broken = os.Getenv(%q)\n", brokenVar)
	source = strings.Replace(source, "import (\n", "import (\n\t\"os\"\n", 1)
	for _, m := range mutants {
		require.Equal(t, 1, strings.Count(source, m.old), "schedule.go has once: %s", m.old)
		source = strings.Replace(source, m.old, fmt.Sprintf(m.new, fmt.Sprintf("(broken == %q)", m.name)), 1)
	}
	original, err := filepath.Abs("schedule.go")
	require.NoError(t, err)
	changed := filepath.Join(dir, "schedule.go")
	require.NoError(t, os.WriteFile(changed, []byte(source), 0o600))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	binary = filepath.Join(dir, "mutants")
	out, err := exec.Command("go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}
