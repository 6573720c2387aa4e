package ginlock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	gin.DefaultErrorWriter = io.Discard // stacks of panics that are meant
	redistest.Main(m)
}

var orderKey = ginlock.Param("order:", "id")

// guarded serves handlers at POST and GET /orders/:id, behind PerKey.
func guarded(guard *core.Guard, handlers ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	chain := append([]gin.HandlerFunc{ginlock.PerKey(guard, orderKey)}, handlers...)
	r.POST("/orders/:id", chain...)
	r.GET("/orders/:id", chain...)
	return r
}

func ok(c *gin.Context) { c.String(http.StatusOK, "ok") }

func mustNotRun(t *testing.T) gin.HandlerFunc {
	t.Helper()
	return func(*gin.Context) { t.Error("the handler ran") }
}

// gin keeps a status back until there is something to write.
func TestPerKey_AStatusAloneIsNoResponseWhenTheLeaseIsLost(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t), core.WithTTL(time.Second))
	resp := testbed.Call(t, guarded(b.Locker.Guard(core.RejectConflicts), func(c *gin.Context) {
		c.Status(http.StatusNoContent)
		b.LoseLeases(t)
		<-c.Request.Context().Done()
	}), http.MethodPost, testbed.OrderPath, "")
	testbed.RequireProblem(t, resp, http.StatusInternalServerError, "outcome-unknown", false)
}

func TestKeyHelpers(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.HoldKey(t, "k:"+testbed.Secret)
	guard := b.Locker.Guard(core.RejectConflicts)
	for name, test := range map[string]struct {
		key          ginlock.KeyFunc
		path         string
		header, want string // want is the kind of problem
	}{
		"param":             {ginlock.Param("k:", "id"), "/o/" + testbed.Secret, "", "conflict"},
		"param, empty":      {ginlock.Param("k:", "id"), "/o//pay", "", "bad-key"},
		"param, misnamed":   {ginlock.Param("k:", "uid"), "/o/" + testbed.Secret, "", "internal"},
		"header":            {ginlock.Header("k:", "x-order"), "/o/1", testbed.Secret, "conflict"},
		"query":             {ginlock.Query("k:", "q"), "/o/1?q=" + testbed.Secret + "&q=2", "", "conflict"},
		"json":              {ginlock.JSONField("k:", "o.id"), "/o/1", "", "conflict"},
		"net/http's":        {func(r *http.Request) (string, error) { return "k:" + r.PathValue("id"), nil }, "/o/" + testbed.Secret, "", "conflict"},
		"joined":            {httplock.Join(ginlock.Param("k:", "id")), "/o/" + testbed.Secret, "", "conflict"},
		"func":              {ginlock.Func(func(*gin.Context) (string, error) { return "k:" + testbed.Secret, nil }), "/o/1", "", "conflict"},
		"func, empty":       {ginlock.Func(func(*gin.Context) (string, error) { return "", nil }), "/o/1", "", "bad-key"},
		"func, ours":        {ginlock.Func(func(*gin.Context) (string, error) { return "", errors.New(testbed.Secret) }), "/o/1", "", "internal"},
		"func, client's":    {ginlock.Func(func(*gin.Context) (string, error) { return "", httplock.BadKey(errors.New(testbed.Secret)) }), "/o/1", "", "bad-key"},
		"func, core's view": {ginlock.Func(func(*gin.Context) (string, error) { return "", core.ErrInvalidKey }), "/o/1", "", "bad-key"},
	} {
		t.Run(name, func(t *testing.T) {
			engine := gin.New()
			engine.Use(func(c *gin.Context) {
				c.Next()
				assert.True(t, c.IsAborted())
				assert.True(t, c.Writer.Written())
			})
			engine.POST("/o/:id", ginlock.PerKey(guard, test.key), mustNotRun(t), mustNotRun(t))
			engine.POST("/o/:id/pay", ginlock.PerKey(guard, test.key), mustNotRun(t))
			r := testbed.Request(t, http.MethodPost, test.path, `{"o":{"id":"`+testbed.Secret+`"}}`)
			if test.header != "" {
				r.Header.Set("X-Order", test.header)
			}
			testbed.RequireProblem(t, testbed.Do(engine, r), map[string]int{"conflict": 409, "bad-key": 400, "internal": 500}[test.want], test.want, test.want == "conflict")
		})
	}
}

