package ginlock_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

func TestHandlerRunsUnderItsLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		r := gin.New()
		var before, during, after *http.Request
		r.Use(func(c *gin.Context) {
			before = c.Request
			c.Next()
			after = c.Request
			assert.False(t, c.IsAborted())
		})
		r.POST("/orders/:id", ginlock.PerKey(core.NewGuard(b.locker, nil), orderKey), func(c *gin.Context) {
			during = c.Request
			lease, held := core.LeaseFrom(c.Request.Context())
			if assert.True(t, held) {
				assert.Equal(t, "order:"+secret, lease.Key())
			}
			ok(c)
		})
		resp := call(t, r, http.MethodPost, orderPath)
		require.Equal(t, "ok", resp.body)
		require.Same(t, before, after, "the request is restored")
		require.NotSame(t, before, during)
		require.ErrorIs(t, during.Context().Err(), context.Canceled, "the lease is over")
		require.NoError(t, after.Context().Err())
		b.requireFree(t)
	})
}

func TestRefusalAbortsTheChain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		b.hold(t, "order:"+secret)
		r := gin.New()
		r.Use(func(c *gin.Context) {
			c.Next()
			assert.True(t, c.IsAborted())
			assert.True(t, c.Writer.Written())
			assert.Equal(t, http.StatusConflict, c.Writer.Status())
		})
		r.POST("/orders/:id", ginlock.PerKey(core.NewGuard(b.locker, nil), orderKey), mustNotRun(t), mustNotRun(t))
		requireProblem(t, call(t, r, http.MethodPost, orderPath), http.StatusConflict, "conflict")
		require.Equal(t, "POST /orders/:id", (<-b.conflict).Name)
	})
}

func TestConcurrentRequestsNeverOverlap(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const requests = 200
		b := setup(t, env)
		var inside, ran atomic.Int64
		url, client := serve(t, guarded(core.NewGuard(b.locker, nil), func(c *gin.Context) {
			if inside.Add(1) != 1 {
				t.Error("two handlers inside")
			}
			time.Sleep(time.Millisecond) // room for others to come in
			ran.Add(1)
			inside.Add(-1)
			ok(c)
		}))
		var wg sync.WaitGroup
		answers := make(chan answer, requests)
		for range requests {
			wg.Go(func() {
				resp, err := send(client, toServer(t.Context(), t, url+orderPath, "x"))
				assert.NoError(t, err)
				answers <- resp
			})
		}
		wg.Wait()
		close(answers)
		refused := 0
		for resp := range answers {
			if resp.status != http.StatusOK {
				refused++
				requireProblem(t, resp, http.StatusConflict, "conflict")
			}
		}
		require.EqualValues(t, requests-refused, ran.Load())
		require.Positive(t, ran.Load())
		require.Len(t, b.conflict, refused)
	})
}

func TestWaitingRequestsRunInTurn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const requests = 20
		b := setup(t, env)
		var inside atomic.Int64
		url, client := serve(t, guarded(core.NewGuard(b.locker, retry.Policy{MaxWait: time.Minute}), func(c *gin.Context) {
			if inside.Add(1) != 1 {
				t.Error("two handlers inside")
			}
			body, err := c.GetRawData()
			assert.NoError(t, err)
			inside.Add(-1)
			c.String(http.StatusOK, string(body))
		}))
		var wg sync.WaitGroup
		for range requests {
			wg.Go(func() {
				resp, err := send(client, toServer(t.Context(), t, url+orderPath, "hello"))
				if assert.NoError(t, err) {
					assert.Equal(t, "hello", resp.body)
				}
			})
		}
		wg.Wait()
	})
}

func TestClientGoneWhileWaitingNeverRuns(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env)
		release := b.hold(t, "order:"+secret)
		left := make(chan struct{})
		engine := gin.New()
		engine.Use(func(c *gin.Context) {
			defer close(left)
			c.Next()
			assert.True(t, c.IsAborted())
		})
		engine.POST("/orders/:id", ginlock.PerKey(core.NewGuard(b.locker, retry.Policy{MaxWait: time.Hour}), orderKey), mustNotRun(t))
		url, client := serve(t, engine)
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			<-b.conflict
			leave()
		}()
		_, err := send(client, toServer(ctx, t, url+orderPath, strings.Repeat("x", 300_000)))
		require.ErrorIs(t, err, context.Canceled)
		<-left // while the key is still held
		release()
		b.requireFree(t)
	})
}

