package lockclient_test

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/idempotency"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/lockclient"
)

const orderKey = "order:7"

// service is a service of perkey's behind a server, with one route for each policy, and a client.
type service struct {
	*testbed.Fixture
	queue   *delayqueue.Queue
	handler http.Handler // what the server serves
	router  http.Handler // what replays go through
	work    http.HandlerFunc
	network *network
	client  *http.Client
	url     string
}

// eachService runs test on each Redis.
func eachService(t *testing.T, test func(t *testing.T, s *service)) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) { test(t, newService(t, env)) })
}

// newService serves /refuse, /park, /coalesce with idempotency and without a worker. Its leases are short, so that nobody is told to
// come back much later.
func newService(t *testing.T, env *redistest.Env, opts ...delayqueue.Option) *service {
	t.Helper()
	s := &service{Fixture: testbed.New(t, env, core.WithTTL(3*time.Second))}
	var err error
	s.queue, err = delayqueue.New(s.Redis, "work", append([]delayqueue.Option{delayqueue.WithPrefix(env.Prefix)}, opts...)...)
	require.NoError(t, err)
	store, err := idempotency.New(s.Redis, idempotency.WithPrefix(env.Prefix))
	require.NoError(t, err)

	work := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.work(w, r) })
	router := http.NewServeMux()
	guard := func(path string, guard *core.Guard, opts ...httplock.Option) {
		router.Handle(path+"/{id}", httplock.PerKey(guard, httplock.ParamInt("order:", "id"), opts...)(work))
	}
	status, once := httplock.WithStatusPath("/tickets/"), httplock.WithIdempotency(store)
	guard("/refuse", s.Locker.Guard(core.RejectConflicts), once, httplock.WithAnonymous())
	guard("/park", s.Locker.Guard(delayqueue.Policy(s.queue)), status, once, httplock.WithAnonymous())
	guard("/coalesce", s.Locker.Guard(delayqueue.Coalesce(s.queue)), status, byUser)
	router.Handle("/tickets/", httplock.TicketHandler(s.queue, func(r *http.Request, t delayqueue.Status) bool { return t.Principal == r.Header.Get("X-User") }))
	s.router = router
	s.handler = router
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }))
	t.Cleanup(server.Close)
	base := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(base.CloseIdleConnections)
	s.url, s.network = server.URL, &network{send: base.RoundTrip}
	s.client = &http.Client{Transport: newTransport(t, s.network)}
	return s
}

// byUser has requests be those of the user that X-User names.
func byUser(m *httplock.Middleware) error {
	return cmp.Or(
		httplock.WithPrincipal(func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil })(m),
		httplock.WithReauthorize(func(*http.Request, string) error { return nil })(m),
	)
}

// hold takes the order's key, until release.
func (s *service) hold(t *testing.T) (release func()) {
	t.Helper()
	lease, err := s.Locker.Acquire(t.Context(), orderKey)
	require.NoError(t, err)
	return func() { assert.NoError(t, lease.Release(context.Background())) }
}

// start starts a worker that is stopped with the test. Its conflicts are not those of clients.
func (s *service) start(t *testing.T) {
	t.Helper()
	testbed.Work(t, s.queue, s.Rival, httplock.Replay(s.router), delayqueue.WithLogger(slog.New(slog.DiscardHandler)))
}

// send sends a request by the client, in the background.
func (s *service) send(t *testing.T, method, path, body string, header ...string) <-chan outcome {
	t.Helper()
	r := request(t, method, s.url+path, body, header...)
	got := make(chan outcome, 1)
	go func() {
		resp, err := testbed.Send(s.client, r)
		got <- outcome{resp, err}
	}()
	return got
}

type outcome struct {
	testbed.Answer
	err error
}

// require returns the response, which must have the status.
func (o outcome) require(t *testing.T, status int) testbed.Answer {
	t.Helper()
	require.NoError(t, o.err)
	require.Equal(t, status, o.Status, o.Body)
	return o.Answer
}

func TestService_RefusedThenDone(t *testing.T) {
	eachService(t, func(t *testing.T, s *service) {
		s.work = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
		release := s.hold(t)
		(<-s.send(t, http.MethodPost, "/refuse/7", "b")).require(t, http.StatusConflict)
		require.EqualValues(t, 1, s.network.sent.Load(), "a POST without a key is not sent again")
		<-s.Conflicts
		got := s.send(t, http.MethodPost, "/refuse/7", "b", "Idempotency-Key", "k")
		<-s.Conflicts
		release()
		(<-got).require(t, http.StatusCreated)
		require.EqualValues(t, 3, s.network.sent.Load())
		s.network.requireClosed(t)
	})
}

// The response of the replay is the client's, whatever its status.
func TestService_ParkedThenTheResponse(t *testing.T) {
	eachService(t, func(t *testing.T, s *service) {
		s.start(t)
		for _, status := range []int{http.StatusCreated, http.StatusNoContent, http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity, http.StatusInternalServerError} {
			s.work = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/orders/7")
				w.Header().Set("ETag", `"5"`)
				w.Header().Set("Content-Type", "text/x-order")
				w.WriteHeader(status)
				if status != http.StatusNoContent {
					_, _ = w.Write([]byte("the order"))
				}
			}
			release := s.hold(t)
			got := s.send(t, http.MethodPost, "/park/7", "b")
			<-s.Conflicts
			release()
			resp := (<-got).require(t, status)
			require.Equal(t, "/orders/7", resp.Header.Get("Location"))
			require.Equal(t, `"5"`, resp.Header.Get("ETag"))
			require.Equal(t, "text/x-order", resp.Header.Get("Content-Type"))
			if status != http.StatusNoContent {
				require.Equal(t, "the order", resp.Body)
			}
		}
		s.network.requireClosed(t)
	})
}

