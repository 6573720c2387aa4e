package waitqueue

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write states.md anew")

// table is an exclusive queue with two or three calls, in a state of the table.
type table struct {
	now      time.Time
	q        *Queue
	calls    map[string]*Call
	tokens   int
	asker    *Call
	inFlight Request
	release  Release
	outcome  []string
}

const fence = 1_700_000_000_000_000

func newTable() *table {
	t := &table{now: time.UnixMilli(1_700_000_000_000), calls: map[string]*Call{}}
	t.q = &Queue{Limit: 1, Config: &Config{
		Ordered:   true,
		Listening: func() bool { return true },
		NewToken: func(int) string {
			t.tokens++
			return fmt.Sprintf("T%d", t.tokens)
		},
		Claim:    time.Second,
		Validity: func(sent time.Time, d time.Duration) time.Time { return sent.Add(d) },
		Expired:  func(until, now time.Time) bool { return !now.Before(until) },
		Backoff:  func(int) time.Duration { return 10 * time.Millisecond },
		Spread:   func(d time.Duration) time.Duration { return d },
		Poll:     time.Second,
		Epoch:    t.now,
		Fences:   100,
	}}
	return t
}

func (t *table) did(actions []Action) {
	for _, a := range actions {
		switch a.Kind {
		case Cancel:
			t.say("cancel %s", a.Token)
		case Wake:
			t.say("wake %s", a.Call.Of)
		case Give:
			t.say("give the grant to %s", a.Call.Of)
		case HandOver:
			t.say("hand the grant over to %s", a.Call.Of)
		default:
			t.say("admit %d calls", len(a.Admission.Calls))
		}
	}
}

func (t *table) say(format string, args ...any) {
	t.outcome = append(t.outcome, fmt.Sprintf(format, args...))
}

func (t *table) join(name string) {
	c := &Call{Of: name, Lease: 3 * time.Second, Timeout: 3 * time.Second, HandOver: time.Minute}
	t.calls[name] = c
	t.q.Join(c)
	if c.informed {
		t.say("%s knows that the key is held", name)
	}
}

func (t *table) joinAll(names ...string) {
	for _, name := range names {
		t.join(name)
	}
}

// ask has calls join, and the first of them ask.
func (t *table) ask(names ...string) {
	t.joinAll(names...)
	t.look(t.q.first)
}

// refused has it be refused, too.
func (t *table) refused(place int, names ...string) {
	t.ask(names...)
	t.q.Refused(t.now, t.asker, t.refusal(place))
}

func (t *table) look(c *Call) {
	switch v := t.q.Next(t.now, c); {
	case v.Err != nil:
		t.say("%s fails", c.Of)
	case v.Ask:
		t.asker, t.inFlight = c, v.Request
		t.say("%s asks about %s", c.Of, v.Request.Token)
	case v.AskIn < 0:
		t.say("%s waits to be woken", c.Of)
	case v.Refresh != "":
		t.say("refresh %s", v.Refresh)
	default:
		t.say("%s looks again in %s", c.Of, v.AskIn)
	}
}

func (t *table) refusal(place int) *Refusal {
	return &Refusal{Token: t.inFlight.Token, Sent: t.inFlight.Sent, Server: t.now.UnixMilli(), Place: place, Length: place, Remaining: 15 * time.Second}
}

func (t *table) refreshed(place int, f Failure) {
	r := t.refusal(place)
	r.Sent = t.now
	t.did(t.q.Refreshed(t.now, r, f))
}

func (t *table) released(mayHandOver bool) {
	h := Held{Fence: fence}
	if mayHandOver {
		h.TTL = time.Minute
	}
	r, handOver := t.q.Released(t.now, h)
	t.did(handOver)
	switch {
	case len(handOver) > 0:
	case r.Waits != nil:
		t.release = r
		t.say("release it; %s waits for the key", r.Token)
	case r.Token != "":
		t.say("release it; %s leaves the FIFO", r.Token)
	default:
		t.say("release it")
	}
}

func (t *table) releaseAnswered(granted int64, err error) {
	r := t.refusal(1)
	r.Token, r.Sent = t.release.Token, t.now
	t.did(t.q.ReleaseAnswered(t.now, granted, r, err))
}