func TestClientGoneMidHandlerKeepsTheKeyUntilItReturns(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	engine := gin.New()
	engine.Use(func(c *gin.Context) {
		defer close(left)
		c.Next()
	})
	engine.POST("/orders/:id", ginlock.PerKey(core.NewGuard(b.locker, nil), orderKey), func(c *gin.Context) {
		leave()
		<-c.Request.Context().Done()
		_, err := b.rival.TryAcquire(context.Background(), "order:"+secret)
		assert.ErrorIs(t, err, core.ErrConflict)
	})
	url, client := serve(t, engine)
	_, err := send(client, toServer(ctx, t, url+orderPath, ""))
	require.ErrorIs(t, err, context.Canceled)
	<-left
	b.requireFree(t)
}

func TestLostLeaseIs500WhenNothingWasWritten(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, core.WithTTL(time.Second))
		lose := func(c *gin.Context) {
			names := redistest.Keys(t, b.rdb, b.prefix+":lock")
			assert.Len(t, names, 1)
			assert.NoError(t, b.rdb.Del(t.Context(), names...).Err())
			<-c.Request.Context().Done()
			assert.ErrorIs(t, context.Cause(c.Request.Context()), core.ErrLeaseLost)
		}
		for name, test := range map[string]struct {
			handler gin.HandlerFunc
			status  int
		}{
			"nothing written": {lose, http.StatusInternalServerError},
			"only a status": {func(c *gin.Context) {
				c.Status(http.StatusNoContent)
				lose(c)
			}, http.StatusInternalServerError},
			"written": {func(c *gin.Context) {
				ok(c)
				lose(c)
			}, http.StatusOK},
			"written after": {func(c *gin.Context) {
				lose(c)
				ok(c)
			}, http.StatusOK},
		} {
			resp := call(t, guarded(core.NewGuard(b.locker, nil), test.handler), http.MethodPost, orderPath)
			if test.status == http.StatusOK {
				require.Equal(t, http.StatusOK, resp.status, name)
				require.Equal(t, "ok", resp.body, name)
				continue
			}
			require.Empty(t, resp.header.Get("Retry-After"), name)
			requireProblem(t, resp, test.status, "outcome-unknown")
		}
	})
}

