package waitqueue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
		var given []Action
		for _, a := range q.q.GrantMessage(q.now, q.now, Grant{Token: q.q.Token(), Fence: fence}, ends) {
			if a.Kind == Give {
				given = append(given, a)
			}
		}
		require.Len(t, given, 1, name)
		require.Equal(t, sent.Add(c.want), given[0].Asked, name)
	}
}
