package ginlock_test

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/embedded"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// shop is a bench with a queue, and an engine whose conflicts are parked on it.
type shop struct {
	*testbed.Fixture
	queue  *delayqueue.Queue
	guard  *core.Guard
	engine *gin.Engine
}

func openShop(t *testing.T, env *redistest.Env, opts ...delayqueue.Option) *shop {
	t.Helper()
	s := &shop{Fixture: testbed.New(t, env), engine: gin.New()}
	var err error
	s.queue, err = delayqueue.New(s.Redis, "ship", append([]delayqueue.Option{delayqueue.WithPrefix(env.Prefix)}, opts...)...)
	require.NoError(t, err)
	s.guard = s.Locker.Guard(delayqueue.Policy(s.queue))
	s.engine.Use(func(c *gin.Context) { c.Set("user", "ann") })
	s.engine.Any("/tickets/*path", gin.WrapH(httplock.TicketHandler(s.queue, func(r *http.Request, _ delayqueue.Status) bool {
		return r.Header.Get("X-Stranger") == ""
	})))
	return s
}

func (s *shop) lock(opts ...httplock.Option) gin.HandlerFunc {
	return ginlock.PerKey(s.guard, orderKey, append([]httplock.Option{httplock.WithStatusPath("/tickets/")}, opts...)...)
}

// work starts a worker that replays through the engine.
func (s *shop) work(t *testing.T) {
	t.Helper()
	testbed.Work(t, s.queue, s.Locker, httplock.Replay(s.engine, httplock.WithReplayReauthorize(stillAnn)),
		delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
}

// ann has the principal be what middleware in front left in gin's context.
func ann() httplock.Option {
	return func(m *httplock.Middleware) error {
		return cmp.Or(ginlock.WithPrincipal(func(c *gin.Context) (string, error) { return c.GetString("user"), nil })(m), httplock.WithReauthorize(stillAnn)(m))
	}
}

// stillAnn allows anonymous requests too: the worker asks about those of all routes.
func stillAnn(_ *http.Request, principal string) error {
	if principal != "ann" && principal != "" {
		return httplock.ErrForbidden
	}
	return nil
}

type ticket struct {
	ID                  string
	State               string
	Attempts, Conflicts int
}

// park sends a request that must be parked, and returns where its ticket is.
func (s *shop) park(t *testing.T, r *http.Request) (location string) {
	t.Helper()
	return testbed.RequireParked(t, testbed.Do(s.engine, r))
}

func (s *shop) ticket(t *testing.T, location string) ticket {
	t.Helper()
	resp := testbed.Call(t, s.engine, http.MethodGet, location, "")
	content := resp.Body
	require.NotContains(t, content, testbed.Secret)
	var got ticket
	require.NoError(t, json.Unmarshal([]byte(content), &got))
	if got.State == "done" {
		require.Equal(t, http.StatusSeeOther, resp.Status, content)
		require.Equal(t, got.ID+"/result", resp.Header.Get("Location"))
	} else {
		require.Equal(t, http.StatusOK, resp.Status, content)
	}
	require.Equal(t, location, "/tickets/"+got.ID)
	return got
}

func (s *shop) awaitState(t *testing.T, location, state string) ticket {
	t.Helper()
	var got ticket
	redistest.Eventually(t, func() bool {
		got = s.ticket(t, location)
		return got.State == state
	}, "the ticket becomes "+state)
	return got
}

// assertAsParked asserts that a replay has what the parked request had, but for its credentials.
func assertAsParked(t *testing.T, c *gin.Context, body []byte) {
	parked, replayed := httplock.Replayed(c.Request.Context())
	assert.True(t, replayed)
	assert.Len(t, parked.ID, 32)
	assert.Equal(t, "ann", parked.Principal)
	lease, held := core.LeaseFrom(c.Request.Context())
	if assert.True(t, held) {
		assert.Equal(t, "order:a/"+testbed.Secret, lease.Key())
	}
	assert.Equal(t, "a/"+testbed.Secret, c.Param("id"))
	assert.Equal(t, []string{"1", "2"}, c.QueryArray("x"))
	assert.Equal(t, []string{"p", "q"}, c.Request.Header["X-Tag"])
	assert.Equal(t, "application/octet-stream", c.ContentType())
	assert.Empty(t, c.GetHeader("Authorization"))
	assert.Empty(t, c.Request.Host)
	assert.Equal(t, "192.0.2.1", c.ClientIP())
	got, err := io.ReadAll(c.Request.Body)
	assert.NoError(t, err)
	assert.Equal(t, sha256.Sum256(body), sha256.Sum256(got), "the body is as it was sent")
}

func TestParking_ParkedRequestRunsWhenItsTurnComes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := openShop(t, env)
		s.engine.UseRawPath = true
		useEscapedPath(s.engine)      // in its place
		random := make([]byte, 1<<20) // at the cap
		_, _ = rand.Read(random)
		body := string(random)
		ran := make(chan struct{}, 1)
		s.engine.POST("/orders/:id/ship", s.lock(httplock.WithAllowedHeaders("X-Tag"), ann()), func(c *gin.Context) {
			assertAsParked(t, c, random)
			n := 0 // a stream that nobody listens to
			c.Stream(func(io.Writer) bool {
				n++
				c.SSEvent("tick", n)
				return n < 3
			})
			ran <- struct{}{}
		})
		release := s.HoldKey(t, "order:a/"+testbed.Secret)
		ship := func(body string) *http.Request {
			r := testbed.Request(t, http.MethodPost, "http://evil.example/orders/a%2F"+testbed.Secret+"/ship?x=1&x=2", body)
			r.Header["X-Tag"] = []string{"p", "q"}
			r.Header.Set("Content-Type", "application/octet-stream")
			r.Header.Set("Authorization", "Bearer "+testbed.Secret)
			return r
		}
		location := s.park(t, ship(body))
		require.Equal(t, "queued", s.ticket(t, location).State)

		testbed.RequireProblem(t, testbed.Do(s.engine, ship(body+"x")), http.StatusRequestEntityTooLarge, "body-too-large", false)
		stats, err := s.queue.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, stats.Queued, "nothing was stored")

		s.work(t)
		release()
		<-ran
		done := s.awaitState(t, location, "done")
		require.Equal(t, 1, done.Attempts)
		result := testbed.Call(t, s.engine, http.MethodGet, location+"/result", "")
		require.Equal(t, http.StatusOK, result.Status)
		require.Regexp(t, "^text/event-stream(;charset=utf-8)?$", result.Header.Get("Content-Type"))
		require.Equal(t, "event:tick\ndata:1\n\nevent:tick\ndata:2\n\nevent:tick\ndata:3\n\n", result.Body)
		released := testbed.Take(t, s.Rival, "order:a/"+testbed.Secret)
		require.NoError(t, released.Release(t.Context()))

		unknown := testbed.Call(t, s.engine, http.MethodGet, "/tickets/"+strings.Repeat("0", 32), "")
		testbed.RequireProblem(t, unknown, http.StatusNotFound, "no-such-ticket", false)
		for _, target := range []string{location, location + "/result"} {
			stranger := testbed.Request(t, http.MethodGet, target, "")
			stranger.Header.Set("X-Stranger", "1")
			require.Equal(t, unknown, testbed.Do(s.engine, stranger))
		}
	})
}

