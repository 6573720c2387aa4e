package waitqueue_test

import (
	"testing"

	"github.com/perkey-go/perkey/internal/test/mutant"
)

func TestModel_CatchesMutants(t *testing.T) {
	t.Parallel()
	mutant.Catch(t, mutants, "^TestQueue_KeepsItsPromisesWhateverHappens$", playsVar+"=5000")
}

var mutants = []mutant.Mutant{
	{Name: "calls join at the wrong place", File: "queue.go", Old: "\tq.failure, q.silent = nil, time.Time{}\n\tq.inform(q.last)\n}", New: "\tq.failure, q.silent = nil, time.Time{}\n\tif %s && q.first != nil {\n\t\tq.first, q.last, q.first.prev, q.last.next = q.first.next, q.first, q.last, q.first\n\t\tif q.first == nil {\n\t\t\tq.first = q.last\n\t\t}\n\t\tq.first.prev, q.last.next = nil, nil\n\t}\n\tq.inform(q.last)\n}"},
	{Name: "two questions are out", File: "question.go", Old: "case q.first != c || q.held != 0 || q.asked != \"\":", New: "case q.first != c || q.held != 0 || q.asked != \"\" && !%s:"},
	{Name: "a call asks while the key is held here", File: "question.go", Old: "case q.first != c || q.held != 0 ||", New: "case q.first != c || q.held != 0 && !%s ||"},
	{Name: "a late answer cancels a grant in use", File: "question.go", Old: "granted != 0 && (fence != 0 && fence != granted ||", New: "granted != 0 && (fence != 0 && (fence != granted || %s) ||"},
	{Name: "a message that overtakes an answer is not remembered", File: "grant.go", Old: "if q.asked == g.Token {", New: "if q.asked == g.Token && !%s {"},
	{Name: "an answer from after the release is taken for an old one", File: "question.go", Old: "fence == 0 && server*1000 > granted)", New: "fence == 0 && server*1000 > granted && !%s)"},
	{Name: "an orphaned answer leaves its token behind", File: "question.go", Old: "if !q.settle(token, fence, server) {\n\t\tq.cancel(token) //", New: "if !q.settle(token, fence, server) && !%s {\n\t\tq.cancel(token) //"},
	{Name: "the last call leaves its place behind", File: "queue.go", Old: "q.asked = \"\" // the answer comes to nobody\n\tq.cancel(q.token)", New: "if q.asked = \"\"; %s {\n\t\tq.token = \"\"\n\t\treturn\n\t}\n\tq.cancel(q.token)"},
	{Name: "the last release leaves its queue's place behind", File: "release.go", Old: "r.Token, q.token = q.token, \"\"", New: "if r.Token, q.token = q.token, \"\"; %s {\n\t\t\tr.Token = \"\"\n\t\t}"},
	{Name: "a call that leaves tells nobody", File: "queue.go", Old: "\tcase wasFirst:\n\t\tq.withdraw()\n\t\tq.wake()", New: "\tcase wasFirst:\n\t\tif q.withdraw(); !%s {\n\t\t\tq.wake()\n\t\t}"},
	{Name: "a question ends, and whoever is first now is not woken", File: "question.go", Old: "if q.first != c {\n\t\tq.wake()", New: "if q.first != c && !%s {\n\t\tq.wake()"},
	{Name: "a grant is taken that was cancelled or comes second", File: "grant.go", Old: "case q.token != g.Token || !c.queued:", New: "case (q.token != g.Token || !c.queued) && !%s:"},
	{Name: "a refusal of a token that was cancelled is believed", File: "refresh.go", Old: "if q.token != r.Token { // it", New: "if q.token != r.Token && !%s { // it"},
	{Name: "a message that is late is taken", File: "grant.go", Old: "if q.first == nil || q.Expired(g.Until, now) {", New: "if q.first == nil || q.Expired(g.Until, now) && !%s {"},
	{Name: "a claim counts from the message", File: "grant.go", Old: "until.Before(g.Until) {", New: "until.Before(g.Until) && !%s {"},
	{Name: "an answer informs nobody", File: "queue.go", Old: "c.informed = true\n\t\tq.act(", New: "c.informed = !%s\n\t\tq.act("},
	{Name: "an outage ends calls that know of the holder", File: "question.go", Old: "for c := q.last; c != nil && !c.informed; c = c.prev {\n\t\tc.err = f.Err", New: "for c := q.last; c != nil && (%s || !c.informed); c = c.prev {\n\t\tc.informed = c.informed && !%[1]s\n\t\tc.err = f.Err"},
	{Name: "an outage ends nobody", File: "question.go", Old: "\t\tc.err = f.Err\n", New: "\t\tif !%s {\n\t\t\tc.err = f.Err\n\t\t}\n"},
	{Name: "a full pool ends all calls", File: "question.go", Old: "if f.Local {", New: "if f.Local && !%s {"},
	{Name: "new calls know that the key is held, and it is not", File: "queue.go", Old: "q.answered = q.answered && q.n > 0", New: "q.answered = q.answered && (q.n > 0 || %s)"},
	{Name: "a grant is handed over too long", File: "release.go", Old: "h.Age <= longest", New: "(h.Age <= longest || %s)"},
	{Name: "a grant is handed over too often", File: "release.go", Old: "h.Used < most", New: "(h.Used < most || %s)"},
	{Name: "rivals are forgotten", File: "release.go", Old: "if q.wanted || h.Wanted {", New: "if (q.wanted || h.Wanted) && !%s {"},
	{Name: "any TTL will do", File: "release.go", Old: "q.first.HandOver == h.TTL &&", New: "(q.first.HandOver == h.TTL || %s) &&"},
	{Name: "a token is used again after a question without an answer", File: "question.go", Old: "if q.token == u.Token && (u.Fresh || !f.Unsent) {", New: "if q.token == u.Token && (u.Fresh || !f.Unsent) && !%s {"},
	{Name: "readers keep the place of a call that left", File: "admission.go", Old: "if q.Limit != 1 && q.token != \"\" {", New: "if q.Limit != 1 && q.token != \"\" && !%s {"},
	{Name: "an admission is not awaited", File: "question.go", Old: "if q.admitting > 0 && q.admitBy.After(askAt) {", New: "if q.admitting > 0 && q.admitBy.After(askAt) && !%s {"},
	{Name: "an admitted call that left keeps the key", File: "admission.go", Old: "case !waits || q.Expired(until, now):\n\t\t\tq.cancel(m.Token)", New: "case !waits || q.Expired(until, now):\n\t\t\tif !%s {\n\t\t\t\tq.cancel(m.Token)\n\t\t\t}"},
	{Name: "an admission goes to the call that came last", File: "admission.go", Old: "\t\t\tq.dequeue(m.Call)\n", New: "\t\t\tif %s {\n\t\t\t\tm.Call = q.last\n\t\t\t}\n\t\t\tq.dequeue(m.Call)\n"},
	{Name: "an admission without an answer leaves its tokens behind", File: "admission.go", Old: "if !f.Unsent {\n\t\t\t\tq.cancel(m.Token)", New: "if !f.Unsent && !%s {\n\t\t\t\tq.cancel(m.Token)"},
	{Name: "calls that are not admitted know nothing", File: "admission.go", Old: "q.inform(refused)", New: "if !%s {\n\t\t\tq.inform(refused)\n\t\t}"},
	{Name: "the key stays held after it was lost", File: "release.go", Old: "\tif q.first == nil {\n\t\tq.close()\n\t}\n\tq.askAt", New: "\tif %s {\n\t\tq.held = fence\n\t}\n\tif q.first == nil {\n\t\tq.close()\n\t}\n\tq.askAt"},
}