func TestKeyHelpers(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t, "k:"+secret)
	guard := core.NewGuard(b.locker, nil)
	for name, test := range map[string]struct {
		key          ginlock.KeyFunc
		path         string
		header, want string // want is the kind of problem
	}{
		"param":             {ginlock.Param("k:", "id"), "/o/" + secret, "", "conflict"},
		"param, escaped":    {ginlock.Param("k:", "id"), "/o/s3cret%2d42", "", "conflict"},
		"param, empty":      {ginlock.Param("k:", "id"), "/o//pay", "", "bad-key"},
		"param, misnamed":   {ginlock.Param("k:", "uid"), "/o/" + secret, "", "internal"},
		"param, unnamed":    {ginlock.Param("k:", ""), "/o/" + secret, "", "internal"},
		"header, unnamed":   {ginlock.Header("k:", ""), "/o/1", "", "internal"},
		"query, unnamed":    {ginlock.Query("k:", ""), "/o/1?=" + secret, "", "internal"},
		"header":            {ginlock.Header("k:", "x-order"), "/o/1", secret, "conflict"},
		"header, missing":   {ginlock.Header("k:", "X-Order"), "/o/1", "", "bad-key"},
		"query":             {ginlock.Query("k:", "q"), "/o/1?q=" + secret + "&q=2", "", "conflict"},
		"query, empty":      {ginlock.Query("k:", "q"), "/o/1?q=", "", "bad-key"},
		"query, missing":    {ginlock.Query("k:", "q"), "/o/1", "", "bad-key"},
		"query, control":    {ginlock.Query("k:", "q"), "/o/1?q=%00", "", "bad-key"},
		"query, oversized":  {ginlock.Query("k:", "q"), "/o/1?q=" + strings.Repeat(secret, 60), "", "bad-key"},
		"json":              {ginlock.JSONField("k:", "o.id"), "/o/1", "", "conflict"},
		"json, missing":     {ginlock.JSONField("k:", "id"), "/o/1", "", "bad-key"},
		"net/http's":        {func(r *http.Request) (string, error) { return "k:" + r.PathValue("id"), nil }, "/o/" + secret, "", "conflict"},
		"joined":            {httplock.Join(ginlock.Param("k:", "id")), "/o/" + secret, "", "conflict"},
		"func":              {ginlock.Func(func(*gin.Context) (string, error) { return "k:" + secret, nil }), "/o/1", "", "conflict"},
		"func, empty":       {ginlock.Func(func(*gin.Context) (string, error) { return "", nil }), "/o/1", "", "bad-key"},
		"func, ours":        {ginlock.Func(func(*gin.Context) (string, error) { return "", errors.New(secret) }), "/o/1", "", "internal"},
		"func, client's":    {ginlock.Func(func(*gin.Context) (string, error) { return "", httplock.BadKey(errors.New(secret)) }), "/o/1", "", "bad-key"},
		"func, core's view": {ginlock.Func(func(*gin.Context) (string, error) { return "", core.ErrInvalidKey }), "/o/1", "", "bad-key"},
	} {
		t.Run(name, func(t *testing.T) {
			engine := gin.New()
			engine.POST("/o/:id", ginlock.PerKey(guard, test.key), mustNotRun(t))
			engine.POST("/o/:id/pay", ginlock.PerKey(guard, test.key), mustNotRun(t))
			r := request(t, http.MethodPost, test.path, `{"o":{"id":"`+secret+`"}}`)
			if test.header != "" {
				r.Header.Set("X-Order", test.header)
			}
			requireProblem(t, do(engine, r), map[string]int{"conflict": 409, "bad-key": 400, "internal": 500}[test.want], test.want)
		})
	}
	t.Run("a misnamed parameter is logged", func(t *testing.T) {
		var log bytes.Buffer
		engine := gin.New()
		engine.POST("/o/:id", ginlock.PerKey(guard, ginlock.Param("k:", "uid"),
			httplock.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))), mustNotRun(t))
		call(t, engine, http.MethodPost, "/o/"+secret)
		require.Contains(t, log.String(), `the route /o/:id has no path parameter \"uid\"`)
		require.NotContains(t, log.String(), secret)
	})
	t.Run("Func makes keys under gin only", func(t *testing.T) {
		_, err := ginlock.Func(func(*gin.Context) (string, error) { return "k", nil })(request(t, http.MethodPost, "/", ""))
		require.ErrorContains(t, err, "ginlock's middleware only")
	})
	engine := gin.New()
	engine.POST("/", ginlock.PerKey(guard, func(*http.Request) (string, error) { panic("mine") }), mustNotRun(t))
	require.PanicsWithValue(t, "mine", func() { call(t, engine, http.MethodPost, "/") })
}

// However a client writes a path, and gin is told to read it, a value has one key.
func TestPathParametersAreDecodedOnce(t *testing.T) {
	guard := core.NewGuard(setup(t, redistest.Embedded(t)).locker, nil)
	for name, configure := range map[string]func(*gin.Engine){
		"default":       func(*gin.Engine) {},
		"raw":           func(e *gin.Engine) { e.UseRawPath = true },
		"raw, left":     func(e *gin.Engine) { e.UseRawPath, e.UnescapePathValues = true, false },
		"escaped":       func(e *gin.Engine) { e.UseEscapedPath = true },
		"escaped, left": func(e *gin.Engine) { e.UseEscapedPath, e.UnescapePathValues = true, false },
	} {
		t.Run(name, func(t *testing.T) {
			engine := gin.New()
			configure(engine)
			engine.POST("/o/:id", ginlock.PerKey(guard, ginlock.Param("", "id")), func(c *gin.Context) {
				lease, _ := ginlock.Lease(c)
				c.String(http.StatusOK, lease.Key())
			})
			for path, want := range map[string]string{
				"/o/%34%32": "42", "/o/a%20b": "a b", "/o/42%2525": "42%25", "/o/%34%32%2525": "42%25", "/o/%34%32%25": "42%",
			} {
				require.Equal(t, want, call(t, engine, http.MethodPost, path).body, path)
			}
		})
	}
}

