//go:build soak

package httplock_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/httplock"
	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/internal/test/testbed"
	"github.com/perkey-go/perkey/retry"
)

const soakServer = "PERKEY_WAITING_BODIES_REDIS"

// TestSoakWaitingBodies has 10,000 clients send 1 MiB each for one key that is held, to a server in a process of
// its own: it takes up what WithMaxWaitingBytes says by default, and refuses the rest.
func TestSoakWaitingBodies(t *testing.T) {
	if addr := os.Getenv(soakServer); addr != "" {
		serveWaitingBodies(t, addr)
		return
	}
	const clients, size = 10_000, 1 << 20
	server := redistest.Start(t)
	rdb := redistest.Client(t, &redis.Options{Addr: server.Addr})
	lease, err := testbed.NewLocker(t, rdb).TryAcquire(t.Context(), "held")
	require.NoError(t, err)

	addr, stop := startWaitingBodies(t, server.Addr)
	before := memoryOf(t, addr)

	body := []byte(strings.Repeat("x", size))
	var statuses [600]atomic.Int64
	var requests sync.WaitGroup
	start := time.Now()
	for range clients {
		requests.Go(func() {
			status, err := postRaw(addr, body)
			if assert.NoError(t, err) {
				statuses[status].Add(1)
			}
		})
	}
	const room = httplock.DefaultMaxWaitingBytes / size
	answered := func() (n int64) {
		for status := range statuses {
			n += statuses[status].Load()
		}
		return n
	}
	assert.Eventually(t, func() bool { return answered() >= clients-room }, 2*time.Minute, 50*time.Millisecond)
	for status := range statuses {
		if n := statuses[status].Load(); n > 0 {
			t.Logf("%d: %d", status, n)
		}
	}
	during := memoryOf(t, addr)
	t.Logf("%d refused with 503 within %v", statuses[http.StatusServiceUnavailable].Load(), time.Since(start).Round(time.Millisecond))
	t.Logf("live heap %d MiB (%d MiB before), bodies that wait %d MiB, peak of the process's memory %d MiB",
		during.Heap>>20, before.Heap>>20, during.Waiting>>20, during.Peak>>20)
	require.LessOrEqual(t, during.Waiting, int64(httplock.DefaultMaxWaitingBytes))
	require.LessOrEqual(t, during.Heap-before.Heap, int64(httplock.DefaultMaxWaitingBytes)+clients*8<<10, "and what connections take up")
	require.NoError(t, lease.Release(t.Context()))
	requests.Wait()
	after := memoryOf(t, addr)
	t.Logf("served %d; live heap %d MiB afterwards", statuses[http.StatusOK].Load(), after.Heap>>20)
	require.EqualValues(t, clients, statuses[http.StatusOK].Load()+statuses[http.StatusServiceUnavailable].Load())
	require.Greater(t, statuses[http.StatusOK].Load(), int64(room*3/4))
	require.Zero(t, after.Waiting)
	stop()
}

// startWaitingBodies starts the server in a process of its own. It returns its address, and a function that ends it.
func startWaitingBodies(t *testing.T, redisAddr string) (addr string, stop func()) {
	child := exec.Command(os.Args[0], "-test.run=^TestSoakWaitingBodies$", "-test.timeout=10m")
	child.Env, child.Stderr = append(os.Environ(), soakServer+"="+redisAddr), os.Stderr
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	found := false
	for lines := bufio.NewScanner(stdout); !found && lines.Scan(); {
		addr, found = strings.CutPrefix(lines.Text(), "serving ")
	}
	require.True(t, found)
	go func() { _, _ = io.Copy(io.Discard, stdout) }()
	return addr, func() {
		require.NoError(t, stdin.Close())
		require.NoError(t, child.Wait())
	}
}

// memory is what the server's process takes up.
type memory struct{ Heap, Waiting, Peak int64 }

func memoryOf(t *testing.T, addr string) (m memory) {
	t.Helper()
	resp, err := http.Get("http://" + addr + "/memory")
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&m))
	return m
}

func serveWaitingBodies(t *testing.T, redisAddr string) {
	rdb := redistest.Client(t, &redis.Options{Addr: redisAddr})
	guard := testbed.NewLocker(t, rdb).Guard(retry.Policy{MaxWait: time.Hour})
	mux := http.NewServeMux()
	mux.Handle("POST /x", httplock.PerKey(guard, func(*http.Request) (string, error) { return "held", nil })(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			assert.NoError(t, err)
			assert.EqualValues(t, 1<<20, n)
		})))
	mux.HandleFunc("GET /memory", func(w http.ResponseWriter, _ *http.Request) {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		m := memory{Heap: int64(stats.HeapAlloc), Waiting: httplock.WaitingBytes()}
		status, err := os.ReadFile("/proc/self/status")
		assert.NoError(t, err)
		if _, peak, ok := strings.Cut(string(status), "VmHWM:"); ok {
			_, _ = fmt.Sscan(peak, &m.Peak)
			m.Peak <<= 10
		}
		assert.NoError(t, json.NewEncoder(w).Encode(m))
	})
	srv := httptest.NewServer(mux)
	fmt.Println("\nserving " + srv.Listener.Addr().String())
	_, _ = io.Copy(io.Discard, os.Stdin)
	srv.Close()
}

// postRaw sends a body as fast as it can, and reads the status, whichever comes first.
func postRaw(addr string, body []byte) (status int, err error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(body)); err != nil {
		return 0, err
	}
	go func() { _, _ = conn.Write(body) }() // a refusal may come before its end
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
