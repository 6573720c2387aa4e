package ginlock_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/embedded"
	"github.com/perkey-go/perkey/internal/redistest"
	"github.com/perkey-go/perkey/retry"
)

// shop is a bench with a queue, and an engine whose conflicts are parked on it.
type shop struct {
	*bench
	queue  *delayqueue.Queue
	guard  *core.Guard
	engine *gin.Engine
}

func openShop(t *testing.T, env *redistest.Env, opts ...delayqueue.Option) *shop {
	t.Helper()
	s := &shop{bench: setup(t, env), engine: gin.New()}
	var err error
	s.queue, err = delayqueue.New(s.rdb, "ship", append([]delayqueue.Option{delayqueue.WithPrefix(env.Prefix)}, opts...)...)
	require.NoError(t, err)
	s.guard = core.NewGuard(s.locker, delayqueue.Policy(s.queue))
	s.engine.GET("/tickets/:id", gin.WrapH(httplock.TicketHandler(s.queue, func(r *http.Request, _ delayqueue.Status) bool {
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
	w, err := delayqueue.NewWorker(s.queue, s.locker, httplock.Replay(s.engine),
		delayqueue.WithRetryBackoff(time.Millisecond, time.Millisecond), delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	require.NoError(t, w.Start())
	t.Cleanup(func() { assert.NoError(t, w.Stop(context.Background())) })
}

type ticket struct {
	ID                  string
	State               string
	Attempts, Conflicts int
}

// park sends a request that must be parked, and returns where its ticket is.
func (s *shop) park(t *testing.T, r *http.Request) (location string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.engine.ServeHTTP(w, r)
	require.Equal(t, http.StatusAccepted, w.Code, w.Body.String())
	var got struct {
		ID, State string
		ExpiresAt time.Time `json:"expires_at"`
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.Equal(t, "queued", got.State)
	require.False(t, got.ExpiresAt.IsZero())
	location = w.Header().Get("Location")
	require.Equal(t, "/tickets/"+got.ID, location)
	require.Equal(t, "<"+location+`>; rel="status"`, w.Header().Get("Link"))
	require.NotContains(t, w.Body.String()+fmt.Sprint(w.Header()), secret)
	return location
}

func (s *shop) ticket(t *testing.T, location string) ticket {
	t.Helper()
	resp := call(s.engine, http.MethodGet, location, "")
	content := bodyOf(t, resp)
	require.Equal(t, http.StatusOK, resp.StatusCode, content)
	require.NotContains(t, content, secret)
	var got ticket
	require.NoError(t, json.Unmarshal([]byte(content), &got))
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

func TestParkedRequestRunsWhenItsTurnComes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := openShop(t, env)
		s.engine.UseRawPath = true
		body := make([]byte, 1<<20) // at the cap
		_, _ = rand.Read(body)
		ran := make(chan struct{}, 1)
		s.engine.POST("/orders/:id/ship", s.lock(httplock.AllowHeaders("X-Tag")), func(c *gin.Context) {
			id, replayed := httplock.Replayed(c.Request.Context())
			assert.True(t, replayed)
			assert.Len(t, id, 32)
			lease, held := core.LeaseFrom(c.Request.Context())
			if assert.True(t, held) {
				assert.Equal(t, "order:a/"+secret, lease.Key())
			}
			assert.Equal(t, "a/"+secret, c.Param("id"))
			assert.Equal(t, []string{"1", "2"}, c.QueryArray("x"))
			assert.Equal(t, []string{"p", "q"}, c.Request.Header["X-Tag"])
			assert.Equal(t, "application/octet-stream", c.ContentType())
			assert.Empty(t, c.GetHeader("Authorization"))
			assert.Empty(t, c.Request.Host)
			assert.Empty(t, c.ClientIP())
			got, err := io.ReadAll(c.Request.Body)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(body, got))
			n := 0 // a stream that nobody listens to
			c.Stream(func(io.Writer) bool {
				n++
				c.SSEvent("tick", n)
				return n < 3
			})
			ran <- struct{}{}
		})
		release := s.hold(t, "order:a/"+secret)
		request := func(body []byte) *http.Request {
			r := httptest.NewRequest(http.MethodPost, "http://evil.example/orders/a%2F"+secret+"/ship?x=1&x=2", bytes.NewReader(body))
			r.Header["X-Tag"] = []string{"p", "q"}
			r.Header.Set("Content-Type", "application/octet-stream")
			r.Header.Set("Authorization", "Bearer "+secret)
			return r
		}
		location := s.park(t, request(body))
		require.Equal(t, "queued", s.ticket(t, location).State)

		w := httptest.NewRecorder()
		s.engine.ServeHTTP(w, request(append(body, 'x')))
		requireProblem(t, w.Result(), http.StatusRequestEntityTooLarge, "body-too-large")
		stats, err := s.queue.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, stats.Queued, "nothing was stored")

		s.work(t)
		release()
		<-ran
		done := s.awaitState(t, location, "done")
		require.Equal(t, 1, done.Attempts)

		stranger := httptest.NewRequest(http.MethodGet, location, nil)
		stranger.Header.Set("X-Stranger", "1")
		w = httptest.NewRecorder()
		s.engine.ServeHTTP(w, stranger)
		unknown := call(s.engine, http.MethodGet, "/tickets/"+strings.Repeat("0", 32), "")
		require.Equal(t, bodyOf(t, unknown), w.Body.String())
		require.Equal(t, unknown.Header, w.Header())
		requireProblem(t, w.Result(), http.StatusNotFound, "no-such-ticket")
	})
}

func TestEveryParkedRequestRunsOnceAndAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const requests, keys = 60, 3
		s := openShop(t, env)
		s.guard = core.NewGuard(s.locker, retry.Policy{MaxWait: 5 * time.Millisecond, Then: delayqueue.Policy(s.queue)})
		var inside [keys]atomic.Int64
		var mu sync.Mutex
		ran := map[string]int{}
		s.engine.POST("/orders/:id", s.lock(), func(c *gin.Context) {
			at := &inside[c.Param("id")[0]-'0']
			if at.Add(1) != 1 {
				t.Error("two handlers inside")
			}
			body, err := c.GetRawData()
			assert.NoError(t, err)
			time.Sleep(2 * time.Millisecond) // room for others to come in
			mu.Lock()
			ran[string(body)]++
			mu.Unlock()
			at.Add(-1)
			ok(c)
		})
		s.work(t)
		url, client := serve(t, s.engine)
		var parked atomic.Int64
		var wg sync.WaitGroup
		for i := range requests {
			wg.Go(func() {
				resp, err := client.Post(fmt.Sprint(url, "/orders/", i%keys), "text/plain", strings.NewReader(fmt.Sprint(i)))
				if !assert.NoError(t, err) {
					return
				}
				_ = bodyOf(t, resp)
				if resp.StatusCode == http.StatusAccepted {
					parked.Add(1)
				} else {
					assert.Equal(t, http.StatusOK, resp.StatusCode)
				}
			})
		}
		wg.Wait()
		require.Positive(t, parked.Load())
		redistest.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(ran) == requests
		}, "every request runs")
		redistest.Eventually(t, func() bool {
			stats, err := s.queue.Stats(t.Context())
			return err == nil && stats == (delayqueue.Stats{})
		}, "the queue is empty")
		for body, times := range ran {
			require.Equal(t, 1, times, body)
		}
	})
}

