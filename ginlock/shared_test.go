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
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

func TestReadersShareTheKey(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		r := gin.New()
		r.Use(ginlock.PerKey(core.NewGuard(b.locker, nil), orderKey, ginlock.SharedForSafeMethods()))
		const readers = 3
		var inside sync.WaitGroup
		inside.Add(readers)
		release := make(chan struct{})
		r.GET("/orders/:id", func(c *gin.Context) {
			inside.Done()
			<-release
			ok(c)
		})
		r.POST("/orders/:id", mustNotRun(t))

		var done sync.WaitGroup
		for range readers {
			done.Go(func() {
				if resp := call(t, r, http.MethodGet, orderPath); resp.status != http.StatusOK {
					t.Error(resp)
				}
			})
		}
		inside.Wait()
		requireProblem(t, call(t, r, http.MethodPost, orderPath), http.StatusConflict, "conflict")
		close(release)
		done.Wait()
		b.requireFree(t)
	})
}

func TestACountedGuardLetsSoManyIn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const most, requests = 3, 20
		b := setup(t, env)
		var inside, ran, peak atomic.Int64
		patient := core.NewGuard(b.locker, retry.Policy{MaxWait: time.Minute}, core.Counted(most))
		url, client := serve(t, guarded(patient, func(c *gin.Context) {
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
				if resp, err := send(client, toServer(t.Context(), t, url+orderPath, "")); err != nil || resp.status != http.StatusOK {
					t.Error(resp, err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, requests, ran.Load())
		require.EqualValues(t, most, peak.Load())
		b.requireFree(t)
	})
}