// state names what the queue's fields say.
func (t *table) state() string {
	q := t.q
	if q.Empty() {
		return "empty"
	}
	name := "due"
	switch {
	case q.inFlight != "" && t.release.Token == q.inFlight:
		name = "releasing"
	case q.inFlight != "":
		name = "asking"
	case q.token != "" && q.askAt.After(t.now):
		name = "queued"
	case q.token != "":
		name = "queued, due"
	case q.askAt.After(t.now):
		name = "polling"
	}
	if q.held != 0 {
		name = strings.TrimSuffix("held, "+name, ", due") // nobody asks now
	}
	if len(q.overtaken) > 0 {
		name += ", overtaken"
	}
	if q.n == 0 {
		name += ", nobody waits"
	}
	return name
}

// The states are reached by these stories; the events are what can happen in one.
var (
	states = []struct {
		name  string
		story func(t *table)
	}{
		{"empty", func(*table) {}},
		{"due", func(t *table) { t.joinAll("A", "B") }},
		{"asking", func(t *table) { t.ask("A", "B") }},
		{"queued", func(t *table) { t.refused(1, "A", "B") }},
		{"polling", func(t *table) { t.refused(0, "A", "B") }},
		{"held", func(t *table) {
			t.ask("A", "B")
			t.q.Granted(t.now, t.asker, Grant{Token: "T1", Fence: fence, Until: t.now.Add(time.Second)})
		}},
		{"held, asking", func(t *table) { t.ask("A", "B"); t.released(true) }},
		{"held, queued", func(t *table) { t.refused(1, "A", "B"); t.released(true) }},
		{"held, queued, nobody waits", func(t *table) { t.refused(1, "A"); t.released(true) }},
		{"releasing", func(t *table) { t.joinAll("A", "B"); t.released(false) }},
		{"held, overtaken", func(t *table) {
			t.ask("A", "B")
			t.q.GrantMessage(t.now, t.now, Grant{Token: "T1", Fence: fence}, 0)
		}},
	}
	events = []struct {
		name string
		when func(t *table) bool
		what func(t *table)
	}{
		{"a call joins", always, func(t *table) { t.join("C") }},
		{"the first call looks", waits, func(t *table) { t.look(t.q.first) }},
		{"the first call looks after a second", queued, func(t *table) {
			t.now = t.now.Add(time.Second)
			t.look(t.q.first)
		}},
		{"refreshed, with a place", queued, func(t *table) { t.refreshed(1, Failure{}) }},
		{"refreshed, without a place", queued, func(t *table) { t.refreshed(0, Failure{}) }},
		{"the refresh fails", queued, func(t *table) { t.refreshed(0, Failure{Err: errors.New("outage")}) }},
		{"a message says when the lease ends", queued, func(t *table) { t.did(t.q.Ends(t.now.Add(time.Second))) }},
		{"the first call leaves", func(t *table) bool { return waits(t) && t.asker != t.q.first || t.q.inFlight == "" && waits(t) }, func(t *table) { t.did(t.q.Leave(t.q.first)) }},
		{"refused, with a place", inFlight, func(t *table) { t.did(t.q.Refused(t.now, t.asker, t.refusal(1))) }},
		{"refused, without a place", inFlight, func(t *table) { t.did(t.q.Refused(t.now, t.asker, t.refusal(0))) }},
		{"refused, after a message's grant", func(t *table) bool { return inFlight(t) && len(t.q.overtaken) > 0 }, func(t *table) {
			r := t.refusal(1)
			r.Latest = fence
			t.did(t.q.Refused(t.now, t.asker, r))
		}},
		{"granted", inFlight, func(t *table) {
			t.did(t.q.Granted(t.now, t.asker, Grant{Token: t.inFlight.Token, Fence: fence, Until: t.now.Add(time.Second)}))
		}},
		{"granted, with another fence", func(t *table) bool { return inFlight(t) && len(t.q.overtaken) > 0 }, func(t *table) {
			t.did(t.q.Granted(t.now, t.asker, Grant{Token: t.inFlight.Token, Fence: fence + 1, Until: t.now.Add(time.Second)}))
		}},
		{"nobody waits for the answer", inFlight, func(t *table) { t.did(t.q.Unanswered(t.now, &t.inFlight, Failure{})) }},
		{"the request fails", inFlight, func(t *table) { t.did(t.q.Unanswered(t.now, &t.inFlight, Failure{Err: errors.New("outage")})) }},
		{"the request was not sent", inFlight, func(t *table) {
			t.did(t.q.Unanswered(t.now, &t.inFlight, Failure{Err: errors.New("outage"), Unsent: true}))
		}},
		{"the pool is full", inFlight, func(t *table) {
			t.did(t.q.Unanswered(t.now, &t.inFlight, Failure{Err: errors.New("pool"), Local: true}))
		}},
		{"orphaned answer", always, func(t *table) { t.did(t.q.Orphaned("T0", 0, 0, 0)) }},
		{"orphaned answer of the token", hasToken, func(t *table) { t.did(t.q.Orphaned(t.q.token, 0, 0, 0)) }},
		{"a grant message", hasToken, func(t *table) { t.did(t.q.GrantMessage(t.now, t.now, Grant{Token: t.q.token, Fence: fence}, fence)) }},
		{"a grant message that is too late", hasToken, func(t *table) {
			t.now = t.now.Add(5 * time.Second)
			t.did(t.q.GrantMessage(t.now, t.now, Grant{Token: t.q.token, Fence: fence}, 0))
		}},
		{"a grant is released", holds, func(t *table) { t.released(true) }},
		{"a grant is released that must not be handed over", holds, func(t *table) { t.released(false) }},
		{"released: the token waits", releasing, func(t *table) { t.releaseAnswered(0, nil) }},
		{"released: the token is granted", releasing, func(t *table) { t.releaseAnswered(fence, nil) }},
		{"the release came too late", releasing, func(t *table) {
			t.did(t.q.ReleaseAnswered(t.now, 0, &Refusal{Token: t.release.Token, Sent: t.now, Place: -1}, nil))
		}},
		{"the release fails", releasing, func(t *table) { t.releaseAnswered(0, errors.New("outage")) }},
		{"another grant was released", always, func(t *table) { t.did(t.q.Freed(t.now, Release{}, true)) }},
		{"a grant is lost", always, func(t *table) { t.did(t.q.Lost(fence)) }},
		{"messages may have been missed", always, func(t *table) { t.did(t.q.AskAgain()) }},
	}
)

