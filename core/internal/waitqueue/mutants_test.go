package waitqueue_test

import (
	"testing"

	"github.com/perkey-go/perkey/internal/test/mutant"
)

func TestModel_CatchesMutants(t *testing.T) {
	t.Parallel()
	mutant.Catch(t, mutants, "^TestQueue_KeepsItsPromisesWhateverHappens$", playsVar+"=5000")
}

// The model leaves open when a queue asks and refreshes. The table and refresh_test.go say it.
func TestTable_CatchesMutants(t *testing.T) {
	t.Parallel()
	mutant.Catch(t, refreshMutants, "^TestQueue_(DoesWhatTheTableSays|Refreshes|Asks|ARefresh|Knows|Pauses)")
}

// mutants are caught by the model.
var mutants = []mutant.Mutant{
	{Name: "calls join at the wrong place", File: "queue.go", Old: "\tq.failure, q.silent = nil, time.Time{}\n\tq.inform(q.last)\n}", New: "\tq.failure, q.silent = nil, time.Time{}\n\tif %s && q.first != nil {\n\t\tq.first, q.last, q.first.prev, q.last.next = q.first.next, q.first, q.last, q.first\n\t\tif q.first == nil {\n\t\t\tq.first = q.last\n\t\t}\n\t\tq.first.prev, q.last.next = nil, nil\n\t}\n\tq.inform(q.last)\n}"},
	{Name: "two requests are out", File: "request.go", Old: "case q.first != c || q.held != 0 || q.inFlight != \"\":", New: "case q.first != c || q.held != 0 || q.inFlight != \"\" && !%s:"},
	{Name: "a call asks while the key is held here", File: "request.go", Old: "case q.first != c || q.held != 0 ||", New: "case q.first != c || q.held != 0 && !%s ||"},
	{Name: "a late answer cancels a grant in use", File: "request.go", Old: "granted != 0 && (fence != 0 && fence != granted ||", New: "granted != 0 && (fence != 0 && (fence != granted || %s) ||"},
	{Name: "a message that overtakes an answer is not remembered", File: "grant.go", Old: "if q.inFlight == g.Token {", New: "if q.inFlight == g.Token && !%s {"},
	{Name: "an answer from after the release is taken for an old one", File: "request.go", Old: "fence == 0 && latest >= granted)", New: "fence == 0 && latest >= granted && !%s)"},
	{Name: "an answer from before the grant is taken for a new one", File: "request.go", Old: "granted := q.forget(token)\n", New: "granted := q.forget(token)\n\tif %s && latest != 0 {\n\t\tlatest = granted\n\t}\n"},
	{Name: "an answer from after the release is taken for an old one while nobody was granted the key", File: "request.go", Old: "latest >= granted", New: "(latest > granted || !%s && latest == granted)"},
	{Name: "an orphaned answer leaves its token behind", File: "request.go", Old: "if !q.settle(token, fence, latest) {\n\t\tq.cancel(token) //", New: "if !q.settle(token, fence, latest) && !%s {\n\t\tq.cancel(token) //"},
	{Name: "the last call leaves its place behind", File: "queue.go", Old: "q.inFlight = \"\" // no call waits for the reply\n\tq.cancel(q.token)", New: "if q.inFlight = \"\"; %s {\n\t\tq.token = \"\"\n\t\treturn\n\t}\n\tq.cancel(q.token)"},
	{Name: "the last release leaves its queue's place behind", File: "release.go", Old: "r.Token, q.token = q.token, \"\"", New: "if r.Token, q.token = q.token, \"\"; %s {\n\t\t\tr.Token = \"\"\n\t\t}"},
	{Name: "a call that leaves tells nobody", File: "queue.go", Old: "\tcase wasFirst:\n\t\tq.withdraw()\n\t\tq.wake()", New: "\tcase wasFirst:\n\t\tif q.withdraw(); !%s {\n\t\t\tq.wake()\n\t\t}"},
	{Name: "a request ends, and whoever is first now is not woken", File: "request.go", Old: "if q.first != c {\n\t\tq.wake()", New: "if q.first != c && !%s {\n\t\tq.wake()"},
	{Name: "a grant is taken that was cancelled or comes second", File: "grant.go", Old: "case q.token != g.Token || !c.queued:", New: "case (q.token != g.Token || !c.queued) && !%s:"},
	{Name: "a refusal of a token that was cancelled is believed", File: "refresh.go", Old: "if q.token != r.Token { // it", New: "if q.token != r.Token && !%s { // it"},
	{Name: "a message that is late is taken", File: "grant.go", Old: "if q.first == nil || q.Expired(g.Until, now) {", New: "if q.first == nil || q.Expired(g.Until, now) && !%s {"},
	{Name: "a claim counts from the message", File: "grant.go", Old: "until.Before(g.Until) {", New: "until.Before(g.Until) && !%s {"},
	{Name: "an answer informs nobody", File: "queue.go", Old: "c.informed = true\n\t\tq.act(", New: "c.informed = !%s\n\t\tq.act("},
	{Name: "an outage ends calls that know of the holder", File: "request.go", Old: "for c := q.last; c != nil && !c.informed; c = c.prev {\n\t\tc.err = f.Err", New: "for c := q.last; c != nil && (%s || !c.informed); c = c.prev {\n\t\tc.informed = c.informed && !%[1]s\n\t\tc.err = f.Err"},
	{Name: "an outage ends nobody", File: "request.go", Old: "\t\tc.err = f.Err\n", New: "\t\tif !%s {\n\t\t\tc.err = f.Err\n\t\t}\n"},
	{Name: "a full pool ends all calls", File: "request.go", Old: "if f.Local {", New: "if f.Local && !%s {"},
	{Name: "new calls know that the key is held, and it is not", File: "queue.go", Old: "q.answered = q.answered && q.n > 0", New: "q.answered = q.answered && (q.n > 0 || %s)"},
	{Name: "a grant is handed over too long", File: "release.go", Old: "h.Age <= longest", New: "(h.Age <= longest || %s)"},
	{Name: "a grant is handed over too often", File: "release.go", Old: "h.Used < most", New: "(h.Used < most || %s)"},
	{Name: "rivals are forgotten", File: "release.go", Old: "q.wanted || h.Wanted || q.contendedFence", New: "(q.wanted || h.Wanted) && !%s || q.contendedFence"},
	{Name: "a message about rivals is forgotten", File: "release.go", Old: "q.contendedFence >= h.Fence\n", New: "q.contendedFence >= h.Fence && !%s\n"},
	{Name: "any TTL will do", File: "release.go", Old: "q.first.HandOver == h.TTL &&", New: "(q.first.HandOver == h.TTL || %s) &&"},
	{Name: "a token is used again after a request without an answer", File: "request.go", Old: "if q.token == req.Token && (req.Fresh || !f.Unsent) {", New: "if q.token == req.Token && (req.Fresh || !f.Unsent) && !%s {"},
	{Name: "readers keep the place of a call that left", File: "admission.go", Old: "if q.Limit != 1 && q.token != \"\" {", New: "if q.Limit != 1 && q.token != \"\" && !%s {"},
	{Name: "an admission is not awaited", File: "request.go", Old: "if q.admitting > 0 && q.admitBy.After(askAt) {", New: "if q.admitting > 0 && q.admitBy.After(askAt) && !%s {"},
	{Name: "an admitted call that left keeps the key", File: "admission.go", Old: "case !waits || q.Expired(until, now):\n\t\t\tq.cancel(m.Token)", New: "case !waits || q.Expired(until, now):\n\t\t\tif !%s {\n\t\t\t\tq.cancel(m.Token)\n\t\t\t}"},
	{Name: "an admission goes to the call that came last", File: "admission.go", Old: "\t\t\tq.dequeue(m.Call)\n", New: "\t\t\tif %s {\n\t\t\t\tm.Call = q.last\n\t\t\t}\n\t\t\tq.dequeue(m.Call)\n"},
	{Name: "an admission without an answer leaves its tokens behind", File: "admission.go", Old: "if !f.Unsent {\n\t\t\t\tq.cancel(m.Token)", New: "if !f.Unsent && !%s {\n\t\t\t\tq.cancel(m.Token)"},
	{Name: "calls that are not admitted know nothing", File: "admission.go", Old: "q.inform(refused)", New: "if !%s {\n\t\t\tq.inform(refused)\n\t\t}"},
	{Name: "the key stays held after it was lost", File: "release.go", Old: "\tif q.first == nil {\n\t\tq.close()\n\t}\n\tq.askAt", New: "\tif %s {\n\t\tq.held = fence\n\t}\n\tif q.first == nil {\n\t\tq.close()\n\t}\n\tq.askAt"},
	{Name: "a token is never refreshed", File: "request.go", Old: "if !q.refreshAt.IsZero() && q.refreshAt.Before(askAt) {", New: "if !q.refreshAt.IsZero() && q.refreshAt.Before(askAt) && !%s {"},
	{Name: "a refresh is not awaited", File: "request.go", Old: "case q.refreshAt.After(now):\n\t\t\taskAt = q.refreshAt", New: "case q.refreshAt.After(now):\n\t\t\tif !%s {\n\t\t\t\taskAt = q.refreshAt\n\t\t\t}"},
	{Name: "a token is refreshed while no message can arrive", File: "request.go", Old: "!q.Listening():", New: "!q.Listening() && !%s:"},
	{Name: "a token is refreshed again and again", File: "request.go", Old: "v.Refresh, q.refreshAt = q.token, time.Time{}", New: "if v.Refresh = q.token; !%s {\n\t\t\t\tq.refreshAt = time.Time{}\n\t\t\t}"},
	{Name: "a refresh that was not sent fails calls", File: "refresh.go", Old: "!f.Unsent:", New: "(!f.Unsent || %s):"},
	{Name: "a token that waits no more is taken for one that does", File: "refresh.go", Old: "r.Place == 0:", New: "r.Place == 0 && !%s:"},
	{Name: "a token that waits no more is not asked about", File: "refresh.go", Old: "q.askAt = time.Time{}\n\tdefault:", New: "if !%s {\n\t\t\tq.askAt = time.Time{}\n\t\t}\n\tdefault:"},
	{Name: "a refusal says nothing of rivals", File: "refresh.go", Old: "q.wanted = r.Length > min(r.Place, 1)", New: "q.wanted = r.Length > min(r.Place, 1) && !%s"},
	{Name: "queues far back refresh ever more rarely", File: "refresh.go", Old: ", maxPolls)", New: ", map[bool]int{false: maxPolls, true: 1000}[%s])"},
	{Name: "a refresh without an answer ends it", File: "refresh.go", Old: "q.askAt = q.refreshAt.Add(maxPolls * q.Poll)", New: "q.askAt = q.refreshAt.Add(map[bool]time.Duration{false: maxPolls, true: 10000}[%s] * q.Poll)"},
	{Name: "a release that came too late leaves its queue's place behind", File: "release.go", Old: "if !owned && r.Token != \"\" {", New: "if !owned && r.Token != \"\" && !%s {"},
}