func TestKeyFunctionsSeeTheRouteAndLeaveTheBody(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
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
	engine.POST("/files/:dir/*path", ginlock.PerKey(core.NewGuard(b.locker, nil), key), func(c *gin.Context) {
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
	require.Equal(t, "another", do(engine, request(t, http.MethodPost, "/files/a/b/c", `{"id":7}`)).body)

	// Behind a ServeMux that knows path values of its own.
	inner := gin.New()
	mux := http.NewServeMux()
	mux.HandleFunc("/{id}/orders/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		inner.ServeHTTP(w, r)
		assert.Equal(t, "acme", r.PathValue("id"))
	})
	inner.POST("/:tenant/orders/:id", ginlock.PerKey(core.NewGuard(b.locker, nil), ginlock.Param("", "id")), func(c *gin.Context) {
		lease, _ := core.LeaseFrom(c.Request.Context())
		c.String(http.StatusOK, lease.Key())
	})
	require.Equal(t, "42", call(t, mux, http.MethodPost, "/acme/orders/42").body)
}

func TestUnmatchedRoutesAndSafeMethodsPass(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	b.hold(t, "k")
	key := func(*http.Request) (string, error) { return "k", nil }
	engine := gin.New()
	engine.HandleMethodNotAllowed = true
	engine.Use(ginlock.PerKey(core.NewGuard(b.locker, nil), key))
	engine.GET("/o", ok)
	engine.POST("/o", mustNotRun(t))
	engine.NoRoute(func(c *gin.Context) { c.String(http.StatusNotFound, "nothing here") })

	resp := call(t, engine, http.MethodPost, "/nowhere")
	require.Equal(t, http.StatusNotFound, resp.status)
	require.Equal(t, "nothing here", resp.body)
	require.Equal(t, http.StatusMethodNotAllowed, call(t, engine, http.MethodPut, "/o").status)
	require.Equal(t, "ok", call(t, engine, http.MethodGet, "/o").body)
	requireProblem(t, call(t, engine, http.MethodPost, "/o"), http.StatusConflict, "conflict")

	engine = gin.New()
	engine.Use(ginlock.PerKey(core.NewGuard(b.locker, nil), key, httplock.LockSafeMethods()))
	engine.GET("/o", mustNotRun(t))
	engine.HEAD("/o", mustNotRun(t))
	requireProblem(t, call(t, engine, http.MethodGet, "/o"), http.StatusConflict, "conflict")
	resp = call(t, engine, http.MethodHead, "/o")
	require.Equal(t, http.StatusConflict, resp.status)
	require.Empty(t, resp.body)
}

func TestMistakesFailClosed(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	guard := core.NewGuard(b.locker, nil)
	for name, test := range map[string]struct {
		guard *core.Guard
		key   ginlock.KeyFunc
		opts  []httplock.Option
	}{
		"nil guard": {nil, orderKey, nil},
		"bad guard": {core.NewGuard(b.locker, nil, core.LeaseTTL(-1)), orderKey, nil},
		"nil key":   {guard, nil, nil},
		"nil func":  {guard, ginlock.Func(nil), nil},
		"option":    {guard, orderKey, []httplock.Option{httplock.AllowHeaders("Cookie")}},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := ginlock.New(test.guard, test.key, test.opts...)
			require.ErrorIs(t, err, core.ErrInvalidOption)
			require.Nil(t, h)

			engine := gin.New()
			engine.Use(ginlock.PerKey(test.guard, test.key, test.opts...))
			engine.POST("/orders/:id", mustNotRun(t))
			engine.GET("/orders/:id", mustNotRun(t))
			requireProblem(t, call(t, engine, http.MethodPost, orderPath), http.StatusInternalServerError, "misconfigured")
			requireProblem(t, call(t, engine, http.MethodGet, orderPath), http.StatusInternalServerError, "misconfigured")
			require.Equal(t, http.StatusNotFound, call(t, engine, http.MethodPost, "/nowhere").status)
		})
	}
	h, err := ginlock.New(guard, orderKey)
	require.NoError(t, err)
	require.NotNil(t, h)
}

func TestPanicsGiveTheKeyBack(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	lock := ginlock.PerKey(core.NewGuard(b.locker, nil), orderKey)
	for _, value := range []any{"boom", errors.New("boom"), http.ErrAbortHandler} {
		boom := func(*gin.Context) { panic(value) }
		for name, chain := range map[string][]gin.HandlerFunc{
			"recovery outside": {gin.Recovery(), lock, boom},
			"recovery inside":  {lock, gin.Recovery(), boom},
			"no recovery":      {lock, boom},
		} {
			engine := gin.New()
			var during, after *http.Request
			if name == "recovery outside" {
				engine.Use(func(c *gin.Context) {
					during = c.Request
					c.Next()
					after = c.Request
				})
			}
			engine.POST("/orders/:id", chain...)
			if name == "no recovery" {
				require.PanicsWithValue(t, value, func() { call(t, engine, http.MethodPost, orderPath) })
			} else {
				resp := call(t, engine, http.MethodPost, orderPath)
				if value == http.ErrAbortHandler { //nolint:errorlint // the very value
					require.Equal(t, http.StatusOK, resp.status, "gin takes the connection for broken")
				} else {
					require.Equal(t, http.StatusInternalServerError, resp.status)
				}
			}
			require.Same(t, during, after, "the request is restored")
			b.requireFree(t)
		}
	}
}