func TestKeyHelpers_FuncMakesKeysUnderGinOnly(t *testing.T) {
	_, err := ginlock.Func(func(*gin.Context) (string, error) { return "k", nil })(testbed.Request(t, http.MethodPost, "/", ""))
	require.ErrorContains(t, err, "ginlock's middleware only")
}

// useEscapedPath sets what gin has since its release 1.12.
func useEscapedPath(e *gin.Engine) {
	if field := reflect.ValueOf(e).Elem().FieldByName("UseEscapedPath"); field.IsValid() {
		field.SetBool(true)
	}
}

// However a client writes a path, and gin is told to read it, a value has one key.
func TestPathParams_AreDecodedOnce(t *testing.T) {
	guard := testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts)
	for name, configure := range map[string]func(*gin.Engine){
		"default":       func(*gin.Engine) {},
		"raw":           func(e *gin.Engine) { e.UseRawPath = true },
		"raw, left":     func(e *gin.Engine) { e.UseRawPath, e.UnescapePathValues = true, false },
		"escaped":       useEscapedPath,
		"escaped, left": func(e *gin.Engine) { useEscapedPath(e); e.UnescapePathValues = false },
	} {
		t.Run(name, func(t *testing.T) {
			engine := gin.New()
			configure(engine)
			engine.RemoveExtraSlash = true
			for _, pattern := range []string{"/o/:id", "/t/:tenant/o/:id", "/rest/*id"} {
				engine.POST(pattern, ginlock.PerKey(guard, ginlock.Param("", "id")), func(c *gin.Context) {
					lease, _ := ginlock.Lease(c)
					c.String(http.StatusOK, lease.Key())
				})
			}
			for path, want := range map[string]string{
				"/o/%34%32": "42", "/o/a%20b": "a b", "/o/42%2525": "42%25", "/o/%34%32%2525": "42%25", "/o/%34%32%25": "42%",
				"/t/%34%32/o/%2534%2532": "%34%32", "/t/%2534%2532/o/%34%32": "42", "//o///%34%2525": "4%25", "/rest/a/%34%2525": "/a/4%25",
				"/o/42%252F7": "42%2F7", "/rest/42%2F7": "/42/7",
			} {
				require.Equal(t, want, testbed.Call(t, engine, http.MethodPost, path, "").Body, path)
			}
		})
	}
}

func TestPerKey_KeyFunctionsSeeTheRouteAndLeaveTheBody(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	seen := make(chan *http.Request, 1)
	key := httplock.Join(
		ginlock.JSONField("", "id"),
		ginlock.Func(func(c *gin.Context) (string, error) {
			seen <- c.Request
			body, err := c.GetRawData()
			assert.NoError(t, err)
			assert.JSONEq(t, `{"id":7}`, string(body), "what JSONField left")
			c.Request.Body = io.NopCloser(strings.NewReader("another"))
			return c.GetString("user"), nil
		}),
		func(r *http.Request) (string, error) {
			assert.Equal(t, "/files/:dir/*path", r.Pattern)
			return r.PathValue("dir") + r.PathValue("path"), nil
		})
	engine := gin.New()
	engine.Use(func(c *gin.Context) {
		c.Set("user", "ann")
		before := c.Request
		c.Next()
		assert.Same(t, before, c.Request)
	})
	engine.POST("/files/:dir/*path", ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), key), func(c *gin.Context) {
		lease, held := core.LeaseFrom(c.Request.Context())
		if assert.True(t, held) {
			assert.Equal(t, "7|ann|a/b/c", lease.Key())
		}
		assert.NotSame(t, <-seen, c.Request)
		assert.Empty(t, c.Request.PathValue("dir"), "only the key function has it")
		body, err := c.GetRawData()
		assert.NoError(t, err)
		c.String(http.StatusOK, string(body))
	})
	require.Equal(t, "another", testbed.Do(engine, testbed.Request(t, http.MethodPost, "/files/a/b/c", `{"id":7}`)).Body)

	// Behind a ServeMux that knows path values of its own.
	inner := gin.New()
	mux := http.NewServeMux()
	mux.HandleFunc("/{id}/orders/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r)
		assert.Equal(t, "acme", r.PathValue("id"))
	})
	inner.POST("/:tenant/orders/:id", ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), ginlock.Param("", "id")), func(c *gin.Context) {
		lease, _ := core.LeaseFrom(c.Request.Context())
		c.String(http.StatusOK, lease.Key())
	})
	require.Equal(t, "42", testbed.Call(t, mux, http.MethodPost, "/acme/orders/42", "").Body)
}

