package waitqueue

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A queue whose request failed asks again after a pause, also if it would have refreshed its token by then: without one
// its first call would ask for as long as Redis is away, and never come to its policy.
func TestQueue_PausesAfterAFailureHoweverOldItsPlaceIs(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for name, f := range map[string]Failure{
		"not sent": {Err: away, Unsent: true}, "no answer": {Err: away}, "no connection": {Err: away, Unsent: true, Local: true},
	} {
		now, listening := newTable().now, true
		table := newTable()
		q := table.q
		q.Listening = func() bool { return listening }
		table.join("A")
		a := table.calls["A"]
		v := q.Next(now, a)
		require.True(t, v.Ask)
		q.Refused(now, a, &Refusal{Token: v.Request.Token, Sent: now, Remaining: time.Minute, Place: 1, Length: 1})
		v = q.Next(now, a)
		require.Positive(t, v.AskIn, "it is to be refreshed")
		listening = false
		q.AskAgain()
		for range 3 {
			v = q.Next(now, a)
			require.True(t, v.Ask, name)
			now = now.Add(2 * time.Second)
			q.Unanswered(now, &v.Request, f)
			v = q.Next(now, a)
			require.False(t, v.Ask, name)
			require.Positive(t, v.AskIn, name)
			now = now.Add(v.AskIn)
		}
	}
}
