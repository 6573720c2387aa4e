//go:build soak

package httplock_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// Clients that park all that they can, with every default, do not fill a Redis of 100 MB: they are refused, and the
// locks of the service go on. It is long since it is one story.
func TestQueueBounds_LocksOutliveClientsThatParkWithoutEnd(t *testing.T) {
	const clients = 32
	body := strings.Repeat("x", 1<<20)
	server := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
	for name, principal := range map[string]func(*http.Request) (string, error){
		"one client":   func(*http.Request) (string, error) { return "mallory", nil },
		"many clients": func(r *http.Request) (string, error) { return r.PathValue("id"), nil },
	} {
		each := 3 // of a MiB: more than Redis has
		if name == "one client" {
			each = 1 // more than it may have
		}
		t.Run(name, func(t *testing.T) {
			require.NoError(t, rdb.FlushAll(t.Context()).Err())
			locker, err := core.New(rdb)
			require.NoError(t, err)
			defer func() { _ = locker.Close() }()
			queue, err := delayqueue.New(rdb, "ship")
			require.NoError(t, err)
			mux := http.NewServeMux()
			mux.Handle("/orders/{id}", httplock.PerKey(locker.Guard(delayqueue.Policy(queue)), orderKey,
				sentBy(principal, func(*http.Request, string) error { return nil }))(http.NotFoundHandler()))
			for i := range clients {
				lease, err := locker.TryAcquire(t.Context(), fmt.Sprint("order:", i), core.LeaseTTL(time.Minute))
				require.NoError(t, err)
				require.NoError(t, lease.Extend(t.Context(), time.Hour))
				defer func() { _ = lease.Release(t.Context()) }()
			}

			var parking sync.WaitGroup
			var mu sync.Mutex
			answers := map[int]int{}
			for i := range clients {
				parking.Go(func() {
					for range each {
						send := func() testbed.Answer { return testbed.Call(t, mux, http.MethodPost, fmt.Sprint("/orders/", i), body) }
						resp := send()
						for strings.Contains(resp.Body, "#unavailable") { // on a busy machine: errorstats tell of a Redis that is full
							resp = send()
						}
						mu.Lock()
						answers[resp.Status]++
						mu.Unlock()
						if resp.Status != http.StatusAccepted {
							assert.NotEmpty(t, resp.Header.Get("Retry-After"))
							assert.Contains(t, resp.Body, "queue-full")
						}
						lease, err := locker.TryAcquire(t.Context(), fmt.Sprint("pair:", i))
						for errors.Is(err, core.ErrUnavailable) {
							lease, err = locker.TryAcquire(t.Context(), fmt.Sprint("pair:", i))
						}
						if assert.NoError(t, err) {
							_ = lease.Release(t.Context())
						}
					}
				})
			}
			parking.Wait()
			t.Logf("answers: %v", answers)
			require.NotContains(t, rdb.Info(t.Context(), "errorstats").Val(), "OOM")
			require.Positive(t, answers[http.StatusAccepted])
			if name == "one client" {
				require.Equal(t, clients*each, answers[http.StatusAccepted]+answers[http.StatusTooManyRequests], "429 for the principal: %v", answers)
				require.Positive(t, answers[http.StatusTooManyRequests])
			} else {
				require.Positive(t, answers[http.StatusServiceUnavailable], "503 for the whole queue")
			}
		})
	}
}
