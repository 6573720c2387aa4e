package waitqueue

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// askIn is when the first call asks or refreshes.
func (t *table) askIn() time.Duration { return t.q.Next(t.now, t.q.first).AskIn }

// queuedAt is a queue of A and B whose token has a place in the key's FIFO.
func queuedAt(place int, remaining time.Duration) *table {
	t := newTable()
	t.join("A")
	t.join("B")
	t.refusedAt(place, remaining)
	return t
}

// refusedAt has A ask, and be refused.
func (t *table) refusedAt(place int, remaining time.Duration) {
	t.look(t.q.first)
	r := t.refusal(place)
	r.Remaining = remaining
	t.q.Refused(t.now, t.asker, r)
}

func TestQueue_RefreshesTheSoonerTheNearerItsTurn(t *testing.T) {
	for _, c := range []struct {
		place     int
		remaining time.Duration // of the holder's lease
		want      time.Duration
	}{
		{1, 15 * time.Second, time.Second},
		{3, 15 * time.Second, time.Second},
		{4, 15 * time.Second, 2 * time.Second},
		{6, 15 * time.Second, 4 * time.Second},
		{7, 15 * time.Second, 5 * time.Second},
		{100, 15 * time.Second, 5 * time.Second},
		// The first few see to it that the key of a holder that died is free for somebody.
		{1, 300 * time.Millisecond, 301 * time.Millisecond},
		{3, 300 * time.Millisecond, 301 * time.Millisecond},
		{4, 300 * time.Millisecond, 2 * time.Second},
		{1, 0, time.Second},
	} {
		q := queuedAt(c.place, c.remaining)
		require.Equal(t, c.want, q.askIn(), "place %d, the holder has %s", c.place, c.remaining)
	}
}

func TestQueue_RefreshesLessOftenWhileNothingChanges(t *testing.T) {
	q := queuedAt(2, 15*time.Second)
	refreshes := func(place int) time.Duration {
		q.now = q.now.Add(q.askIn())
		require.Equal(t, "T1", q.q.Next(q.now, q.q.first).Refresh)
		require.Equal(t, 5*time.Second, q.askIn(), "it asks should the answer be lost")
		q.refreshed(place, Failure{})
		return q.askIn()
	}
	for _, want := range []time.Duration{2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
		require.Equal(t, want, refreshes(2))
	}
	require.Equal(t, time.Second, refreshes(1), "its place changed")
	require.Equal(t, 2*time.Second, refreshes(1))
	q.q.AskNow()
	q.refusedAt(1, 15*time.Second)
	require.Equal(t, time.Second, q.askIn(), "after a request as at first")
}

func TestQueue_RefreshesOnAGridSpread(t *testing.T) {
	q := newTable()
	q.now = q.now.Add(100 * time.Millisecond)
	q.join("A")
	q.refusedAt(1, 15*time.Second)
	require.Equal(t, 900*time.Millisecond, q.askIn(), "at 1 s after the epoch")

	q = newTable()
	q.q.Spread = func(d time.Duration) time.Duration { return d - d/7 }
	q.join("A")
	q.refusedAt(1, 15*time.Second)
	require.Equal(t, 750*time.Millisecond, q.askIn())
}

func TestQueue_AsksWhereARefreshWouldNotDo(t *testing.T) {
	for why, happens := range map[string]func(q *table){
		"no message can tell of a grant": func(q *table) { q.q.Listening = func() bool { return false } },
		"the token was cancelled":        func(q *table) { q.did(q.q.Orphaned("T1", 0, 0, 0)) },
		"the refresh was not sent":       func(q *table) { q.refreshed(1, Failure{Err: errors.New("pool"), Unsent: true}) },
		"the refresh had no answer": func(q *table) {
			q.now = q.now.Add(time.Second)
			require.NotEmpty(t, q.q.Next(q.now, q.q.first).Refresh)
			q.now = q.now.Add(4 * time.Second)
		},
	} {
		q := queuedAt(1, 15*time.Second)
		happens(q)
		if q.now = q.now.Add(time.Second); why == "the refresh was not sent" {
			q.now = q.now.Add(-time.Second)
		}
		require.True(t, q.q.Next(q.now, q.q.first).Ask, why)
	}
	q := queuedAt(1, 15*time.Second)
	q.refreshed(1, Failure{Err: errors.New("outage")})
	require.Equal(t, 10*time.Millisecond, q.askIn(), "the refresh failed")
	require.Error(t, q.q.Failure())

	q = queuedAt(1, 15*time.Second)
	q.did(q.q.Ends(q.now.Add(500 * time.Millisecond)))
	require.Equal(t, 501*time.Millisecond, q.askIn(), "the holder's lease ends")
	until, _ := q.q.Hint()
	require.Equal(t, q.now.Add(500*time.Millisecond), until)
}