func TestReplayThatMeetsAnInnerConflictSpendsNoAttempt(t *testing.T) {
	s := openShop(t, redistest.Embedded(t))
	inner := ginlock.PerKey(s.guard, ginlock.Query("inner:", "inner"))
	s.engine.POST("/orders/:id", s.lock(), inner, ok)
	releaseOuter := s.hold(t, "order:"+secret)
	releaseInner := s.hold(t, "inner:1")
	location := s.park(t, httptest.NewRequest(http.MethodPost, orderPath+"?inner=1", nil))
	s.work(t)
	releaseOuter()
	redistest.Eventually(t, func() bool { return s.ticket(t, location).Conflicts > 0 }, "the inner conflict is counted")
	stats, err := s.queue.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Queued+stats.Running, "it was not parked again")
	releaseInner()
	done := s.awaitState(t, location, "done")
	require.Equal(t, 1, done.Attempts)
}

func TestReplaysThatFailAreRetriedThenDead(t *testing.T) {
	s := openShop(t, redistest.Embedded(t), delayqueue.WithMaxAttempts(3))
	s.engine.POST("/orders/:id", s.lock(), func(c *gin.Context) {
		if c.Query("how") == "panic" {
			panic("boom")
		}
		c.Status(http.StatusBadGateway)
	})
	release := s.hold(t, "order:"+secret)
	failed := s.park(t, httptest.NewRequest(http.MethodPost, orderPath+"?how=502", nil))
	panicked := s.park(t, httptest.NewRequest(http.MethodPost, orderPath+"?how=panic", nil))
	missing := s.park(t, httptest.NewRequest(http.MethodPost, orderPath+"?how=panic", nil))
	junk, err := s.queue.Enqueue(t.Context(), delayqueue.Job{Key: "order:" + secret, Payload: []byte("junk")})
	require.NoError(t, err)
	s.work(t)
	release()
	for location, cause := range map[string]string{failed: "status 502", panicked: "boom", missing: "boom"} {
		require.Equal(t, 3, s.awaitState(t, location, "dead").Attempts)
		status, err := s.queue.Status(t.Context(), strings.TrimPrefix(location, "/tickets/"))
		require.NoError(t, err)
		require.Contains(t, status.Cause, cause)
	}
	require.Equal(t, 1, s.awaitState(t, "/tickets/"+junk.ID, "dead").Attempts, "junk is not tried again")
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
			s.engine.POST("/orders/:id", s.lock(), mustNotRun(t))
			defer s.hold(t, "order:"+secret)()
			s.park(t, httptest.NewRequest(http.MethodPost, orderPath, nil))
			resp := call(s.engine, http.MethodPost, orderPath, "")
			require.NotEmpty(t, resp.Header.Get("Retry-After"))
			requireProblem(t, resp, test.status, test.kind)
		})
	}
}

