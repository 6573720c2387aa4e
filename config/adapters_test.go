package config_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/asynqlock"
	"github.com/perkey-go/perkey/config"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
)

const chargesFile = `
guards:
  wallet: {key: "wallet:{json.user_id}", at_once: %d, on_conflict: %s}
routes:
  POST /charges: wallet
asynq:
  wallet:charge: wallet
`

// wallets is a gin service and an asynq server of one Runtime. It counts how many charges of a user run at once.
type wallets struct {
	t      *testing.T
	rt     *config.Runtime
	router *gin.Engine
	client *asynq.Client
	queue  string

	requests, tasks, both atOnce
	charged, done         atomic.Int64 // by requests, and by tasks
	failed                atomic.Int64 // what asynq takes for failures
}

// atOnce counts charges of each user.
type atOnce struct {
	mu      sync.Mutex
	running [3]int
	highest int
}

func (a *atOnce) add(user, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running[user] += n
	a.highest = max(a.highest, a.running[user])
}

// most is how many of one user there were. It begins anew.
func (a *atOnce) most() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.highest = 0 }()
	return a.highest
}

func newWallets(t *testing.T, env *redistest.Env, file string) *wallets {
	t.Helper()
	rdb := env.Client(t)
	s := &wallets{t: t, rt: build(t, env, file), router: gin.New(), client: asynq.NewClientFromRedisClient(rdb), queue: env.Prefix}
	s.router.Use(ginlock.FromConfig(s.rt))
	s.router.POST("/charges", func(c *gin.Context) {
		body, _ := io.ReadAll(c.Request.Body)
		s.charge(&s.requests, body)
		s.charged.Add(1)
		c.Status(http.StatusOK)
	})
	cfg := asynq.Config{
		Concurrency: 6, Queues: map[string]int{s.queue: 1}, TaskCheckInterval: 5 * time.Millisecond, DelayedTaskCheckInterval: 5 * time.Millisecond,
		LogLevel: asynq.FatalLevel, ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { s.failed.Add(1) }),
	}
	require.NoError(t, asynqlock.Configure(&cfg, rdb))
	tasks := asynq.NewServeMux()
	tasks.Use(asynqlock.FromConfig(s.rt))
	tasks.HandleFunc("wallet:charge", func(_ context.Context, task *asynq.Task) error {
		s.charge(&s.tasks, task.Payload())
		s.done.Add(1)
		return nil
	})
	server := asynq.NewServerFromRedisClient(rdb, cfg)
	require.NoError(t, server.Start(tasks))
	t.Cleanup(server.Shutdown)
	return s
}

func (s *wallets) charge(by *atOnce, payload []byte) {
	var of struct {
		User int `json:"user_id"`
	}
	_ = json.Unmarshal(payload, &of)
	by.add(of.User, 1)
	s.both.add(of.User, 1)
	time.Sleep(time.Millisecond)
	s.both.add(of.User, -1)
	by.add(of.User, -1)
}

func (s *wallets) request(user int) int {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(fmt.Sprintf(`{"user_id":%d}`, user)))
	r.Header.Set("Content-Type", "application/json")
	s.router.ServeHTTP(w, r)
	return w.Code
}

func (s *wallets) enqueue(user int) error {
	_, err := s.client.Enqueue(asynq.NewTask("wallet:charge", fmt.Appendf(nil, `{"user_id":%d}`, user)), asynq.Queue(s.queue), asynq.MaxRetry(0))
	return err
}

