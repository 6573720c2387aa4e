package httplock_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// A client that is refused by a quick route does not wait for the end of a lease, and one that is refused by a route that keeps its keys does.
func TestRetryAfter_FollowsHowLongTheRoutesRequestsHoldTheirKeys(t *testing.T) {
	for name, test := range map[string]struct {
		opts        []core.AcquireOption
		least, most float64
	}{
		"quick handler": {nil, 800, 1000},
		"MinHold":       {[]core.AcquireOption{core.MinHold(5 * time.Second)}, 4000, 5000},
	} {
		t.Run(name, func(t *testing.T) {
			b := testbed.New(t, redistest.Embedded(t))
			h := httplock.PerKey(b.Locker.Guard(core.RejectConflicts, test.opts...), httplock.Query("order:", "id"))(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
			post := func(order string) testbed.Answer { return testbed.Call(t, h, http.MethodPost, "/?id="+order, "") }
			held, err := b.Rival.TryAcquire(t.Context(), "order:7", core.FixedLease(time.Hour))
			require.NoError(t, err)
			wait := func() float64 {
				refused := post("7")
				require.Equal(t, http.StatusConflict, refused.Status)
				var problem struct {
					RetryAfter float64 `json:"retry_after_ms"`
				}
				require.NoError(t, json.Unmarshal([]byte(refused.Body), &problem))
				return problem.RetryAfter
			}
			require.GreaterOrEqual(t, wait(), 8000.0, "nothing is known yet but the lease")
			require.Equal(t, http.StatusNoContent, post("8").Status)
			require.GreaterOrEqual(t, wait(), test.least)
			require.LessOrEqual(t, wait(), test.most)
			require.NoError(t, held.Release(t.Context()))
		})
	}
}
