package httplock_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

// A request of a handler waits for that one if the two cannot have the key together, and not otherwise.
func TestTransport_FollowsTheModes(t *testing.T) {
	waits := retry.Policy{MaxWait: 100 * time.Millisecond}
	const post, get = http.MethodPost, http.MethodGet
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for name, test := range map[string]struct {
			guard, method, asks string
			status              int
		}{
			"alone for alone":             {"shares", post, post, http.StatusLoopDetected},
			"alone for shared":            {"shares", post, get, http.StatusLoopDetected},
			"shared for alone":            {"shares", get, post, http.StatusLoopDetected},
			"shared for shared":           {"shares", get, get, http.StatusOK},
			"one of two for one of two":   {"two", post, post, http.StatusOK},
			"both of two for one of them": {"both", post, post, http.StatusLoopDetected},
		} {
			t.Run(name, func(t *testing.T) {
				b := testbed.New(t, env)
				if test.guard == "both" {
					b.HoldKey(t, testbed.OrderKey, core.Counted(2))
				}
				var opts []httplock.Option
				var acquire []core.AcquireOption
				if test.guard == "shares" {
					opts = append(opts, httplock.SharedForSafeMethods())
				} else {
					acquire = append(acquire, core.Counted(2))
				}
				opts = append(opts, httplock.WithLogger((&testbed.Log{}).Logger()))
				var url string
				var client *http.Client
				answers := make(chan testbed.Answer, 1)
				url, client = testbed.Serve(t, guarded(b.Locker.Guard(waits, acquire...), func(_ http.ResponseWriter, r *http.Request) {
					if r.URL.RawQuery == "" {
						return
					}
					asking := &http.Client{Transport: &httplock.Transport{Base: client.Transport}}
					inner, err := http.NewRequestWithContext(r.Context(), test.asks, url+testbed.OrderPath, http.NoBody)
					assert.NoError(t, err)
					answer, err := testbed.Send(asking, inner)
					assert.NoError(t, err)
					answers <- answer
				}, opts...))
				r, err := http.NewRequestWithContext(t.Context(), test.method, url+testbed.OrderPath+"?ask", http.NoBody)
				require.NoError(t, err)
				answer, err := testbed.Send(client, r)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, answer.Status)
				require.Equal(t, test.status, (<-answers).Status)
			})
		}
	})
}
