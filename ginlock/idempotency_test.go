package ginlock_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// idempotent has one POST /orders/:id, which looks at Idempotency-Key. Its responses to plain writers are conformance's.
func idempotent(t *testing.T, h gin.HandlerFunc) *gin.Engine {
	t.Helper()
	b := testbed.New(t, redistest.Embedded(t))
	store, err := idempotency.New(b.Redis, idempotency.WithPrefix(b.Prefix))
	require.NoError(t, err)
	r := gin.New()
	r.POST("/orders/:id", ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, httplock.WithIdempotency(store), httplock.WithAnonymous()), h)
	return r
}

func withKey(t *testing.T) *http.Request {
	t.Helper()
	r := testbed.Request(t, http.MethodPost, testbed.OrderPath, "{}")
	r.Header.Set("Idempotency-Key", "k")
	return r
}

func TestIdempotency_GinsOwnWaysToAnswer(t *testing.T) {
	for name, answer := range map[string]gin.HandlerFunc{
		"JSON":           func(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"a": 1}) },
		"text":           func(c *gin.Context) { c.String(http.StatusOK, "caf\u00e9") },
		"bytes":          func(c *gin.Context) { c.Data(http.StatusOK, "x/y", []byte("\x00\xff")) },
		"status changed": func(c *gin.Context) { c.Status(500); c.Status(http.StatusAccepted) },
		"abort":          func(c *gin.Context) { c.AbortWithStatusJSON(404, "no") },
		"abort, status":  func(c *gin.Context) { c.AbortWithStatus(http.StatusConflict) },
		"redirect":       func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/elsewhere") },
	} {
		runs, size := 0, 0
		r := idempotent(t, func(c *gin.Context) {
			runs++
			answer(c)
			size = max(0, c.Writer.Size())
		})
		first, second := testbed.Do(r, withKey(t)), testbed.Do(r, withKey(t))
		require.Equal(t, len(first.Body), size, name)
		require.Equal(t, "true", second.Header.Get("Idempotent-Replayed"), name)
		require.Equal(t, [2]any{first.Status, first.Body}, [2]any{second.Status, second.Body}, name)
		for _, header := range []string{"Content-Type", "Location"} {
			require.Equal(t, first.Header[header], second.Header[header], name)
		}
		require.Equal(t, 1, runs, name)
	}
}

// A handler that leaves without a word since its client left has not done its work.
func TestIdempotency_AHandlerThatGivesUpSilentlyIsRunAgain(t *testing.T) {
	runs := 0
	ctx, leave := context.WithCancel(t.Context())
	r := idempotent(t, func(c *gin.Context) {
		if runs++; runs == 1 {
			leave()
			return
		}
		c.String(http.StatusOK, "done")
	})
	for _, ctx := range []context.Context{ctx, t.Context()} {
		require.Empty(t, testbed.Do(r, withKey(t).WithContext(ctx)).Header.Get("Idempotent-Replayed"))
	}
	require.Equal(t, 2, runs)
}