func TestPanicBehindAServer(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	url, client := serve(t, guarded(core.NewGuard(b.locker, nil), func(*gin.Context) { panic(http.ErrAbortHandler) }))
	_, err := send(client, toServer(t.Context(), t, url+orderPath, ""))
	require.ErrorIs(t, err, io.EOF)
	b.requireFree(t)
}

func TestNestedGuards(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	guard := core.NewGuard(b.locker, nil)
	inner := ginlock.PerKey(guard, ginlock.Query("inner:", "inner"))
	afterInner := false
	engine := gin.New()
	engine.POST("/orders/:id", ginlock.PerKey(guard, orderKey), func(c *gin.Context) {
		c.Next()
		afterInner = true
	}, ginlock.PerKey(guard, orderKey), inner, ok)

	require.Equal(t, "ok", call(t, engine, http.MethodPost, orderPath+"?inner=1").body, "the same key again, and another one")
	release := b.hold(t, "inner:1")
	afterInner = false
	requireProblem(t, call(t, engine, http.MethodPost, orderPath+"?inner=1"), http.StatusConflict, "conflict")
	require.True(t, afterInner, "the outer guard's chain went on")
	b.requireFree(t)
	release()
}

func TestStreamsKeepTheirKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		b := setup(t, env, core.WithTTL(900*time.Millisecond))
		more := make(chan struct{})
		url, client := serve(t, guarded(core.NewGuard(b.locker, nil), func(c *gin.Context) {
			n := 0
			gone := c.Stream(func(io.Writer) bool {
				n++
				c.SSEvent("tick", n)
				if n == 1 {
					c.Writer.Flush()
					<-more
				}
				return n < 3
			})
			assert.False(t, gone)
			assert.NoError(t, c.Request.Context().Err())
		}))
		resp, err := client.Do(toServer(t.Context(), t, url+orderPath, ""))
		require.NoError(t, err)
		require.Contains(t, resp.Header.Get("Content-Type"), "text/event-stream")
		events := bufio.NewReader(resp.Body)
		first, err := events.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "event:tick\n", first)

		for range 5 { // well over one lease
			<-b.renewed
		}
		_, err = b.rival.TryAcquire(t.Context(), "order:"+secret)
		require.ErrorIs(t, err, core.ErrConflict)
		close(more)
		rest, err := io.ReadAll(events)
		require.NoError(t, err)
		require.Contains(t, string(rest), "data:3")
		require.NoError(t, resp.Body.Close())
		b.requireFree(t)
	})
}

func TestHijackAndResponseController(t *testing.T) {
	b := setup(t, redistest.Embedded(t))
	// What was flushed reaches the client before the key is free.
	guard := core.NewGuard(b.locker, retry.Policy{MaxWait: time.Minute})
	engine := gin.New()
	engine.Use(ginlock.PerKey(guard, func(*http.Request) (string, error) { return "k", nil }))
	engine.POST("/hijack", func(c *gin.Context) {
		conn, _, err := c.Writer.Hijack()
		if assert.NoError(t, err) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
			_ = conn.Close()
		}
	})
	engine.POST("/controller", func(c *gin.Context) {
		rc := http.NewResponseController(c.Writer)
		assert.NoError(t, rc.SetWriteDeadline(time.Now().Add(time.Minute)))
		assert.NoError(t, rc.Flush())
		_, _ = c.Writer.WriteString("controlled")
	})
	engine.POST("/stream", func(c *gin.Context) {
		c.Stream(func(w io.Writer) bool {
			_, _ = io.WriteString(w, "streamed")
			return false
		})
	})
	for name, h := range map[string]http.Handler{
		"gin": engine,
		// net/http middleware around an engine: gin takes the writer to be a server's.
		"gin behind httplock": httplock.PerKey(guard, func(*http.Request) (string, error) { return "k", nil })(engine),
	} {
		t.Run(name, func(t *testing.T) {
			url, client := serve(t, h)
			for path, want := range map[string]string{"/hijack": "hijacked", "/controller": "controlled", "/stream": "streamed"} {
				resp, err := send(client, toServer(t.Context(), t, url+path, ""))
				require.NoError(t, err)
				require.Equal(t, want, resp.body)
			}
		})
	}
}
