package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestDemo_KeepsItsPromises(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { testOnce(t, "", "redis=embedded") })
	t.Run("real", func(t *testing.T) { testOnce(t, "redis://"+redistest.Real(t).Addr, "redis=real") })
}

func testOnce(t *testing.T, url, redis string) {
	var out bytes.Buffer
	err := run(t.Context(), config{once: true, redisURL: url, addr: "127.0.0.1:0", requests: 400, clients: 16}, &out)
	require.NoError(t, err, out.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	require.Regexp(t, `^demo: requests=400 ran=[1-9]\d* rejected=[1-9]\d* waited=[1-9]\d* parked=[1-9]\d* replayed=[1-9]\d* max_inside=1 violations=0 redis=`, last)
	require.Contains(t, last, redis)
}

func TestDemo_ServesTheConsole(t *testing.T) {
	rdb := redistest.Embedded(t).Client(t)
	service, err := newService(rdb, "demo", newScoreboard("none"))
	require.NoError(t, err)
	for path, want := range map[string]string{"/ops/": "<h1>Overview</h1>", "/ops/queue?queue=ship": "Slots busy"} {
		redistest.Eventually(t, func() bool {
			w := httptest.NewRecorder()
			service.router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Code == http.StatusOK && strings.Contains(w.Body.String(), want)
		}, path)
	}
	require.NoError(t, service.stop(t.Context()))
}

func TestDemo_SaysWhatIsWrong(t *testing.T) {
	for name, cfg := range map[string]config{
		"-redis: want a URL":      {redisURL: "nonsense"},
		"-redis: no answer from":  {redisURL: "redis://127.0.0.1:1?max_retries=-1"},
		"listen on -addr nowhere": {addr: "nowhere"},
	} {
		require.ErrorContains(t, run(t.Context(), cfg, &bytes.Buffer{}), name)
	}
}

func TestScoreboard_SeesEachBrokenPromise(t *testing.T) {
	b := newScoreboard("none")
	leave := b.enter("k")
	b.enter("k")()
	leave()
	for _, route := range routes {
		b.requested(route)
	}
	b.parked(routeShip)
	err := b.outcome(1)
	for _, want := range []string{
		"2 handlers were inside", "1 parked requests were lost", "1 requests were parked and 0 replayed",
		"3 requests, but 0 ran", "reject was never", "retry was never", "delay was never",
	} {
		require.ErrorContains(t, err, want)
	}
}