func TestParking_ReplaysThatNeverRunExpire(t *testing.T) {
	s := openShop(t, redistest.Embedded(t), delayqueue.WithMaxAttempts(2), delayqueue.WithMaxAge(2*time.Second))
	s.engine.Use(func(c *gin.Context) {
		if c.Query("auth") != "" && c.GetHeader("Authorization") == "" { // a replay has none
			c.AbortWithStatus(http.StatusUnauthorized)
		}
	})
	byHeader := func(opts ...httplock.Option) gin.HandlerFunc {
		return ginlock.PerKey(s.guard, ginlock.Header("order:", "X-Order"), append(opts, httplock.WithStatusPath("/tickets/"), ann())...)
	}
	ran := make(chan string, 1)
	s.engine.POST("/orders/:id", s.lock(ann()), mustNotRun(t))
	s.engine.POST("/forgotten", byHeader(), mustNotRun(t))
	s.engine.POST("/stored", byHeader(httplock.WithAllowedHeaders("X-Order")), func(c *gin.Context) { ran <- c.GetHeader("X-Order") })
	removed := gin.New() // as the engine was when the request was parked
	removed.Use(func(c *gin.Context) { c.Set("user", "ann") })
	removed.POST("/removed/:id", s.lock(ann()), mustNotRun(t))

	var releases []func()
	for _, id := range []string{"1", "2", "3", "4"} {
		releases = append(releases, s.HoldKey(t, "order:"+testbed.Secret+id))
	}
	withKey := func(target, id string) *http.Request {
		r := testbed.Request(t, http.MethodPost, target, "")
		r.Header.Set("Authorization", "Bearer "+testbed.Secret)
		r.Header.Set("X-Order", testbed.Secret+id)
		return r
	}
	refused := s.park(t, withKey(testbed.OrderPath+"1?auth=1", ""))
	forgotten := s.park(t, withKey("/forgotten", "2"))
	stored := s.park(t, withKey("/stored", "3"))
	gone := testbed.Do(removed, withKey("/removed/"+testbed.Secret+"4", "")).Header.Get("Location")
	s.work(t)
	for _, release := range releases {
		release()
	}
	require.Zero(t, s.awaitState(t, forgotten, "expired").Attempts)
	status, err := s.queue.Status(t.Context(), strings.TrimPrefix(forgotten, "/tickets/"))
	require.NoError(t, err)
	require.Contains(t, status.Cause, `header "X-Order" is missing or empty`)
	s.awaitState(t, stored, "done")
	require.Equal(t, testbed.Secret+"3", <-ran)
	for _, location := range []string{refused, gone} { // another process may run them
		require.Zero(t, s.awaitState(t, location, "expired").Attempts)
	}
}

