package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

	dir  string
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process ended
}

// Start starts a redis-server of the test's own, with extra arguments as on its
// command line. It keeps no data across a restart unless they say so.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	requireServer(t)
	s, err := newServer(t.TempDir(), args...)
	require.NoError(t, err)
	t.Cleanup(s.Kill)
	return s
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
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &Server{
		Addr: fmt.Sprintf("127.0.0.1:%d", port),
		dir:  dir,
		args: append([]string{
			"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
			"--logfile", filepath.Join(dir, "redis.log"),
		}, args...),
	}
	return s, s.start()
}

func (s *Server) start() error {
	s.cmd = exec.Command("redis-server", s.args...)
	var err error
	if s.done, err = Spawn(s.cmd); err != nil {
		return fmt.Errorf("redistest: start redis-server: %w", err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if rdb.Ping(context.Background()).Err() == nil {
			return nil
		}
	}
	s.Kill()
	log, _ := os.ReadFile(filepath.Join(s.dir, "redis.log"))
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

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port, nil
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
