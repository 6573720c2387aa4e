package httplock_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/echolock"
	"github.com/perkey-go/perkey/ginlock"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/locktest"
	"github.com/perkey-go/perkey/retry"
)

func TestOptions_MistakesAreErrorsAtConstruction(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard, store := b.Locker.Guard(core.RejectConflicts), newIdempotency(t, b)
	requireMistake := func(what any, guard *core.Guard, opts ...httplock.Option) {
		m, err := httplock.New(guard, opts...)
		require.ErrorIs(t, err, core.ErrInvalidOption, what)
		require.Nil(t, m)
	}
	requireMistake("nil guard", nil)
	requireMistake("guard of nothing", (*core.Locker)(nil).Guard(core.RejectConflicts))
	requireMistake("guard's policy", b.Locker.Guard(retry.Policy{MaxWait: -1}))
	requireMistake("responses under a shared key", b.Locker.Guard(core.RejectConflicts, core.Shared()), remembering(store))
	requireMistake("responses under a counted key", b.Locker.Guard(core.RejectConflicts, core.Counted(2)), remembering(store))
	for what, opts := range map[string][]httplock.Option{
		"nil option":             {nil},
		"nil skip":               {httplock.WithSkip(nil)},
		"nil logger":             {httplock.WithLogger(nil)},
		"nil conflict handler":   {httplock.WithConflictHandler(nil)},
		"nil error handler":      {httplock.WithErrorHandler(nil)},
		"no body":                {httplock.WithMaxBody(0)},
		"negative body":          {httplock.WithMaxBody(-1)},
		"immense body":           {httplock.WithMaxBody(1 << 40)},
		"no time":                {httplock.WithBodyTimeout(0)},
		"negative time":          {httplock.WithBodyTimeout(-1)},
		"two days":               {httplock.WithBodyTimeout(48 * time.Hour)},
		"no read-ahead":          {httplock.WithReadAhead(0)},
		"immense read-ahead":     {httplock.WithReadAhead(1 << 40)},
		"nothing may wait":       {httplock.WithMaxWaitingBytes(0)},
		"all may wait":           {httplock.WithMaxWaitingBytes(1<<40 + 1)},
		"no body may wait":       {httplock.WithMaxWaitingBytes(50 << 20), httplock.WithMaxBody(50 << 20)},
		"no read-ahead may wait": {httplock.WithReadAhead(50 << 20), httplock.WithMaxWaitingBytes(50 << 20)},
		"no waiters":             {httplock.WithMaxWaitersPerPrincipal(0), httplock.WithPrincipal(nobody)},
		"locked and shared":      {httplock.WithLockedSafeMethods(), httplock.WithSharedSafeMethods()},
		"shared and locked":      {httplock.WithSharedSafeMethods(), httplock.WithLockedSafeMethods()},
		"credentials are stored": {httplock.WithCredentialHeaders("x-shop-pass"), httplock.WithAllowedHeaders("X-Shop-Pass")},
		"the other way":          {httplock.WithAllowedHeaders("X-Shop-Pass"), httplock.WithCredentialHeaders("x-shop-pass")},
		"a type's credentials":   {httplock.WithCredentialHeaders("Content-Type")},
		"bad credential header":  {httplock.WithCredentialHeaders("a b")},
		"no credential header":   {httplock.WithCredentialHeaders("")},
		"nil store":              {httplock.WithIdempotency(nil), httplock.WithAnonymous()},
		"nil store's option":     {remembering(store, nil)},
		"two stores":             {remembering(store), remembering(store)},
		"nil payload":            {remembering(store, httplock.IdempotencyPayload(nil))},
		"negative response":      {remembering(store, httplock.KeepResponseBody(-1))},
		"immense response":       {remembering(store, httplock.KeepResponseBody(64<<20+1))},
		"responses' cookies":     {remembering(store, httplock.KeepResponseHeaders("set-cookie"))},
		"a stream's responses":   {httplock.WithStreamBody(), remembering(store)},
	} {
		requireMistake(what, guard, opts...)
	}
	for _, name := range []string{
		"", "X A", "PROXY-AUTHORIZATION", "Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding",
		"Upgrade", "Proxy-Connection", "Content-Length", "Expect", "Host",
	} {
		requireMistake(name, guard, httplock.WithAllowedHeaders("X-Fine", name))
	}
	for _, path := range []string{"", "tickets/", "/tickets", "//evil.example/", "/t/?a=1", "/t/#f", "/t >/", "ftp://h/t/", "http:///t/", "https://u@h/", "\x00/"} {
		requireMistake(path, guard, httplock.WithStatusPath(path))
	}
	for _, status := range []int{0, 200, 399, 600} {
		requireMistake(status, guard, httplock.WithRetryStatuses(503, status))
	}
	for _, host := range []string{"", "a b", "a/b", "ü", "user@host"} {
		requireMistake(host, guard, httplock.WithReplayHost(host))
	}
	for _, opts := range [][]httplock.Option{
		{httplock.WithStatusPath("/")},
		{httplock.WithStatusPath("/tickets/")},
		{httplock.WithStatusPath("https://api.example.com/v1/tickets/")},
		{httplock.WithLockedSafeMethods(), httplock.WithLockedSafeMethods()},
		{httplock.WithMaxBody(2 << 20), httplock.WithMaxWaitingBytes(2<<20 + 1)},
		{httplock.WithAllowedHeaders("X-Shop-Pass")}, // another guard's list is its own
	} {
		newMiddleware(t, guard, opts...)
	}
	newMiddleware(t, b.Locker.Guard(core.RejectConflicts, core.Counted(1)), remembering(store, httplock.KeepResponseBody(0)))
}

