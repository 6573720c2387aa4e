package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	redistest.Main(m)
}

func TestService_AnswersByItsPolicies(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		require.NoError(t, rdb.FlushDB(t.Context()).Err())
		router, worker, locker := service(rdb)
		lease, err := locker.Acquire(t.Context(), "order:7")
		require.NoError(t, err)

		answer := func(method, path, user string) int {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(method, path, nil)
			r.Header.Set("X-User", user)
			router.ServeHTTP(w, r)
			return w.Code
		}
		require.Equal(t, http.StatusUnauthorized, answer(http.MethodPost, "/orders/7/pay", ""))
		require.Equal(t, http.StatusConflict, answer(http.MethodPost, "/orders/7/pay", "alice"))
		require.Equal(t, http.StatusOK, answer(http.MethodPut, "/orders/8", "alice"))
		require.Equal(t, http.StatusAccepted, answer(http.MethodPost, "/orders/7/ship", "alice"))
		require.Equal(t, http.StatusAccepted, answer(http.MethodPost, "/orders/7/ship", "mallory"))
		waited := make(chan int)
		go func() { waited <- answer(http.MethodPut, "/orders/7", "alice") }()
		redistest.Eventually(t, func() bool {
			info, err := locker.Inspect(t.Context(), "order:7")
			return err == nil && info.Waiting > 0
		}, "a request waits")
		require.NoError(t, lease.Release(t.Context()))
		require.Equal(t, http.StatusOK, <-waited)

		queue := testbed.NewQueue(t, rdb, "ship", delayqueue.WithPrefix("shop"))
		redistest.Eventually(t, func() bool {
			stats, err := queue.Stats(t.Context())
			return err == nil && stats.Totals.Done == 2
		}, "the parked requests have their answers")
		require.NoError(t, worker.Stop(t.Context()))
		require.NoError(t, locker.Shutdown(t.Context()))
	})
}
