package waitqueue_test

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

// mutant is a broken piece of the queue, which the model has to catch.
type mutant struct {
	name     string
	old, new string // old stands in queue.go exactly once; %s in new is the switch
}

var mutants = []mutant{
	{"calls join at the wrong place", "\tq.failure, q.silent = nil, time.Time{}\n\tq.inform(q.last)\n}", "\tq.failure, q.silent = nil, time.Time{}\n\tif %s && q.first != nil {\n\t\tq.first, q.last, q.first.prev, q.last.next = q.first.next, q.first, q.last, q.first\n\t\tif q.first == nil {\n\t\t\tq.first = q.last\n\t\t}\n\t\tq.first.prev, q.last.next = nil, nil\n\t}\n\tq.inform(q.last)\n}"},
	{"two questions are out", "case q.first != c || q.held != 0 || q.asked != \"\":", "case q.first != c || q.held != 0 || q.asked != \"\" && !%s:"},
	{"a call asks while the key is held here", "case q.first != c || q.held != 0 ||", "case q.first != c || q.held != 0 && !%s ||"},
	{"a late answer cancels a grant in use", "granted != 0 && (fence != 0 && fence != granted ||", "granted != 0 && (fence != 0 && (fence != granted || %s) ||"},
	{"a message that overtakes an answer is not remembered", "if q.asked == g.Token {", "if q.asked == g.Token && !%s {"},
	{"an answer from after the release is taken for an old one", "fence == 0 && server*1000 > granted)", "fence == 0 && server*1000 > granted && !%s)"},
	{"an orphaned answer leaves its token behind", "if !q.settle(token, fence, server) {\n\t\tq.cancel(token) //", "if !q.settle(token, fence, server) && !%s {\n\t\tq.cancel(token) //"},
	{"the last call leaves its place behind", "q.asked = \"\" // the answer comes to nobody\n\tq.cancel(q.token)", "if q.asked = \"\"; %s {\n\t\tq.token = \"\"\n\t\treturn\n\t}\n\tq.cancel(q.token)"},
	{"the last release leaves its queue's place behind", "r.Token, q.token = q.token, \"\"", "if r.Token, q.token = q.token, \"\"; %s {\n\t\t\tr.Token = \"\"\n\t\t}"},
	{"a call that leaves tells nobody", "\tcase wasFirst:\n\t\tq.withdraw()\n\t\tq.wake()", "\tcase wasFirst:\n\t\tif q.withdraw(); !%s {\n\t\t\tq.wake()\n\t\t}"},
	{"a question ends, and whoever is first now is not woken", "if q.first != c {\n\t\tq.wake()", "if q.first != c && !%s {\n\t\tq.wake()"},
	{"a grant is taken that was cancelled or comes second", "case q.token != g.Token || !c.queued:", "case (q.token != g.Token || !c.queued) && !%s:"},
	{"a refusal of a token that was cancelled is believed", "if q.token != r.Token { // it", "if q.token != r.Token && !%s { // it"},
	{"a message that is late is taken", "if q.first == nil || q.Expired(g.Until, now) {", "if q.first == nil || q.Expired(g.Until, now) && !%s {"},
	{"a claim counts from the message", "until.Before(g.Until) {", "until.Before(g.Until) && !%s {"},
	{"an answer informs nobody", "c.informed = true\n\t\tq.act(", "c.informed = !%s\n\t\tq.act("},
	{"an outage ends calls that know of the holder", "for c := q.last; c != nil && !c.informed; c = c.prev {\n\t\tc.err = f.Err", "for c := q.last; c != nil && (%s || !c.informed); c = c.prev {\n\t\tc.informed = c.informed && !%[1]s\n\t\tc.err = f.Err"},
	{"an outage ends nobody", "\t\tc.err = f.Err\n", "\t\tif !%s {\n\t\t\tc.err = f.Err\n\t\t}\n"},
	{"a full pool ends all calls", "if f.Local {", "if f.Local && !%s {"},
	{"new calls know that the key is held, and it is not", "q.answered = q.answered && q.n > 0", "q.answered = q.answered && (q.n > 0 || %s)"},
	{"a grant is handed over too long", "h.Age <= longest", "(h.Age <= longest || %s)"},
	{"a grant is handed over too often", "h.Used < most", "(h.Used < most || %s)"},
	{"rivals are forgotten", "if q.wanted || h.Wanted {", "if (q.wanted || h.Wanted) && !%s {"},
	{"any TTL will do", "q.first.HandOver == h.TTL &&", "(q.first.HandOver == h.TTL || %s) &&"},
	{"a token is used again after a question without an answer", "if q.token == u.Token && (u.Fresh || !f.Unsent) {", "if q.token == u.Token && (u.Fresh || !f.Unsent) && !%s {"},
	{"readers keep the place of a call that left", "if q.Limit != 1 && q.token != \"\" {", "if q.Limit != 1 && q.token != \"\" && !%s {"},
	{"an admission is not awaited", "if q.admitting > 0 && q.admitBy.After(askAt) {", "if q.admitting > 0 && q.admitBy.After(askAt) && !%s {"},
	{"an admitted call that left keeps the key", "case !waits || q.Expired(until, now):\n\t\t\tq.cancel(m.Token)", "case !waits || q.Expired(until, now):\n\t\t\tif !%s {\n\t\t\t\tq.cancel(m.Token)\n\t\t\t}"},
	{"an admission goes to the call that came last", "\t\t\tq.dequeue(m.Call)\n", "\t\t\tif %s {\n\t\t\t\tm.Call = q.last\n\t\t\t}\n\t\t\tq.dequeue(m.Call)\n"},
	{"an admission without an answer leaves its tokens behind", "if !f.Unsent {\n\t\t\t\tq.cancel(m.Token)", "if !f.Unsent && !%s {\n\t\t\t\tq.cancel(m.Token)"},
	{"calls that are not admitted know nothing", "q.inform(refused)", "if !%s {\n\t\t\tq.inform(refused)\n\t\t}"},
	{"the key stays held after it was lost", "\tif q.first == nil {\n\t\tq.close()\n\t}\n\tq.askAt", "\tif %s {\n\t\tq.held = fence\n\t}\n\tif q.first == nil {\n\t\tq.close()\n\t}\n\tq.askAt"},
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
			cmd := exec.Command(binary, "-test.run", "^TestQueue_KeepsItsPromisesWhateverHappens$", "-test.timeout", "2m")
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
	content, err := os.ReadFile("queue.go")
	require.NoError(t, err)
	source := string(content) + fmt.Sprintf("\nvar broken = os.Getenv(%q)\n", brokenVar)
	source = strings.Replace(source, "import (\n", "import (\n\t\"os\"\n", 1)
	for _, m := range mutants {
		require.Equal(t, 1, strings.Count(source, m.old), "queue.go has once: %s", m.old)
		source = strings.Replace(source, m.old, fmt.Sprintf(m.new, fmt.Sprintf("(broken == %q)", m.name)), 1)
	}
	original, err := filepath.Abs("queue.go")
	require.NoError(t, err)
	changed := filepath.Join(dir, "queue.go")
	require.NoError(t, os.WriteFile(changed, []byte(source), 0o600))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	binary = filepath.Join(dir, "mutants")
	out, err := exec.Command("go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}