func TestNew_ReturnsMistakes(t *testing.T) {
	guard := testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts)
	for _, key := range []ginlock.KeyFunc{nil, ginlock.Func(nil)} {
		h, err := ginlock.New(guard, key)
		require.ErrorIs(t, err, core.ErrInvalidOption)
		require.Nil(t, h)
	}
}

// net/http middleware around an engine: gin takes the writer to be a server's.
func TestPerKey_BehindHTTPLock(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	// What was flushed reaches the client before the key is free.
	guard := b.Locker.Guard(retry.Policy{MaxWait: time.Minute})
	key := func(*http.Request) (string, error) { return "k", nil }
	engine := gin.New()
	engine.Use(ginlock.PerKey(guard, key))
	engine.POST("/hijacked", func(c *gin.Context) {
		conn, _, err := c.Writer.Hijack()
		if assert.NoError(t, err) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
			_ = conn.Close()
		}
	})
	engine.POST("/streamed", func(c *gin.Context) {
		c.Stream(func(w io.Writer) bool {
			_, _ = io.WriteString(w, "streamed")
			return false
		})
	})
	url, client := testbed.Serve(t, httplock.PerKey(guard, key)(engine))
	for _, want := range []string{"hijacked", "streamed"} {
		resp, err := testbed.Send(client, testbed.ToServer(t.Context(), t, url+"/"+want, ""))
		require.NoError(t, err)
		require.Equal(t, want, resp.Body)
	}
}

// As gin.CreateTestContext makes one.
func TestPerKey_AContextWithoutARequestHasNoLease(t *testing.T) {
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	_, held := ginlock.Lease(c)
	require.False(t, held)
}

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

func TestParking_LostReplyOfTheQueueIsNotTakenForARefusal(t *testing.T) {
	env := redistest.Real(t)
	b := testbed.New(t, env)
	b.Hold(t)
	proxy := redistest.NewProxy(t, env.Addr)
	proxied := &redistest.Env{Addr: proxy.Addr, Prefix: env.Prefix}
	queue := testbed.NewQueue(t, proxied.Client(t), "ship", delayqueue.WithPrefix(env.Prefix))
	proxy.LoseReply(func([]byte) bool { return true })
	engine := gin.New()
	engine.POST("/orders/:id", ginlock.PerKey(b.Locker.Guard(delayqueue.Policy(queue)), orderKey, httplock.WithAnonymous()), mustNotRun(t))
	resp := testbed.Call(t, engine, http.MethodPost, testbed.OrderPath, "")
	content := resp.Body
	require.Equal(t, http.StatusServiceUnavailable, resp.Status)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Contains(t, content, "could not be confirmed that the request was queued")
}

func TestWithPrincipal_IsForGin(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	b.Hold(t)
	guard := b.Locker.Guard(new(testbed.Parking))
	ann := ginlock.WithPrincipal(func(*gin.Context) (string, error) { return "ann", nil })
	still := httplock.WithReauthorize(func(*http.Request, string) error { return nil })
	h := httplock.PerKey(guard, func(*http.Request) (string, error) { return testbed.OrderKey, nil }, ann, still)(http.NotFoundHandler())
	testbed.RequireProblem(t, testbed.Call(t, h, http.MethodPost, testbed.OrderPath, ""), http.StatusInternalServerError, "internal", false)
	_, err := ginlock.New(guard, orderKey, ginlock.WithPrincipal(nil))
	require.ErrorIs(t, err, core.ErrInvalidOption)
}

// What the function leaves in the place of the body of c.Request is the handlers'.
func TestWithPrincipal_MayPutTheBodyBack(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	r := gin.New()
	r.POST("/orders/:id", ginlock.PerKey(b.Locker.Guard(core.RejectConflicts), orderKey, ginlock.WithPrincipal(func(c *gin.Context) (string, error) {
		content, err := io.ReadAll(c.Request.Body)
		c.Request.Body = io.NopCloser(bytes.NewReader(content))
		return "ann", err
	})), func(c *gin.Context) {
		content, err := io.ReadAll(c.Request.Body)
		assert.NoError(t, err)
		assert.Equal(t, 2<<20, len(content)) //nolint:testifylint // Len prints it
	})
	require.Equal(t, http.StatusOK, testbed.Call(t, r, http.MethodPost, testbed.OrderPath, strings.Repeat("x", 2<<20)).Status)
}

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
