package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Server is a redis-server process. Its methods are for one goroutine.
type Server struct {
	Addr string

	dir   string
	args  []string
	env   []string // besides this process's own
	clock string   // the file that SetClock writes
	cmd   *exec.Cmd
	done  chan struct{} // closed when the process ended
	rdb   *redis.Client // made by client
}

// Start starts a redis-server of the test's own, with extra arguments as on its
// command line. It keeps no data across a restart unless they say so.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	RequireServer(t)
	s, err := newServer(t.TempDir(), args...)
	require.NoError(t, err)
	t.Cleanup(s.Kill)
	return s
}

// StartTLS is Start for a server that serves TLS too, at the address that is returned.
func StartTLS(t testing.TB, args ...string) (s *Server, addr string) {
	t.Helper()
	port, err := freePort()
	require.NoError(t, err)
	return Start(t, append([]string{"--tls-port", strconv.Itoa(port)}, args...)...), net.JoinHostPort(loopback, strconv.Itoa(port))
}

// Debug are the arguments of a server that runs DEBUG. Redis 6.2 does so anyway, and does not know them.
func Debug() []string {
	if isVersion("6.") {
		return nil
	}
	return []string{"--enable-debug-command", "yes"}
}

// Kill ends the process with SIGKILL and waits for it.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Restart starts the process again, on the same port, after Kill.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	require.NoError(t, s.start())
}

// Pause stops the process with SIGSTOP; Resume lets it go on.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

func newServer(dir string, args ...string) (*Server, error) {
	s, err := plan(dir, args...)
	if err != nil {
		return nil, err
	}
	return s, s.start()
}

const logName = "redis.log"

// plan is a server that has not started.
func plan(dir string, args ...string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return &Server{
		Addr: net.JoinHostPort(loopback, strconv.Itoa(port)),
		dir:  dir,
		args: append([]string{
			"--port", strconv.Itoa(port), "--bind", loopback, "--dir", dir, "--save", "", "--appendonly", "no",
			"--logfile", filepath.Join(dir, logName),
		}, args...),
	}, nil
}

// client returns a client of this server alone, which does not try again. It is closed with the test.
func (s *Server) client(t testing.TB) *redis.Client {
	t.Helper()
	if s.rdb == nil {
		s.rdb = Client(t, &redis.Options{Addr: s.Addr, MaxRetries: -1})
	}
	return s.rdb
}

func (s *Server) port() string { return s.Addr[len(loopback)+1:] }

// planAll makes servers that have not started, and end with the test.
func planAll(t testing.TB, n int, args ...string) []*Server {
	t.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		var err error
		servers[i], err = plan(t.TempDir(), args...)
		require.NoError(t, err)
	}
	return servers
}

// startAll starts servers at the same time.
func startAll(t testing.TB, servers []*Server) {
	t.Helper()
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.start() })
	}
	wg.Wait()
	for _, s := range servers {
		if s.cmd != nil {
			t.Cleanup(s.Kill)
		}
	}
	require.NoError(t, errors.Join(errs...))
}

func (s *Server) start() error {
	s.cmd = exec.Command("redis-server", s.args...)
	s.cmd.Env = append(os.Environ(), s.env...)
	var err error
	if s.done, err = Spawn(s.cmd); err != nil {
		return fmt.Errorf("redistest: start redis-server: %w", err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && !s.ended(); time.Sleep(5 * time.Millisecond) {
		if s.answers(rdb) {
			return nil
		}
	}
	s.Kill()
	log, _ := os.ReadFile(filepath.Join(s.dir, logName))
	return fmt.Errorf("redistest: redis-server did not answer: %s", log)
}

// Spawn starts a process that is not left behind a test that was killed. The
// channel is closed when it ended and was waited for.
func Spawn(cmd *exec.Cmd) (chan struct{}, error) {
	started := make(chan error)
	done := make(chan struct{})
	go func() {
		// The kernel ends the child with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		dieWithParent(cmd)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	return done, <-started
}

func (s *Server) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// answers reports whether this process serves its port, and not one that was quicker to take it.
func (s *Server) answers(rdb *redis.Client) bool {
	if rdb.Ping(context.Background()).Err() != nil {
		return false
	}
	info, err := rdb.Info(context.Background(), "server").Result()
	return err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", s.cmd.Process.Pid))
}

var shared struct {
	sync.Mutex
	server *Server
	dir    string
}

func sharedServer() (*Server, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		return shared.server, nil
	}
	dir, err := os.MkdirTemp("", "perkey-redis-")
	if err != nil {
		return nil, err
	}
	shared.dir = dir
	shared.server, err = newServer(dir)
	return shared.server, err
}

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.Kill()
	}
	_ = os.RemoveAll(shared.dir)
}