func TestQueue_AsksAgainWhileNoMessageCanTell(t *testing.T) {
	refused := func(listening bool) *table {
		q := newTable()
		q.join("A")
		q.look(q.q.first)
		q.q.Listening = func() bool { return listening }
		r := q.refusal(1)
		r.Polls = true
		q.q.Refused(q.now, q.asker, r)
		return q
	}
	require.Equal(t, 10*time.Millisecond, refused(false).askIn())
	q := refused(true)
	require.True(t, q.q.Next(q.now, q.q.first).Ask, "the next answer can")
}

func TestQueue_ARefreshThatIsOutOfDateChangesNothing(t *testing.T) {
	for name, late := range map[string]func(q *table, r *Refusal){
		"of a token that was cancelled": func(q *table, r *Refusal) { r.Token = "T0" },
		"sent before the last request": func(q *table, r *Refusal) {
			q.now = q.now.Add(time.Second)
			q.q.AskNow()
			q.refusedAt(1, 15*time.Second)
		},
		"while a request is under way": func(q *table, r *Refusal) {
			q.q.AskNow()
			q.look(q.q.first)
		},
	} {
		for _, f := range []Failure{{}, {Err: errors.New("outage")}, {Err: errors.New("pool"), Unsent: true}} {
			for place := range 3 {
				q := queuedAt(1, 15*time.Second)
				r := q.refusal(place)
				r.Sent = q.now
				late(q, r)
				q.join("C")
				was := *q.q
				require.Empty(t, q.q.Refreshed(q.now, r, f), name)
				require.Equal(t, was, *q.q, name)
			}
		}
	}
}

func TestQueue_KnowsWhatARefreshTells(t *testing.T) {
	q := queuedAt(2, 15*time.Second)
	q.now = q.now.Add(time.Second)
	r := q.refusal(3)
	r.Sent, r.Remaining, r.Length = q.now, 7*time.Second, 9
	q.q.Refreshed(q.now, r, Failure{})
	until, waiting := q.q.Hint()
	require.Equal(t, q.now.Add(7*time.Second), until)
	require.Equal(t, 10, waiting, "eight others and these two")
	require.True(t, q.q.wanted)
	r.Place, r.Length = 1, 1
	q.q.Refreshed(q.now, r, Failure{})
	require.False(t, q.q.wanted)
}

func TestQueue_ARefreshWithoutAnAnswerFailsCallsThatKnowNothing(t *testing.T) {
	q := queuedAt(1, 15*time.Second)
	r := q.refusal(0)
	r.Sent = q.now
	q.join("C")
	q.q.answered = false
	q.calls["C"].informed = false
	outage := errors.New("outage")
	q.q.Refreshed(q.now, r, Failure{Err: outage})
	require.Equal(t, outage, q.q.Next(q.now, q.calls["C"]).Err)
}

// The queue's token waits for 8 s by the server's clock; the message about its grant is late.
func TestQueue_KnowsAfterWhatItsGrantWasMade(t *testing.T) {
	for name, c := range map[string]struct{ forward, want time.Duration }{
		"as clocks run":                      {0, 8*time.Second - 80*time.Millisecond},
		"the server's clock was set forward": {time.Hour, 8500 * time.Millisecond},
	} {
		q := queuedAt(1, time.Minute)
		sent := q.now
		q.now = sent.Add(8500 * time.Millisecond)
		ends := sent.Add(8*time.Second + c.forward + q.q.Claim).UnixMilli()
		given := slices.DeleteFunc(q.q.GrantMessage(q.now, q.now, Grant{Token: q.q.Token(), Fence: fence}, ends), func(a Action) bool { return a.Kind != Give })
		require.Len(t, given, 1, name)
		require.Equal(t, sent.Add(c.want), given[0].Asked, name)
	}
}

// A queue whose request failed asks again after a pause, also if it would have refreshed its token by then: without one
// its first call would ask for as long as Redis is away, and never come to its policy.
func TestQueue_PausesAfterAFailureHoweverOldItsPlaceIs(t *testing.T) {
	away := errors.New("away")
	for name, f := range map[string]Failure{
		"not sent": {Err: away, Unsent: true}, "no answer": {Err: away}, "no connection": {Err: away, Unsent: true, Local: true},
	} {
		q := newTable()
		q.join("A")
		q.refusedAt(1, time.Minute)
		require.Positive(t, q.askIn(), "it is to be refreshed")
		q.q.Listening = func() bool { return false }
		q.q.AskAgain()
		for range 3 {
			v := q.q.Next(q.now, q.q.first)
			require.True(t, v.Ask, name)
			q.now = q.now.Add(2 * time.Second)
			q.q.Unanswered(q.now, &v.Request, f)
			v = q.q.Next(q.now, q.q.first)
			require.False(t, v.Ask, name)
			require.Positive(t, v.AskIn, name)
			q.now = q.now.Add(v.AskIn)
		}
	}
}
