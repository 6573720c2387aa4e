package ginlock_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// A handler that hands c to what takes a ctx does not wait for itself, and is told once to give c.Request.Context().
func TestContext_AsACtxDoesNotWaitForItself(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		for _, fallback := range []bool{false, true} {
			said := &testbed.Log{}
			b := testbed.New(t, env)
			locker := testbed.NewLocker(t, b.Redis, core.WithPrefix(b.Prefix), core.WithLogger(said.Logger()), core.WithTTL(time.Second))
			guard := locker.Guard(core.RejectConflicts)
			r := gin.New()
			r.ContextWithFallback = fallback
			r.Use(func(c *gin.Context) {
				c.Next()
				_, held := core.LeaseFrom(c)
				assert.False(t, held, "after the handlers there is no lease")
			})
			locked := ginlock.PerKey(guard, orderKey)
			inner := ginlock.PerKey(guard, ginlock.Param("inner:", "id"), httplock.WithLockedSafeMethods())
			r.POST("/orders/:id", locked, func(c *gin.Context) {
				lease, held := core.LeaseFrom(c)
				require.True(t, held)
				require.Equal(t, testbed.OrderKey, lease.Key())
				c.Next()
				lease, _ = core.LeaseFrom(c)
				require.Equal(t, testbed.OrderKey, lease.Key(), "behind the inner guard it is the outer one's again")
			}, inner, func(c *gin.Context) {
				lease, _ := core.LeaseFrom(c)
				require.Equal(t, "inner:"+testbed.Secret, lease.Key())
				for _, ctx := range []context.Context{c, context.WithValue(c, "mine", 1), c.Copy()} { //nolint:revive,staticcheck // as users do
					ctx, cancel := context.WithTimeout(ctx, time.Minute)
					for _, key := range []string{testbed.OrderKey, "inner:" + testbed.Secret} {
						require.NoError(t, locker.Do(ctx, key, func(ctx context.Context) error { return ctx.Err() }))
					}
					cancel()
				}
				if c.Query("lose") == "" {
					return
				}
				err := locker.Do(c, testbed.OrderKey, func(ctx context.Context) error {
					b.LoseLeases(t)
					<-ctx.Done()
					return context.Cause(ctx)
				})
				require.ErrorIs(t, err, core.ErrLeaseLost)
			})
			var posts sync.WaitGroup
			for range 20 {
				posts.Go(func() {
					status := testbed.Call(t, r, http.MethodPost, testbed.OrderPath, "").Status
					assert.Contains(t, []int{http.StatusOK, http.StatusConflict}, status)
				})
			}
			posts.Wait()
			require.Equal(t, http.StatusInternalServerError, testbed.Call(t, r, http.MethodPost, testbed.OrderPath+"?lose=1", "").Status)
			want := map[bool]int{false: 1, true: 0}[fallback]
			require.Equal(t, want, strings.Count(said.String(), "kind=context"), said.String())
			require.Equal(t, want, strings.Count(said.String(), "c.Request.Context()"))
		}
	})
}
