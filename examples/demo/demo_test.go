package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/delayqueue"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestDemo_KeepsItsPromises(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { testOnce(t, "", "redis=embedded") })
	t.Run("real", func(t *testing.T) { testOnce(t, "redis://"+redistest.Real(t).Addr, "redis=real") })
}

func testOnce(t *testing.T, url, redis string) {
	var out bytes.Buffer
	cfg := config{once: true, redisURL: url, addr: "127.0.0.1:0", requests: 400, clients: 24, beat: 10 * time.Millisecond}
	require.NoError(t, run(t.Context(), cfg, &out), out.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	require.Regexp(t, `^demo: requests=400 ran=[1-9]\d* rejected=[1-9]\d* waited=[1-9]\d* parked=[1-9]\d* replayed=[1-9]\d* max_inside=1 violations=0 redis=`, last)
	require.Contains(t, last, redis)
	for _, l := range lines[:len(lines)-1] {
		require.LessOrEqual(t, len(l), 80, l)
	}
}

// Somebody who deletes all that is in Redis breaks the promise: the demo sees it, and says so with its status.
func TestDemo_FailsIfAPromiseIsBroken(t *testing.T) {
	server := redistest.Embedded(t)
	rdb := server.Client(t)
	ctx, stop := context.WithCancel(t.Context())
	var thief sync.WaitGroup
	thief.Go(func() {
		for ctx.Err() == nil {
			if keys, err := rdb.Keys(ctx, "demo-*").Result(); err == nil && len(keys) > 0 {
				_ = rdb.Del(ctx, keys...).Err()
			}
		}
	})
	var out bytes.Buffer
	cfg := config{once: true, redisURL: "redis://" + server.Addr, addr: "127.0.0.1:0", requests: 400, clients: 24, beat: 20 * time.Millisecond}
	err := run(t.Context(), cfg, &out)
	stop()
	thief.Wait()
	require.ErrorContains(t, err, "handlers were inside one key at once")
}

// It ends when its context does: what is under way, or parked, still runs, and no promise is broken. Only -once was not done.
func TestDemo_EndsWhenInterrupted(t *testing.T) {
	for _, once := range []bool{false, true} {
		var out bytes.Buffer
		ctx, stop := context.WithTimeout(t.Context(), 700*time.Millisecond)
		err := run(ctx, config{once: once, addr: "127.0.0.1:0", clients: 24, beat: 10 * time.Millisecond}, &out)
		stop()
		if once {
			require.EqualError(t, err, "interrupted before the traffic was over")
		} else {
			require.NoError(t, err, out.String())
		}
		require.Contains(t, out.String(), "\nviolations: 0 in ")
	}
}

// Each route shows what its policy is for.
func TestTraffic_ShowsEachPolicy(t *testing.T) { redistest.InVirtualTime(t, showsEachPolicy) }

func showsEachPolicy(t *testing.T, env *redistest.Env) {
	rdb := env.Client(t)
	cfg := config{requests: 600, clients: 24, beat: 20 * time.Millisecond}
	board := newScoreboard("embedded", place{local: true})
	service, err := newService(rdb, "demo", cfg.beat, board)
	require.NoError(t, err)
	drive(t.Context(), toHandler{service.router}, "http://demo", cfg, board)
	require.NoError(t, service.stop(t.Context()))

	v := board.view()
	require.NoError(t, v.broken(true))
	require.Equal(t, 600, v.total()[requests])
	require.Empty(t, v.inside)
	require.Empty(t, v.waiting)
	require.Empty(t, v.parked)
	pay, cart, ship := v.row(routePay).n, v.row(routeCart).n, v.row(routeShip).n
	share := func(n, of int) float64 { return float64(n) / float64(of) }
	require.InDelta(t, 0.8, share(pay[ran], pay[requests]), 0.15, "most pays run: %+v", pay)
	require.Equal(t, pay[requests], pay[ran]+pay[refused])
	require.Zero(t, pay[waited]+pay[parked])
	require.Equal(t, cart[requests], cart[ran], "every cart is saved")
	require.InDelta(t, 0.4, share(cart[waited], cart[requests]), 0.3, "some wait: %+v", cart)
	require.Less(t, v.rows[1].waits[len(v.rows[1].waits)/2], 20*cfg.beat, "for less than the policy allows")
	require.InDelta(t, 0.75, share(ship[parked], ship[requests]), 0.2, "the first step runs, the others are parked: %+v", ship)
	require.Equal(t, ship[parked], ship[replayed])
	require.Zero(t, ship[refused])
}

// toHandler sends requests to a handler, without a network.
type toHandler struct{ http.Handler }

func (h toHandler) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

func TestDemo_ServesTheConsole(t *testing.T) {
	for name, local := range map[string]bool{"loopback": true, "elsewhere": false} {
		t.Run(name, func(t *testing.T) {
			rdb := redistest.Embedded(t).Client(t)
			service, err := newService(rdb, "demo", time.Millisecond, newScoreboard("none", place{local: local}))
			require.NoError(t, err)
			send := func(r *http.Request) *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				service.router.ServeHTTP(w, r)
				return w
			}
			get := func(host, path string) *httptest.ResponseRecorder {
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Host = host
				return send(r)
			}
			for path, want := range map[string]string{"/ops/": "<h1>Overview</h1>", "/ops/queue?queue=ship": "Slots busy"} {
				redistest.Eventually(t, func() bool {
					w := get("localhost:80", path)
					return w.Code == http.StatusOK && strings.Contains(w.Body.String(), want)
				}, path)
			}
			if local {
				require.Equal(t, http.StatusMisdirectedRequest, get("evil.example", "/ops/").Code, "a host name that points here")
				require.Equal(t, http.StatusOK, get("[::1]:80", "/ops/").Code)
				require.Equal(t, http.StatusOK, get("[::1]", "/ops/").Code)
				require.Equal(t, http.StatusOK, get("127.0.0.1", "/ops/").Code)
			}
			front := get("localhost:80", "/")
			require.Equal(t, http.StatusSeeOther, front.Code, "the service's address, as the demo prints it")
			require.Equal(t, "/ops/", front.Header().Get("Location"))
			change := httptest.NewRequest(http.MethodPost, "http://localhost/ops/change", strings.NewReader("do=pause&queue=ship&minutes=1&why=a+test"))
			change.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			send(change)
			paused := testbed.NewQueue(t, rdb, "ship", delayqueue.WithPrefix("demo"))
			stats, err := paused.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, local, stats.Paused, "only those at this machine change things")
			require.NoError(t, service.stop(t.Context()))
		})
	}
}

