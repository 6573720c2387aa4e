package httplock_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// Many clients change the same version of an order, which is held: the first one's change is made, and no other.
func TestReplay_ParkedRequestsKeepTheirConditions(t *testing.T) {
	const date = "Sun, 22 Nov 2026 13:00:00 GMT"
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		d := openParking(t, env)
		var version atomic.Int64
		etag := func() string { return fmt.Sprintf(`"v%d"`, version.Load()) }
		d.handle(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, date, r.Header.Get("If-Unmodified-Since"))
			assert.Equal(t, date, r.Header.Get("If-Modified-Since"))
			assert.Equal(t, `"never"`, r.Header.Get("If-None-Match"))
			assert.Empty(t, r.Header.Get("If-Range"), "it means nothing without Range, which is not stored")
			if r.Header.Get("If-Match") != etag() {
				w.WriteHeader(http.StatusPreconditionFailed)
				return
			}
			version.Add(1)
			w.Header().Set("ETag", etag())
		})
		const clients = 20
		release := d.HoldKey(t, "order:1")
		parked := make(chan testbed.Answer, clients)
		for range clients {
			r := testbed.Request(t, http.MethodPut, "/orders/1", "{}")
			r.Header = http.Header{
				"If-Match": {`"v0"`}, "If-None-Match": {`"never"`}, "If-Modified-Since": {date}, "If-Unmodified-Since": {date}, "If-Range": {`"v0"`},
			}
			go func() { parked <- testbed.Do(d.mux, r) }()
		}
		d.work(t)
		var tickets []string
		for range clients {
			tickets = append(tickets, requireParked(t, <-parked))
		}
		release()
		answers := map[int]int{}
		for _, at := range tickets {
			answers[d.result(t, at).Status]++
		}
		require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusPreconditionFailed: clients - 1}, answers)
		require.EqualValues(t, 1, version.Load())
	})
}

func TestStoredHeaders(t *testing.T) {
	require.Equal(t, []string{
		"Accept", "Accept-Language", "Content-Encoding", "Content-Type", "Idempotency-Key",
		"If-Match", "If-Modified-Since", "If-None-Match", "If-Unmodified-Since", "Traceparent",
	}, httplock.StoredHeaders())
}