// refreshMutants are caught by the table or the tests of refreshes.
var refreshMutants = []mutant.Mutant{
	{Name: "a release that came late is taken for a refusal", File: "release.go", Old: "case r.Place < 0:", New: "case r.Place < 0 && !%s:"},
	{Name: "a refresh without an answer fails nobody", File: "refresh.go", Old: "case f.Err != nil && ", New: "case f.Err != nil && !%s && "},
	{Name: "a queue without a token refreshes", File: "request.go", Old: "q.token == \"\" ||", New: "q.token == \"\" && !%s ||"},
	{Name: "a refresh of a token that was cancelled is believed", File: "refresh.go", Old: "q.token != r.Token || q.inFlight", New: "q.token != r.Token && !%s || q.inFlight"},
	{Name: "a refresh is believed while a request is under way", File: "refresh.go", Old: "q.inFlight != \"\" || q.sent", New: "q.inFlight != \"\" && !%s || q.sent"},
	{Name: "a refresh from before the last answer is believed", File: "refresh.go", Old: "q.sent.After(r.Sent):", New: "q.sent.After(r.Sent) && !%s:"},
	{Name: "a refresh that was not sent is taken for an answer", File: "refresh.go", Old: "case f.Err != nil ||", New: "case f.Err != nil && !%s ||"},
	{Name: "refreshes do not become rarer", File: "refresh.go", Old: "if q.still++;", New: "if q.still += map[bool]int{false: 1}[%s];"},
	{Name: "refreshes stay rare when the place changes", File: "refresh.go", Old: "r.Place != q.place {", New: "r.Place != q.place && !%s {"},
	{Name: "a refresh tells nothing", File: "refresh.go", Old: "\t\tq.refused(now, r)\n\t}", New: "\t\tif !%s {\n\t\t\tq.refused(now, r)\n\t\t}\n\t}"},
	{Name: "a refresh wakes nobody", File: "refresh.go", Old: "\tq.wake()\n\treturn q.actions\n}\n\n// Ends", New: "\tif !%s {\n\t\tq.wake()\n\t}\n\treturn q.actions\n}\n\n// Ends"},
	{Name: "the end of the holder's lease is not awaited", File: "refresh.go", Old: "q.until, q.askAt = at, at.Add(time.Millisecond)", New: "if q.until = at; !%s {\n\t\tq.askAt = at.Add(time.Millisecond)\n\t}"},
	{Name: "the end of the holder's lease wakes nobody", File: "refresh.go", Old: "\tq.wake()\n\treturn q.actions\n}\n\n// refused", New: "\tif !%s {\n\t\tq.wake()\n\t}\n\treturn q.actions\n}\n\n// refused"},
	{Name: "a refusal says nothing of the end", File: "refresh.go", Old: "q.until = r.Sent.Add(r.Remaining)", New: "q.until = r.Sent.Add(r.Remaining * map[bool]time.Duration{false: 1}[%s])"},
	{Name: "a token that is not in the FIFO is kept", File: "refresh.go", Old: "if r.Place == 0 {\n\t\tq.token", New: "if r.Place == 0 && !%s {\n\t\tq.token"},
	{Name: "a message is awaited that would not come", File: "refresh.go", Old: "!q.Ordered || r.Polls || q.token == \"\" {", New: "!q.Ordered || r.Polls && !%s || q.token == \"\" {"},
	{Name: "a queue polls without a pause", File: "refresh.go", Old: "q.askAt = now.Add(q.Backoff(q.asks))\n\t\t}\n\t\treturn", New: "if !%s {\n\t\t\t\tq.askAt = now.Add(q.Backoff(q.asks))\n\t\t\t}\n\t\t}\n\t\treturn"},
	{Name: "messages are not used once they arrive", File: "refresh.go", Old: "q.token == \"\" || !q.Listening() { // else", New: "q.token == \"\" || !q.Listening() || %s { // else"},
	{Name: "queues far back refresh as often as the first", File: "refresh.go", Old: "q.place-2)", New: "(q.place-2)*map[bool]int{false: 1}[%s])"},
	{Name: "refreshes are not spread", File: "refresh.go", Old: "now.Add(q.Spread(time.Duration(polls) * q.Poll))", New: "now.Add(map[bool]func(time.Duration) time.Duration{false: q.Spread, true: func(d time.Duration) time.Duration { return d }}[%s](time.Duration(polls) * q.Poll))"},
	{Name: "refreshes do not go together", File: "refresh.go", Old: "q.refreshAt = q.refreshAt.Add(-(", New: "q.refreshAt = q.refreshAt.Add(-map[bool]time.Duration{false: 1}[%s] * ("},
	{Name: "nobody looks when the holder's lease ends", File: "refresh.go", Old: "q.until.Before(q.refreshAt) {", New: "q.until.Before(q.refreshAt) && !%s {"},
	{Name: "everybody looks when the holder's lease ends", File: "refresh.go", Old: "if q.place <= 3 ", New: "if (q.place <= 3 || %s) "},
	{Name: "a lease that has ended is awaited", File: "refresh.go", Old: "q.until.After(now)", New: "(q.until.After(now) || %s)"},
	{Name: "missed messages are not asked after", File: "request.go", Old: "q.asks, q.askAt = 0, time.Time{}\n", New: "if q.asks = 0; !%s {\n\t\tq.askAt = time.Time{}\n\t}\n"},
	{Name: "missed messages wake nobody", File: "request.go", Old: "\tq.wake()\n\treturn q.actions\n}\n\n// Refused", New: "\tif !%s {\n\t\tq.wake()\n\t}\n\treturn q.actions\n}\n\n// Refused"},
	{Name: "a request that failed leaves the time of a refresh", File: "request.go", Old: "q.askAt, q.refreshAt = now.Add(q.Backoff(q.asks)), time.Time{}", New: "if q.askAt = now.Add(q.Backoff(q.asks)); !%s {\n\t\tq.refreshAt = time.Time{}\n\t}"},
}