// A client that reads nothing loses its connection; the longest request has its answer, and a live page stays open.
func TestServer_TimeOuts(t *testing.T) {
	redistest.InVirtualTime(t, func(t *testing.T, env *redistest.Env) {
		service, err := newService(env.Client(t), "demo", time.Millisecond, newScoreboard("none", place{local: true}))
		require.NoError(t, err)
		defer func() { require.NoError(t, service.stop(t.Context())) }()
		dial := testbed.ServeInBubble(t, newServer(service.router))
		send := func(line string) *bufio.Reader {
			conn := dial()
			t.Cleanup(func() { _ = conn.Close() })
			_, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n", line)
			require.NoError(t, err)
			return bufio.NewReader(conn)
		}
		deaf := send("GET /tickets/none")
		answer, err := send("POST /orders/1/pay?work=10s").ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, answer, "200 OK")
		live := send("GET /ops/")
		for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); {
			_, err := live.ReadString('\n')
			require.NoError(t, err, time.Until(end))
		}
		_, err = deaf.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestDemo_SaysWhatIsWrong(t *testing.T) {
	for name, cfg := range map[string]config{
		"-redis: want a URL":      {redisURL: "nonsense"},
		"-redis: no answer from":  {redisURL: "redis://127.0.0.1:1?max_retries=-1"},
		"listen on -addr nowhere": {addr: "nowhere"},
	} {
		require.ErrorContains(t, run(t.Context(), cfg, &bytes.Buffer{}), name)
	}
	for _, url := range []string{"redis://:secret@localhost:port/0", "redis://:sec%zzret@localhost", "redis://:secret/1@localhost"} {
		require.NotContains(t, run(t.Context(), config{redisURL: url}, &bytes.Buffer{}).Error(), "sec")
	}
}

func TestScoreboard_SeesEachBrokenPromise(t *testing.T) {
	b := newScoreboard("none", place{})
	_, leaveFirst := b.enter(routePay, "k", false)
	_, leaveSecond := b.enter(routePay, "k", false)
	leaveSecond()
	leaveFirst()
	b.update(func(v *view) { v.violations++; v.lost++ })
	b.failed(routeShip, context.DeadlineExceeded)
	for _, route := range routes {
		b.count(route.name, requests)
	}
	b.count(routeShip, parked)
	v := b.view()
	for _, want := range []string{
		"2 handlers were inside", "2 violations", "1 parked requests were lost", "1 requests failed, the first with: POST /orders/:id/ship: context deadline",
	} {
		require.ErrorContains(t, v.broken(false), want)
	}
	for _, want := range []string{"1 requests were parked and 0 replayed", "3 requests, but 0 ran", "reject was never", "retry was never"} {
		require.ErrorContains(t, v.broken(true), want)
		require.NotContains(t, v.broken(false).Error(), want)
	}
	require.Contains(t, v.lastLine(), "violations=2 ")
}