func TestMistakes_PanicAtRegistration(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	guard := b.Locker.Guard(core.RejectConflicts)
	fine, err := httplock.New(guard)
	require.NoError(t, err)
	late, ours := http.TimeoutHandler(mustNotRun(t), time.Second, ""), httplock.Timeout(time.Second)(mustNotRun(t))
	routes := routesFunc(func(string, string) (httplock.Route, bool) { return httplock.Route{}, false })
	for says, register := range map[string]func(){
		"the guard is nil: make one with Locker.Guard":              func() { httplock.PerKey(nil, orderKey) },
		"the guard has no locker":                                   func() { httplock.PerKey((*core.Locker)(nil).Guard(core.RejectConflicts), orderKey) },
		"WithMaxBody(0)":                                            func() { httplock.PerKey(guard, orderKey, httplock.WithMaxBody(0)) },
		"an option is nil":                                          func() { httplock.PerKey(guard, orderKey, nil) },
		"the key function is nil: give it one":                      func() { httplock.PerKey(guard, nil) },
		"PerKey: the handler is nil":                                func() { httplock.PerKey(guard, orderKey)((*http.ServeMux)(nil)) },
		"PerKey is around an http.TimeoutHandler":                   func() { httplock.PerKey(guard, orderKey)(late) },
		"PerKey is around an httplock.Timeout":                      func() { httplock.PerKey(guard, orderKey)(ours) },
		"Timeout: the handler is nil":                               func() { httplock.Timeout(time.Second)(nil) },
		"the key function is nil":                                   func() { fine.Handler(nil, mustNotRun(t)) },
		"the handler is nil":                                        func() { fine.Handler(orderKey, nil) },
		"Handler: the Middleware is empty: make one with New":       func() { new(httplock.Middleware).Handler(orderKey, mustNotRun(t)) },
		"Handler: the Middleware is empty":                          func() { (*httplock.Middleware)(nil).Handler(orderKey, mustNotRun(t)) },
		"FromConfig: the routes are nil":                            func() { httplock.FromConfig(nil) },
		"FromConfig: the routes are nil: give it a config.Runtime,": func() { httplock.FromConfig((*pointerRoutes)(nil)) },
		"FromConfig: the handler is nil":                            func() { httplock.FromConfig(routes)(nil) },
		"FromConfig is around an http.TimeoutHandler":               func() { httplock.FromConfig(routes)(late) },
	} {
		err, is := panicOf(register).(error)
		require.True(t, is, says)
		require.ErrorIs(t, err, core.ErrInvalidOption, says)
		require.ErrorContains(t, err, says)
	}
}