// Of many callers at once, refused or parked, each is served, and no two at a time.
func TestService_ManyCallers(t *testing.T) {
	eachService(t, func(t *testing.T, s *service) {
		s.start(t)
		inside := make(chan struct{}, 1)
		s.work = func(w http.ResponseWriter, r *http.Request) {
			inside <- struct{}{}
			_, _ = w.Write([]byte(r.URL.RawQuery))
			if len(inside) != 1 {
				t.Error("two at a time")
			}
			<-inside
		}
		s.client = &http.Client{Transport: newTransport(t, s.network, lockclient.WithMaxAttempts(1000), lockclient.WithMaxWait(2*time.Minute), lockclient.WithIdempotencyKeys())}
		for _, path := range []string{"/refuse/7?", "/park/7?"} {
			release := s.hold(t)
			var got []<-chan outcome
			for i := range 20 {
				got = append(got, s.send(t, http.MethodPost, path+strings.Repeat("x", i), ""))
			}
			for range got {
				<-s.Conflicts
			}
			release()
			for i, outcome := range got {
				require.Len(t, (<-outcome).require(t, http.StatusOK).Body, i)
			}
			for len(s.Conflicts) > 0 {
				<-s.Conflicts
			}
		}
		s.network.requireClosed(t)
	})
}

// The server has run the request, or still runs it, and the connection is lost: it is sent again under its key, and runs once.
func TestService_LostConnectionUnderAnIdempotencyKey(t *testing.T) {
	eachService(t, func(t *testing.T, s *service) {
		for _, still := range []bool{false, true} {
			lost, ran, end := make(chan struct{}, 1), make(chan struct{}, 10), make(chan struct{})
			s.work = func(w http.ResponseWriter, r *http.Request) {
				ran <- struct{}{}
				if still {
					<-end
				}
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write([]byte("paid"))
			}
			s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case lost <- struct{}{}:
				default:
					s.router.ServeHTTP(w, r)
					return
				}
				answered := make(chan struct{})
				go func() {
					defer close(answered)
					s.router.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
				}()
				if still {
					<-ran
					ran <- struct{}{}
				} else {
					<-answered
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if assert.NoError(t, err) {
					assert.NoError(t, conn.Close())
				}
				<-answered
			})
			s.client = &http.Client{Transport: newTransport(t, s.network, lockclient.WithMaxAttempts(100), lockclient.WithIdempotencyKeys())}
			got := s.send(t, http.MethodPost, "/refuse/7", "b")
			if still {
				<-s.Conflicts // the first is still running
			}
			close(end)
			resp := (<-got).require(t, http.StatusCreated)
			require.Equal(t, "paid", resp.Body)
			require.Equal(t, "true", resp.Header.Get("Idempotent-Replayed"))
			require.Len(t, ran, 1)
		}
	})
}

func TestService_TicketsThatEndWithoutAResponse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, env *redistest.Env) {
		s := newService(t, env, delayqueue.WithMaxAge(3*time.Second))
		s.work = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3600") // it is too old by then
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		requireState := func(got <-chan outcome, state string) lockclient.TicketError {
			t.Helper()
			var lost *lockclient.TicketError
			require.ErrorAs(t, (<-got).err, &lost)
			require.Equal(t, state, lost.State)
			require.NoError(t, lost.Err)
			require.Equal(t, s.url+"/tickets/"+lost.ID, lost.URL)
			return *lost
		}
		release := s.hold(t)
		older := s.send(t, http.MethodPut, "/coalesce/7", "old", "X-User", "ann")
		<-s.Conflicts
		newer := s.send(t, http.MethodPut, "/coalesce/7", "new", "X-User", "ann")
		<-s.Conflicts
		by := requireState(older, "superseded").SupersededBy
		require.Len(t, by, 32)
		require.NoError(t, s.queue.Cancel(t.Context(), by))
		require.Equal(t, by, requireState(newer, "cancelled").ID)

		requireState(s.send(t, http.MethodPost, "/park/7", "b"), "expired") // no worker runs

		dead := s.send(t, http.MethodPost, "/park/7", "b")
		for range 2 {
			<-s.Conflicts
		}
		s.start(t)
		release()
		require.Equal(t, http.StatusServiceUnavailable, requireState(dead, "dead").LastStatus)
		s.network.requireClosed(t)
	})
}

// The ticket is somebody else's without the request's credentials.
func TestService_TicketNeedsTheCredentials(t *testing.T) {
	s := newService(t, redistest.Embedded(t))
	s.work = func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte("saved")) }
	s.start(t)
	release := s.hold(t)
	got := s.send(t, http.MethodPut, "/coalesce/7", "b", "X-User", "ann")
	<-s.Conflicts
	release()
	require.Equal(t, "saved", (<-got).require(t, http.StatusOK).Body)

	s.network.send = func(send func(*http.Request) (*http.Response, error)) func(*http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				r.Header.Del("X-User")
			}
			return send(r)
		}
	}(s.network.send)
	release = s.hold(t)
	got = s.send(t, http.MethodPut, "/coalesce/7", "b", "X-User", "ann")
	<-s.Conflicts
	release()
	require.ErrorContains(t, (<-got).err, "404")
}
