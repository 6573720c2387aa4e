package sqltest

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// server is a database's process that the tests share: on a free loopback port, in a directory of its own.
type server struct {
	// requireVar is an environment variable that, set to 1, makes a missing server a failure,
	// not a skip, and so a run without a test on it.
	name, requireVar string
	programs         []string // what prepares the directory, and what serves it
	prepare          func(data string) (args []string)
	serve            func(data string, port int) (args []string)
	end              syscall.Signal

	driver    string
	source    func(port int, schema string) string
	directory string // a query for it

	mu   sync.Mutex
	err  error
	port int
	dir  string
	cmd  *exec.Cmd
	done chan struct{}

	schemas atomic.Int64
}

var postgres = &server{
	name: "postgres", requireVar: "PERKEY_REQUIRE_POSTGRES", programs: []string{"initdb", "postgres"},
	prepare: func(data string) []string {
		return []string{"-D", data, "-U", "perkey", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"}
	},
	serve: func(data string, port int) []string {
		return []string{
			"-D", data, "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
			"-c", "fsync=off", "-c", "max_connections=200", "-c", "shared_buffers=16MB",
		}
	},
	end: syscall.SIGINT, // a fast shutdown

	driver: "pgx",
	source: func(port int, schema string) string {
		return fmt.Sprintf("host=127.0.0.1 port=%d user=perkey dbname=postgres sslmode=disable search_path=%s", port, cmp.Or(schema, "public"))
	},
	directory: "SHOW data_directory",
}

var mariadb = &server{
	name: "mariadb", requireVar: "PERKEY_REQUIRE_MARIADB", programs: []string{"mariadb-install-db", "mariadbd"},
	prepare: func(data string) []string {
		return []string{"--no-defaults", "--datadir=" + data, "--auth-root-authentication-method=normal", "--skip-test-db"}
	},
	serve: func(data string, port int) []string {
		return []string{
			"--no-defaults", "--datadir=" + data, "--port=" + strconv.Itoa(port), "--bind-address=127.0.0.1", "--socket=" + data + "/s",
			"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M", "--max-connections=300",
		}
	},
	end: syscall.SIGTERM,

	driver:    "mysql",
	source:    func(port int, schema string) string { return fmt.Sprintf("root@tcp(127.0.0.1:%d)/%s", port, schema) },
	directory: "SELECT @@datadir",
}

// newSource returns a data source: a new schema.
func (s *server) newSource(t *testing.T) (dsn string) {
	t.Helper()
	if s.path(s.programs[0]) == "" {
		if os.Getenv(s.requireVar) == "1" {
			t.Fatalf("there is no %s, and %s=1 asks for it", s.name, s.requireVar)
		}
		t.Skip("there is no " + s.name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil && s.err == nil {
		s.err = s.start()
	}
	require.NoError(t, s.err)
	schema := fmt.Sprintf("t%d", s.schemas.Add(1))
	db := open(t, s.driver, s.source(s.port, ""))
	_, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema)
	require.NoError(t, err)
	return s.source(s.port, schema)
}

// path finds a program. Debian does not put all of them on PATH.
func (s *server) path(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/sbin/"} {
		if paths, _ := filepath.Glob(pattern + program); len(paths) > 0 {
			return paths[len(paths)-1]
		}
	}
	return ""
}

func (s *server) start() error {
	account, err := unprivileged()
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "perkey-"+s.name+"-"); err != nil {
		return err
	}
	if account != nil {
		if err := os.Chown(s.dir, int(account.Uid), int(account.Gid)); err != nil {
			return err
		}
	}
	as := func(program string, args []string) *exec.Cmd {
		cmd := exec.Command(s.path(program), args...)
		cmd.Dir, cmd.SysProcAttr = s.dir, &syscall.SysProcAttr{Credential: account}
		return cmd
	}
	data := filepath.Join(s.dir, "data")
	if out, err := as(s.programs[0], s.prepare(data)).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", s.programs[0], err, out)
	}
	if s.port, err = freePort(); err != nil {
		return err
	}
	s.cmd = as(s.programs[1], s.serve(data, s.port))
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if s.done, err = redistest.Spawn(s.cmd); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	return s.await(data)
}

// await returns when the process that was started answers, and no other on its port.
func (s *server) await(data string) error {
	db, err := sql.Open(s.driver, s.source(s.port, ""))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var its string
		if err = db.QueryRowContext(context.Background(), s.directory).Scan(&its); err == nil && filepath.Clean(its) == data {
			return nil
		}
	}
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return fmt.Errorf("%s did not answer: %w: %s", s.name, err, log)
}

// unprivileged is whom a server runs as: they refuse root. Nil: as the test does.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, errU := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, errG := strconv.ParseUint(nobody.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(errU, errG)
}

// stop ends the server. It is an error that no test used it, if one had to.
func (s *server) stop() error {
	if s.done != nil {
		_ = s.cmd.Process.Signal(s.end)
		select {
		case <-s.done:
		case <-time.After(10 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.done
		}
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
	if os.Getenv(s.requireVar) == "1" && s.schemas.Load() == 0 {
		return fmt.Errorf("%s=1, and no test ran on %s", s.requireVar, s.name)
	}
	return nil
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
