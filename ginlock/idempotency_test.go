package ginlock_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// TestIdempotency_RequestsMadeTwiceHaveTheFirstResponse is long since a third of it is its table.
func TestIdempotency_RequestsMadeTwiceHaveTheFirstResponse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := testbed.New(t, env)
		store, err := idempotency.New(env.Client(t), idempotency.WithPrefix(env.Prefix))
		require.NoError(t, err)
		for name, test := range map[string]struct {
			handler gin.HandlerFunc
			status  int
			body    string
			kept    bool
		}{
			"JSON":           {func(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"a": 1}) }, 201, `{"a":1}`, true},
			"text":           {func(c *gin.Context) { c.String(http.StatusOK, "caf\u00e9") }, 200, "caf\u00e9", true},
			"bytes":          {func(c *gin.Context) { c.Data(http.StatusOK, "x/y", []byte("\x00\xff")) }, 200, "\x00\xff", true},
			"writer":         {func(c *gin.Context) { c.Status(202); _, _ = c.Writer.Write([]byte("a")) }, 202, "a", true},
			"status alone":   {func(c *gin.Context) { c.Status(http.StatusNoContent) }, 204, "", true},
			"status changed": {func(c *gin.Context) { c.Status(500); c.Status(http.StatusAccepted) }, 202, "", true},
			"nothing":        {func(*gin.Context) {}, 200, "", true},
			"abort":          {func(c *gin.Context) { c.AbortWithStatusJSON(404, "no") }, 404, `"no"`, true},
			"abort, status":  {func(c *gin.Context) { c.AbortWithStatus(http.StatusConflict) }, 409, "", true},
			"redirect":       {func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/elsewhere") }, 303, "", true},
			"failure":        {func(c *gin.Context) { c.AbortWithStatus(http.StatusBadGateway) }, 502, "", false},
			"failed stream":  {func(c *gin.Context) { c.Status(http.StatusBadGateway); c.Writer.Flush() }, 502, "", false},
			"stream": {func(c *gin.Context) {
				c.SSEvent("a", "b")
				c.Writer.Flush()
			}, 200, "event:a\ndata:b\n\n", true},
		} {
			var runs atomic.Int64
			var size int
			r := gin.New()
			r.Use(func(c *gin.Context) {
				before := c.Writer
				c.Next()
				assert.Same(t, before, c.Writer, "the writer is released")
				size = c.Writer.Size()
			})
			r.POST("/orders/:id", ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, httplock.WithIdempotency(store), httplock.WithAnonymous()), func(c *gin.Context) {
				runs.Add(1)
				c.Header("Etag", "v")
				c.Header("Set-Cookie", "no")
				test.handler(c)
			})
			url, client := testbed.Serve(t, r)
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			post := func() (*http.Response, string) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+testbed.OrderPath, strings.NewReader("{}"))
				require.NoError(t, err)
				req.Header.Set("Idempotency-Key", `"`+name+`"`)
				resp, err := client.Do(req)
				require.NoError(t, err)
				defer func() { _ = resp.Body.Close() }()
				content, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				return resp, string(content)
			}
			first, body := post()
			require.Equal(t, test.status, first.StatusCode, name)
			require.Equal(t, test.body, body, name)
			require.Equal(t, len(body), max(size, 0), name)
			second, again := post()
			switch {
			case name == "stream":
				require.Equal(t, http.StatusConflict, second.StatusCode, again)
				require.Contains(t, again, "response-not-kept")
			case test.kept:
				require.Equal(t, "true", second.Header.Get("Idempotent-Replayed"), name)
				require.Equal(t, test.status, second.StatusCode, name)
				require.Equal(t, body, again, name)
				for _, header := range []string{"Content-Type", "Etag", "Location"} {
					require.Equal(t, first.Header[header], second.Header[header], "%s: %s", name, header)
				}
				require.NotContains(t, second.Header, "Set-Cookie")
			default:
				require.NotContains(t, second.Header, "Idempotent-Replayed")
			}
			wanted := int64(1)
			if !test.kept {
				wanted = 2
			}
			require.Equal(t, wanted, runs.Load(), name)
		}
	})
}

// Recovery in front of the guard answers in the handler's place: that is not kept.
func TestIdempotency_APanicIsNoResponse(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	store, err := idempotency.New(b.Redis, idempotency.WithPrefix(b.Prefix))
	require.NoError(t, err)
	r := gin.New()
	r.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusTeapot) }))
	var runs atomic.Int64
	r.POST("/orders/:id", ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, httplock.WithIdempotency(store), httplock.WithAnonymous()), func(c *gin.Context) {
		if runs.Add(1) == 1 {
			panic("no")
		}
		ok(c)
	})
	url, client := testbed.Serve(t, r)
	for _, want := range []int{http.StatusTeapot, http.StatusOK} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+testbed.OrderPath, nil)
		require.NoError(t, err)
		req.Header.Set("Idempotency-Key", "k")
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode)
		require.Empty(t, resp.Header.Get("Idempotent-Replayed"))
	}
}

// A handler that leaves without a word since its client left has not done its work.
func TestIdempotency_AHandlerThatGivesUpSilentlyIsRunAgain(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	store, err := idempotency.New(b.Redis, idempotency.WithPrefix(b.Prefix))
	require.NoError(t, err)
	var runs atomic.Int64
	ctx, leave := context.WithCancel(t.Context())
	r := gin.New()
	r.POST("/orders/:id", ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, httplock.WithIdempotency(store), httplock.WithAnonymous()), func(c *gin.Context) {
		if runs.Add(1) == 1 {
			leave()
			return
		}
		c.String(http.StatusOK, "done")
	})
	for _, ctx := range []context.Context{ctx, t.Context()} {
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, testbed.OrderPath, strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		require.Empty(t, w.Header().Get("Idempotent-Replayed"))
	}
	require.EqualValues(t, 2, runs.Load())
}