func TestLostReplyOfTheQueueIsNotTakenForARefusal(t *testing.T) {
	env := redistest.Real(t)
	b := setup(t, env)
	defer b.hold(t, "order:"+secret)()
	proxy := redistest.NewProxy(t, env.Addr)
	proxied := &redistest.Env{Addr: proxy.Addr, Prefix: env.Prefix}
	queue, err := delayqueue.New(proxied.Client(t), "ship", delayqueue.WithPrefix(env.Prefix))
	require.NoError(t, err)
	proxy.LoseReply(func([]byte) bool { return true })
	resp := call(guarded(core.NewGuard(b.locker, delayqueue.Policy(queue)), mustNotRun(t)), http.MethodPost, orderPath, "")
	content := bodyOf(t, resp)
	require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	require.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.Contains(t, content, "could not be confirmed that the request was queued")
}

func TestTicketWithoutRedisIs503(t *testing.T) {
	server, err := embedded.Start()
	require.NoError(t, err)
	t.Cleanup(server.Close)
	s := openShop(t, &redistest.Env{Addr: server.Addr(), Prefix: "t"})
	server.SetError("LOADING Redis is loading the dataset in memory")
	requireProblem(t, call(s.engine, http.MethodGet, "/tickets/"+strings.Repeat("0", 32), ""), http.StatusServiceUnavailable, "unavailable")
}
