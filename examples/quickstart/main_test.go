package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	redistest.Main(m)
}

func TestTheREADMEShowsThisCode(t *testing.T) {
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	parts := strings.Split(string(source), "\t// README\n")
	require.Len(t, parts, 3)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	snippet := strings.ReplaceAll("\n"+strings.TrimSpace(parts[1]), "\n\t", "\n")
	require.Contains(t, string(readme), "```go"+snippet+"\n```")
}

func TestItAnswersAsTheREADMESays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		rdb := env.Client(t)
		require.NoError(t, rdb.FlushDB(t.Context()).Err())
		r, worker, locker := service(rdb)
		lease, err := locker.Acquire(t.Context(), "order:7")
		require.NoError(t, err)

		answer := func(method, path string) int {
			w := httptest.NewRecorder()
			r.ServeHTTP(w, httptest.NewRequest(method, path, nil))
			return w.Code
		}
		require.Equal(t, http.StatusConflict, answer(http.MethodPost, "/orders/7/pay"))
		require.Equal(t, http.StatusOK, answer(http.MethodPut, "/carts/7"))
		require.Equal(t, http.StatusAccepted, answer(http.MethodPost, "/orders/7/ship"))
		require.NoError(t, lease.Release(t.Context()))

		queue, err := delayqueue.New(rdb, "ship", delayqueue.WithPrefix("shop"))
		require.NoError(t, err)
		redistest.Eventually(t, func() bool {
			stats, err := queue.Stats(t.Context())
			return err == nil && stats.Totals.Done == 1
		}, "the parked request ran")
		require.NoError(t, worker.Stop(t.Context()))
		require.NoError(t, locker.Shutdown(t.Context()))
	})
}