// pointerRoutes is a type whose nil is not the interface's.
type pointerRoutes struct{ httplock.Routes }

// panicOf is what f panics with. Nil: it does not.
func panicOf(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

func TestProblems_AreAllDocumented(t *testing.T) {
	source, err := os.ReadFile("problem.go")
	require.NoError(t, err)
	docs, err := os.ReadFile("../docs/problems.md")
	require.NoError(t, err)
	kinds := regexp.MustCompile(`"([a-z-]+)", http\.Status`).FindAllSubmatch(source, -1)
	require.NotEmpty(t, kinds)
	for _, kind := range kinds {
		require.Contains(t, string(docs), "\n## "+string(kind[1])+"\n")
	}
}

func TestOptions_ServeWithoutWritten(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	m, err := httplock.New(b.Locker.Guard(core.RejectConflicts))
	require.NoError(t, err)
	w := httptest.NewRecorder()
	ran := m.Serve(httplock.Exchange{
		Writer: w, Request: testbed.Request(t, http.MethodPost, "/", ""),
		Key:  func() (string, error) { return "", nil },
		Next: func(*http.Request) { t.Error("it ran") },
	})
	require.False(t, ran)
	testbed.RequireProblem(t, testbed.Answer{Status: w.Code, Header: w.Result().Header, Body: w.Body.String()}, http.StatusBadRequest, "bad-key", false)
}

func TestPrefix_IsTheLockersWhereTheyMeet(t *testing.T) {
	b := testbed.New(t, redistest.Embedded(t))
	for _, prefix := range []string{b.Prefix, "other"} {
		queue := testbed.NewQueue(t, b.Redis, "q", delayqueue.WithPrefix(prefix))
		store, err := idempotency.New(b.Redis, idempotency.WithPrefix(prefix))
		require.NoError(t, err)
		_, ofWorker := delayqueue.NewWorker(queue, b.Locker, func(context.Context, delayqueue.Message) error { return nil })
		_, ofStore := httplock.New(b.Locker.Guard(nil), httplock.WithIdempotency(store), httplock.WithAnonymous())
		for name, err := range map[string]error{
			"worker": ofWorker, "store": ofStore,
			"policy":    b.Locker.Guard(delayqueue.Policy(queue)).Err(),
			"deep down": b.Locker.Guard(nil).WithPolicy(retry.Policy{Then: &locktest.Policy{Then: delayqueue.Debounce(queue, time.Second, time.Minute)}}).Err(),
		} {
			if prefix == b.Prefix {
				require.NoError(t, err, name)
				continue
			}
			require.ErrorIs(t, err, core.ErrInvalidOption, name)
			require.ErrorContains(t, err, `the Locker's prefix is "`+b.Prefix+`", and`, name)
		}
	}
}

// mixed is a handler that does what a request could keep something by: it panics, answers nothing, streams, or has a
// goroutine that outlives it.
func mixed(t *testing.T, late *sync.WaitGroup) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Id")
		check := func() {
			lease, held := core.LeaseFrom(r.Context())
			assert.True(t, held)
			assert.Equal(t, "order:"+id, lease.Key())
		}
		check()
		body := r.Body
		switch id[len(id)-1] {
		case '1':
			panic(id)
		case '2':
			return
		case '3':
			late.Go(func() {
				time.Sleep(time.Millisecond)
				check()
				<-r.Context().Done()
				_, _ = io.ReadAll(body)
			})
		case '4':
			_, _ = io.WriteString(w, id[:1])
			assert.NoError(t, http.NewResponseController(w).Flush())
			_, _ = io.WriteString(w, id[1:])
			return
		}
		sent, err := io.ReadAll(body)
		assert.NoError(t, err)
		assert.Contains(t, []string{"", id}, string(sent))
		_, _ = io.WriteString(w, id)
	}
}

