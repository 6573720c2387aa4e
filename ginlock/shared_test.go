package ginlock_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

func TestSafeMethods_ACountedGuardLetsSoManyIn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const most, requests = 3, 20
		b := testbed.New(t, env)
		var inside, ran, peak atomic.Int64
		patient := b.Locker.Guard(retry.Policy{MaxWait: time.Minute}, core.Counted(most))
		url, client := testbed.Serve(t, guarded(patient, func(c *gin.Context) {
			n := inside.Add(1)
			if n > most {
				t.Error("too many inside")
			}
			if n == most {
				peak.Store(n)
			}
			for range 100 { // until all places are taken once
				if peak.Load() == most {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			inside.Add(-1)
			ran.Add(1)
			ok(c)
		}))
		var wg sync.WaitGroup
		for range requests {
			wg.Go(func() {
				if resp, err := testbed.Send(client, testbed.ToServer(t.Context(), t, url+testbed.OrderPath, "")); err != nil || resp.Status != http.StatusOK {
					t.Error(resp, err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, requests, ran.Load())
		require.EqualValues(t, most, peak.Load())
		b.RequireFree(t)
	})
}