// One file has the guards of requests and tasks, and one reload reaches both: only the policy of new requests differs.
// It is long since it is one story.
func TestReload_ReachesRequestsAndTasksUnderTraffic(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		const reloads = 20
		files := []string{
			fmt.Sprintf(chargesFile, 1, "{policy: retry, max_wait: 30s}"),
			fmt.Sprintf(chargesFile, 3, "{policy: retry, max_wait: 30s, initial: 1ms}"),
		}
		s := newWallets(t, env, files[0])
		var requests, tasks, refused atomic.Int64
		var traffic sync.WaitGroup
		stop := make(chan struct{})
		again := func() bool {
			select {
			case <-stop:
				return false
			case <-time.After(time.Millisecond):
				return true
			}
		}
		for range 8 {
			traffic.Go(func() {
				for again() {
					requests.Add(1)
					if code := s.request(rand.N(3)); code != http.StatusOK {
						refused.Add(1)
					}
				}
			})
		}
		traffic.Go(func() {
			for again() {
				if tasks.Load()-s.done.Load() < 100 && assert.NoError(t, s.enqueue(rand.N(3))) {
					tasks.Add(1)
				}
			}
		})
		more := func() {
			t.Helper()
			charged, done := s.charged.Load(), s.done.Load()
			redistest.Eventually(t, func() bool { return s.charged.Load() > charged+30 && s.done.Load() > done+30 }, "requests and tasks that run")
		}
		more()
		assert.Equal(t, 1, s.both.most(), "one at a time, of requests and tasks together")
		s.requests.most()
		s.tasks.most()
		for i := 1; i <= reloads; i++ {
			require.NoError(t, s.rt.Reload(load(t, env, files[i%2])))
			more()
		}
		assert.Greater(t, s.requests.most(), 1, "requests follow")
		assert.Greater(t, s.tasks.most(), 1, "tasks follow")
		s.both.most() // the last file was the first: from here on it counts for all
		more()
		close(stop)
		traffic.Wait()
		redistest.Eventually(t, func() bool { return s.done.Load() == tasks.Load() }, "all tasks have run")
		t.Logf("%d requests, %d tasks", requests.Load(), tasks.Load())
		assert.Zero(t, refused.Load(), "requests")
		assert.Zero(t, s.failed.Load(), "tasks")
		assert.Equal(t, requests.Load(), s.charged.Load())
		assert.Equal(t, 1, s.both.most(), "one at a time again")
	})
}

// A file that is refused for one line changes neither the guards of requests nor those of tasks.
func TestReload_IsAllOrNothing(t *testing.T) {
	t.Parallel()
	env := redistest.Embedded(t)
	waits, rejects := fmt.Sprintf(chargesFile, 1, "{policy: retry, max_wait: 10s}"), fmt.Sprintf(chargesFile, 1, "reject")
	s := newWallets(t, env, rejects)
	require.NoError(t, s.rt.CheckRoutes([]httplock.RegisteredRoute{{Method: "POST", Pattern: "/charges", FromConfig: true}}))
	release := hold(t, s.rt, "wallet:1")
	handler := asynqlock.FromConfig(s.rt, asynqlock.WithLogger(slog.New(slog.DiscardHandler)))(
		asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	process := func() error {
		return handler.ProcessTask(t.Context(), asynq.NewTask("wallet:charge", []byte(`{"user_id":1}`)))
	}
	rejected := func() {
		t.Helper()
		assert.Equal(t, http.StatusConflict, s.request(1))
		assert.ErrorIs(t, process(), asynqlock.ErrDeferred)
	}
	rejected()
	in := s.rt.File()
	for what, line := range map[string]string{
		"a queue that is new":             "queues: {more: {}}",
		"a service":                       "service: shop",
		"an unknown field":                "guards2: {}",
		"a principal that nobody gave":    "defaults: {principal: users}",
		"a route that nobody registered":  "",
		"a key of tasks that is for HTTP": "",
	} {
		file := waits + line + "\n"
		switch what {
		case "a route that nobody registered":
			file = strings.Replace(file, "asynq:", "  POST /refunds: wallet\nasynq:", 1)
		case "a key of tasks that is for HTTP":
			file += "  other: {key: '{route}'}\n"
		}
		f, err := config.ParseIn("perkey.yaml", []byte("redis: {addresses: ['"+env.Addr+"']}\nprefix: "+env.Prefix+"\n"+file), environment)
		if err == nil {
			err = s.rt.Reload(f)
		}
		require.Error(t, err, what)
		assert.Same(t, in, s.rt.File())
		rejected()
	}
	require.NoError(t, s.rt.Reload(load(t, env, waits)))
	answered, processed := make(chan int, 1), make(chan error, 1)
	go func() { answered <- s.request(1) }()
	go func() { processed <- process() }()
	redistest.Eventually(t, func() bool { return waiting(t, s.rt, "wallet:1") }, "what waits now")
	time.Sleep(20 * time.Millisecond) // so does the other, if it does
	release()
	assert.Equal(t, http.StatusOK, <-answered)
	assert.NoError(t, <-processed)
}