// What is used again for other requests is nobody's then.
func TestPerKey_NothingOfARequestIsAnothers(t *testing.T) {
	guard := testbed.New(t, redistest.Embedded(t)).Locker.Guard(core.RejectConflicts)
	var late sync.WaitGroup
	h := mixed(t, &late)
	refused := httplock.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, _ *httplock.Problem) {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, "refused "+r.Header.Get("X-Id"))
	})
	for name, route := range doors {
		var clients sync.WaitGroup
		handler := route(guard, h, refused)
		for client := range 8 {
			clients.Go(func() {
				for i := range 20 {
					id := fmt.Sprintf("%d-%d", client/2, i) // two clients have the same keys
					body := ""
					if i%3 == 0 {
						body = id
					}
					r := testbed.Request(t, http.MethodPost, "/orders/"+id, body)
					r.Header.Set("X-Id", id)
					if body == "" {
						r.Body = http.NoBody
					}
					var got testbed.Answer
					panicked := func() (value any) {
						defer func() { value = recover() }()
						got = testbed.Do(handler, r)
						return nil
					}()
					switch last := id[len(id)-1]; {
					case panicked != nil:
						assert.Equal(t, id, panicked, name)
					case got.Status == http.StatusConflict:
						assert.Equal(t, "refused "+id, got.Body, name)
					case last == '2':
						assert.Empty(t, strings.TrimSpace(got.Body), name)
					default:
						assert.Equal(t, id, got.Body, name)
					}
				}
			})
		}
		clients.Wait()
	}
	late.Wait()
}

// guardedRoutes serve POST /orders/{id} behind a guard, under each framework.
func guardedRoutes(tb testing.TB) map[string]http.Handler {
	tb.Helper()
	locker := testbed.NewLocker(tb, redistest.Real(tb).Client(tb))
	guard := locker.Guard(core.RejectConflicts)
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", httplock.PerKey(guard, httplock.Param("order:", "id"))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	engine := gin.New()
	engine.POST("/orders/:id", ginlock.PerKey(guard, ginlock.Param("order:", "id")), func(c *gin.Context) { c.Status(http.StatusNoContent) })
	e := echo.New()
	e.POST("/orders/:id", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) }, echolock.PerKey(guard, echolock.Param("order:", "id")))
	return map[string]http.Handler{"net/http": mux, "gin": engine, "echo": e}
}

// discard is a response that nobody reads.
type discard struct {
	header http.Header
	status int
}

func (w *discard) Header() http.Header         { return w.header }
func (w *discard) Write(p []byte) (int, error) { return len(p), nil }
func (w *discard) WriteHeader(status int)      { w.status = status }

// request returns a function that sends one request without a body.
func request(tb testing.TB, h http.Handler, prepare ...func(*http.Request)) func() {
	tb.Helper()
	r := testbed.Request(tb, http.MethodPost, "/orders/42", "")
	r.Body = http.NoBody
	w := &discard{header: http.Header{}}
	return func() {
		for _, f := range prepare {
			f(r)
		}
		if h.ServeHTTP(w, r.WithContext(r.Context())); w.status != http.StatusNoContent {
			tb.Errorf("answered %d", w.status)
		}
	}
}

// A guarded request without a body, whose key is free. Without the race detector, which makes pools forget, it is
// 20, 24 and 22 allocations.
func TestPerKey_AllocatesLittle(t *testing.T) {
	most := map[string]float64{"net/http": 30, "gin": 35, "echo": 34}
	for name, h := range guardedRoutes(t) {
		send := request(t, h)
		send()
		require.LessOrEqual(t, testing.AllocsPerRun(100, send), most[name], name)
	}
}

// The same with a new Idempotency-Key; 80 without the race detector.
func TestIdempotency_AllocatesLittle(t *testing.T) {
	rdb, n := redistest.Real(t).Client(t), 0
	store, err := idempotency.New(rdb)
	require.NoError(t, err)
	send := request(t, guarded(testbed.NewLocker(t, rdb).Guard(core.RejectConflicts), func(w http.ResponseWriter, r *http.Request) {
		n++
		w.WriteHeader(http.StatusNoContent)
	}, remembering(store)), func(r *http.Request) { r.Header["Idempotency-Key"] = []string{strconv.Quote(strconv.Itoa(n))} })
	send()
	require.LessOrEqual(t, testing.AllocsPerRun(100, send), 100.0)
}
