package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/core"
	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

// serve runs perkey until the test ends, and returns where it listens.
func serve(t *testing.T, server string, args ...string) (address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	said, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"perkey", "--redis", "redis://" + server, "--prefix", t.Name()}, args...), io.Discard, out)
		_ = out.Close()
	}()
	lines := bufio.NewReader(said)
	first, err := lines.ReadString('\n')
	require.NoError(t, err, first)
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	t.Cleanup(func() {
		cancel()
		select {
		case status := <-ended:
			require.Equal(t, exitOK, status)
		case <-time.After(10 * time.Second):
			require.Fail(t, "it does not end")
		}
	})
	return strings.TrimSpace(first)
}

// answer is what an HTTP server answered.
type answer struct {
	status int
	header http.Header
	body   string
}

func ask(t *testing.T, method, address string, body url.Values, prepare func(*http.Request)) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body.Encode()))
	require.NoError(t, err)
	if body != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if prepare != nil {
		prepare(r)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func TestConsole_WithoutUsersShowsAndChangesNothing(t *testing.T) {
	server := redistest.Start(t).Addr
	rdb := redistest.Client(t, &redis.Options{Addr: server})
	locker := testbed.NewLocker(t, rdb, core.WithPrefix(t.Name()))
	lease := testbed.Take(t, locker, "order:17")
	at := serve(t, server, "console", "--listen", "127.0.0.1:0")
	page := ask(t, "GET", at+"key?key=order:17", nil, nil)
	require.Equal(t, http.StatusOK, page.status)
	require.Contains(t, page.body, "order:17")
	require.Equal(t, http.StatusForbidden, ask(t, "POST", at+"change", url.Values{"do": {"unlock"}, "key": {"order:17"}}, nil).status)
	require.NoError(t, context.Cause(lease.Context()))
	require.Equal(t, http.StatusMisdirectedRequest, ask(t, "GET", at, nil, func(r *http.Request) { r.Host = "evil.example" }).status)
}

func TestConsole_UsersLogIn(t *testing.T) {
	server := redistest.Start(t).Addr
	token := strings.Repeat("t", minToken)
	users := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(users, []byte("# on call\nann "+token+"\n\nbob "+strings.Repeat("b", minToken)+"\n"), 0o600))
	at := serve(t, server, "console", "--listen", "127.0.0.1:0", "--users", users, "--changes")
	as := func(name, token string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(name, token) }
	}
	for _, wrong := range []func(*http.Request){nil, as("ann", ""), as("", token), as("bob", token), as("eve", token), as("ann", token+"t")} {
		refused := ask(t, "GET", at, nil, wrong)
		require.Equal(t, http.StatusUnauthorized, refused.status)
		require.Equal(t, `Basic realm="perkey", charset="UTF-8"`, refused.header.Get("WWW-Authenticate"))
	}
	page := ask(t, "GET", at, nil, as("ann", token))
	require.Equal(t, http.StatusOK, page.status)
	require.Contains(t, page.body, "ann")
	change := url.Values{"do": {"pause"}, "queue": {"ship"}, "why": {"it does harm"}}
	require.Equal(t, http.StatusUnauthorized, ask(t, "POST", at+"change", change, nil).status)
	require.NotEqual(t, http.StatusUnauthorized, ask(t, "POST", at+"change", change, as("ann", token)).status)
	crossSite := ask(t, "POST", at+"change", change, func(r *http.Request) {
		r.SetBasicAuth("ann", token)
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	})
	require.Equal(t, http.StatusForbidden, crossSite.status)
}

func TestConsole_BehindAProxy(t *testing.T) {
	server := redistest.Start(t).Addr
	at := serve(t, server, "console", "--listen", "127.0.0.1:0", "--proxy", "10.0.0.0/8", "--proxy", "127.0.0.1", "--user-header", "X-Forwarded-Email")
	with := func(names ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header["X-Forwarded-Email"] = names }
	}
	require.Equal(t, http.StatusOK, ask(t, "GET", at, nil, with("ann@example.com")).status)
	require.Contains(t, ask(t, "GET", at, nil, with("ann@example.com")).body, "ann@example.com")
	for _, names := range [][]string{nil, {""}, {"eve@example.com", "ann@example.com"}, {strings.Repeat("x", 201)}, {"a\xffb"}} {
		require.Equal(t, http.StatusForbidden, ask(t, "GET", at, nil, with(names...)).status, "%q", names)
	}
	elsewhere := serve(t, server, "console", "--listen", "127.0.0.1:0", "--proxy", "10.0.0.0/8", "--user-header", "X-Forwarded-Email")
	require.Equal(t, http.StatusForbidden, ask(t, "GET", elsewhere, nil, with("ann@example.com")).status, "it is not the proxy that sends it")
}

func TestExporter_ServesMetrics(t *testing.T) {
	server := redistest.Start(t).Addr
	rdb := redistest.Client(t, &redis.Options{Addr: server})
	queue := testbed.NewQueue(t, rdb, "ship", delayqueue.WithPrefix(t.Name()))
	testbed.Enqueue(t, queue, delayqueue.Job{Key: "secret"})
	at := serve(t, server, "exporter", "--listen", "127.0.0.1:0")
	page := ask(t, "GET", at, nil, nil)
	require.Equal(t, http.StatusOK, page.status)
	require.Contains(t, page.body, `perkey_queue_due{queue="ship"} 1`)
	require.Contains(t, page.body, "perkey_fleet_up 1\n")
	require.NotContains(t, page.body, "secret")
	require.Equal(t, http.StatusNotFound, ask(t, "GET", strings.TrimSuffix(at, "metrics"), nil, nil).status)
}