func TestParking_ResultsAndCancellingUnderGin(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := openShop(t, env)
		s.engine.POST("/orders/:id", s.lock(httplock.WithAnonymous()), func(c *gin.Context) {
			c.Header("Set-Cookie", "session="+testbed.Secret)
			c.JSON(http.StatusUnprocessableEntity, gin.H{"n": c.Query("n"), "id": len(c.Param("id"))})
		})
		release := s.Hold(t)
		first := s.park(t, testbed.Request(t, http.MethodPost, testbed.OrderPath+"?n=1", ""))
		cancelled := s.park(t, testbed.Request(t, http.MethodPost, testbed.OrderPath+"?n=2", ""))
		require.Equal(t, http.StatusNoContent, testbed.Call(t, s.engine, http.MethodDelete, cancelled, "").Status)
		testbed.RequireProblem(t, testbed.Call(t, s.engine, http.MethodGet, first+"/result", ""), http.StatusNotFound, "no-such-ticket", false)
		s.work(t)
		release()
		s.awaitState(t, first, "done")
		s.awaitState(t, cancelled, "cancelled")

		url, client := testbed.Serve(t, s.engine)
		r := testbed.ToServer(t.Context(), t, url+first, "")
		r.Method = http.MethodGet
		resp, err := testbed.Send(client, r) // follows the redirect
		require.NoError(t, err)
		require.Equal(t, http.StatusUnprocessableEntity, resp.Status)
		require.JSONEq(t, `{"n":"1","id":9}`, resp.Body)
		require.Equal(t, "application/json; charset=utf-8", resp.Header.Get("Content-Type"))
		require.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		require.NotContains(t, resp.Header, "Set-Cookie")
	})
}

func TestParking_TicketsUnderGinKnowTheirMethods(t *testing.T) {
	s := openShop(t, redistest.Embedded(t))
	resp := testbed.Call(t, s.engine, http.MethodPost, "/tickets/"+strings.Repeat("0", 32), "")
	require.Equal(t, "GET, HEAD, DELETE", resp.Header.Get("Allow"))
	testbed.RequireProblem(t, resp, http.StatusMethodNotAllowed, "method-not-allowed", false)
	require.Equal(t, http.StatusNotFound, testbed.Call(t, s.engine, http.MethodHead, "/tickets/"+strings.Repeat("0", 32), "").Status)
}

func TestFullQueues(t *testing.T) {
	for name, test := range map[string]struct {
		opt    delayqueue.Option
		status int
		kind   string
	}{
		"for the key": {delayqueue.WithMaxDepthPerKey(1), http.StatusTooManyRequests, "key-queue-full"},
		"as a whole":  {delayqueue.WithMaxDepth(1), http.StatusServiceUnavailable, "queue-full"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openShop(t, redistest.Embedded(t), test.opt)
			s.engine.POST("/orders/:id", s.lock(httplock.WithAnonymous()), mustNotRun(t))
			s.Hold(t)
			s.park(t, testbed.Request(t, http.MethodPost, testbed.OrderPath, ""))
			resp := testbed.Call(t, s.engine, http.MethodPost, testbed.OrderPath, "")
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
			testbed.RequireProblem(t, resp, test.status, test.kind, true)
		})
	}
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

func TestTicket_WithoutRedisIs503(t *testing.T) {
	server, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(server.Close)
	s := openShop(t, &redistest.Env{Addr: server.Addr(), Prefix: "t"})
	server.SetError("LOADING Redis is loading the dataset in memory")
	testbed.RequireProblem(t, testbed.Call(t, s.engine, http.MethodGet, "/tickets/"+strings.Repeat("0", 32), ""), http.StatusServiceUnavailable, "unavailable", true)
}

func TestWithPrincipal_IsForGin(t *testing.T) {
	s := openShop(t, redistest.Embedded(t))
	s.Hold(t)
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", httplock.PerKey(s.guard, func(*http.Request) (string, error) { return testbed.OrderKey, nil }, ann())(http.NotFoundHandler()))
	testbed.RequireProblem(t, testbed.Call(t, mux, http.MethodPost, testbed.OrderPath, ""), http.StatusInternalServerError, "internal", false)
	_, err := ginlock.New(s.guard, orderKey, ginlock.WithPrincipal(nil))
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
