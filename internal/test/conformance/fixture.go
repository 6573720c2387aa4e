package conformance

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// fixture is one check of one behaviour of one adapter on one Redis.
type fixture struct {
	testing.TB
	env     *redistest.Env
	adapter Adapter
	// said is what guards and workers log that have no logger of the check's own: what goes wrong on purpose
	// would hide the failures.
	said  *testbed.Log
	http2 bool // servers speak it
	// timeout is how long something is waited for that should happen at once.
	timeout time.Duration
}

// overEach checks a behaviour over HTTP/1.1, and over HTTP/2.
func overEach(test func(*fixture)) func(*fixture) {
	return func(t *fixture) {
		test(t)
		env := *t.env
		env.Prefix += "-2" // nothing is left of the first time
		t.env, t.http2 = &env, true
		test(t)
	}
}

func (t *fixture) setUp(opts ...core.Option) *testbed.Fixture {
	t.Helper()
	return testbed.New(t, t.env, opts...)
}

// breakable is a fixture whose Redis the check can take away.
func (t *fixture) breakable() (*testbed.Fixture, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.NewProxy(t, t.env.Addr)
	return testbed.On(t, testbed.FragileClient(t, proxy.Addr), t.env.Prefix), proxy
}

// orderKey is the key function of routes with {id}.
func orderKey(r *http.Request) (string, error) { return "order:" + r.PathValue("id"), nil }

// lock guards the order with a policy.
func lock(b *testbed.Fixture, policy core.ConflictPolicy, opts ...httplock.Option) Lock {
	return Lock{b.Locker.Guard(policy), orderKey, opts}
}

// orders is an app with one route.
func orders(h Handler, chain ...Step) App {
	return App{Routes: []Route{order(http.MethodPost, h, chain...)}}
}

func order(method string, h Handler, chain ...Step) Route {
	return Route{Method: method, Pattern: "/orders/{id}", Chain: chain, Handler: h}
}

func ok(w http.ResponseWriter, _ *http.Request) error {
	_, err := io.WriteString(w, "ok")
	return err
}

// mustNotRun is a handler behind a guard that refuses.
func (t *fixture) mustNotRun(http.ResponseWriter, *http.Request) error {
	t.Error("the handler ran")
	return nil
}

// site is an engine and its server.
type site struct {
	engine http.Handler
	url    string
	client *http.Client
}

// serve serves the app by the adapter. The server must find nothing to log, such
// as a panic, or a response that was begun twice.
func (t *fixture) serve(app App) *site {
	t.Helper()
	return t.start(t.adapter.New(app), t.silent)
}

// serveOver is serve over HTTP/1.1 or HTTP/2.
func (t *fixture) serveOver(http2 bool, app App) *site {
	t.Helper()
	return t.startOver(http2, t.adapter.New(app), t.silent)
}

// silent wants nothing in a server's log, but for a client that dialed once more than it needed.
func (t *fixture) silent(said string) {
	for line := range strings.Lines(said) {
		if !strings.Contains(line, "TLS handshake error") {
			assert.Empty(t, line, "the server's log")
		}
	}
}

// start serves an engine. The server's log is given to judge when it is whole.
func (t *fixture) start(engine http.Handler, judge func(said string)) *site {
	t.Helper()
	return t.startOver(t.http2, engine, judge)
}

func (t *fixture) startOver(http2 bool, engine http.Handler, judge func(said string)) *site {
	t.Helper()
	said := &testbed.Log{}
	srv := httptest.NewUnstartedServer(engine)
	srv.Config.ErrorLog = log.New(said, "", 0)
	if srv.EnableHTTP2 = http2; http2 {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	client := srv.Client()
	client.Timeout = 2 * t.timeout
	client.Transport.(*http.Transport).ExpectContinueTimeout = t.timeout
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	t.Cleanup(func() {
		client.CloseIdleConnections()
		srv.Close()
		judge(said.String())
	})
	return &site{engine, srv.URL, client}
}

// send sends a request, and returns the whole response.
func (t *fixture) send(s *site, method, path, body string) testbed.Answer {
	t.Helper()
	return t.do(s, t.request(s, method, path, body))
}

// do is send with a request.
func (t *fixture) do(s *site, r *http.Request) testbed.Answer {
	t.Helper()
	resp, err := testbed.Send(s.client, r)
	require.NoError(t, err)
	return resp
}

// atOnce sends n requests at the same time.
func (t *fixture) atOnce(s *site, n int, request func(i int) *http.Request) <-chan testbed.Answer {
	t.Helper()
	answers := make(chan testbed.Answer, n)
	for i := range n {
		r := request(i)
		go func() {
			resp, err := testbed.Send(s.client, r)
			// The server may close the connection while the client still sends, half a second after it has answered.
			// A client that has not read the response by then has none.
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, net.ErrClosed) {
				assert.NoError(t, err)
			}
			answers <- resp
		}()
	}
	return answers
}

// posts makes requests that post a body to the order.
func (t *fixture) posts(s *site, body string) func(int) *http.Request {
	return func(int) *http.Request { return t.request(s, http.MethodPost, testbed.OrderPath, body) }
}

// post posts a body to the order.
func (t *fixture) post(s *site, body string) testbed.Answer {
	t.Helper()
	return t.send(s, http.MethodPost, testbed.OrderPath, body)
}

// sending is post on another goroutine.
func (t *fixture) sending(ctx context.Context, s *site, body string) <-chan error {
	t.Helper()
	r := t.request(s, http.MethodPost, testbed.OrderPath, body).WithContext(ctx)
	over := make(chan error, 1)
	go func() {
		_, err := testbed.Send(s.client, r)
		over <- err
	}()
	return over
}

func (t *fixture) request(s *site, method, path, body string) *http.Request {
	t.Helper()
	r := testbed.ToServer(t.Context(), t, s.url+path, body)
	r.Method = method
	return r
}

func (t *fixture) requireOK(resp testbed.Answer) {
	t.Helper()
	require.Equal(t, http.StatusOK, resp.Status, resp.Body)
	require.Equal(t, "ok", resp.Body)
}

// await waits for an event.
func await[T any](t *fixture, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(t.timeout):
		t.Fatalf("not within %v: %s", t.timeout, what)
	}
	return v
}

// eventually waits for what comes without an event, and asks less often the longer it waits.
func (t *fixture) eventually(ok func() bool, what string) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(min(time.Millisecond+time.Since(start)/20, 50*time.Millisecond)) {
		if time.Since(start) > t.timeout {
			t.Fatalf("not within %v: %s", t.timeout, what)
		}
	}
}

// pause lets a handler wait for an event, or for the end of the check.
func (t *fixture) pause(ch <-chan struct{}) {
	select {
	case <-ch:
	case <-t.Context().Done():
	}
}

// onConflict calls f when the next call meets a held key.
func (t *fixture) onConflict(b *testbed.Fixture, f func()) {
	t.Helper()
	for len(b.Conflicts) > 0 {
		<-b.Conflicts
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-b.Conflicts:
			f()
		case <-t.Context().Done():
		}
	}()
	t.Cleanup(func() { <-done })
}

// text is a body of n bytes.
func text(n int) string { return strings.Repeat("0123456789", n/10+1)[:n] }