func always(*table) bool     { return true }
func hasToken(t *table) bool { return t.q.token != "" }
func waits(t *table) bool    { return t.q.first != nil }
func inFlight(t *table) bool {
	return t.inFlight.Token != "" && (t.q.inFlight == t.inFlight.Token || len(t.q.overtaken) > 0)
}
func queued(t *table) bool    { return waits(t) && t.q.token != "" && t.q.inFlight == "" }
func holds(t *table) bool     { return t.q.inFlight == "" || t.q.held != 0 }
func releasing(t *table) bool { return t.release.Token != "" }

// TestQueue_DoesWhatTheTableSays holds states.md to what the queue does.
func TestQueue_DoesWhatTheTableSays(t *testing.T) {
	var b strings.Builder
	b.WriteString(statesIntro)
	for _, s := range states {
		fmt.Fprintf(&b, "\n## %s\n\n| event | what is done | then |\n|---|---|---|\n", s.name)
		for _, e := range events {
			at := newTable()
			s.story(at)
			require.Equal(t, s.name, at.state(), "the story leads to its state")
			at.outcome = nil
			if !e.when(at) {
				continue
			}
			e.what(at)
			then := at.state()
			if then == s.name {
				then = "—"
			}
			did := strings.Join(at.outcome, ", ")
			if did == "" && then == "—" {
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", e.name, did, then)
		}
	}
	if *update {
		require.NoError(t, os.WriteFile("states.md", []byte(b.String()), 0o600))
	}
	want, err := os.ReadFile("states.md")
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "states.md is not what the queue does: go test -run Table -update")
}

const statesIntro = `# The states of a wait queue

This is what the queue of an exclusive key does, as a test runs it: ` + "`go test -run Table -update`" + ` writes it anew. Calls A and B
wait, in this order, where any do; T1, T2 are owner tokens. What is not listed changes nothing, or cannot happen.

| state | what it means |
|---|---|
| empty | nobody needs the queue: it is forgotten |
| due | calls wait, and the first one may ask Redis |
| asking | a request is in flight, and no other call asks |
| queued | the token is in the key's FIFO: a message tells of the grant, and the first call has the token refreshed, or asks again, in case that is lost |
| queued, due | the same, and the first call may ask now |
| polling | Redis does not know the queue: the first call asks again soon |
| held | this process has the key: its release hands it over |
| releasing | a release is out, and puts the token at the end of the FIFO |
| overtaken | a message granted the token before the reply to its request, which is out of date |
`
