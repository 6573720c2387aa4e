package sqltest

import (
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

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/require"

	"github.com/perkey-go/perkey/internal/test/redistest"
)

// requireVar is an environment variable that, set to 1, makes a missing PostgreSQL a failure, not a
// skip, and so a run without a test on one.
const requireVar = "PERKEY_REQUIRE_POSTGRES"

// postgres is the server that the tests share: a process of its own on a free loopback
// port, with a directory of its own.
var postgres struct {
	sync.Mutex
	err  error
	port int
	dir  string
	cmd  *exec.Cmd
	done chan struct{}

	schemas atomic.Int64
}

// newPostgres returns a data source: a new schema on the shared server.
func newPostgres(t *testing.T) (dsn string) {
	t.Helper()
	bin := postgresBin()
	if bin == "" && os.Getenv(requireVar) == "1" {
		t.Fatalf("there is no PostgreSQL, and %s=1 asks for one", requireVar)
	}
	if bin == "" {
		t.Skip("there is no PostgreSQL")
	}
	postgres.Lock()
	defer postgres.Unlock()
	if postgres.cmd == nil && postgres.err == nil {
		postgres.err = startPostgres(bin)
	}
	require.NoError(t, postgres.err)
	schema := fmt.Sprintf("t%d", postgres.schemas.Add(1))
	db := open(t, "pgx", postgresSource("public"))
	_, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema)
	require.NoError(t, err)
	return postgresSource(schema)
}

func postgresSource(schema string) string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=perkey dbname=postgres sslmode=disable search_path=%s", postgres.port, schema)
}

// postgresBin is the folder of initdb and postgres: Debian does not put it on PATH.
func postgresBin() string {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(paths) == 0 {
		return ""
	}
	return filepath.Dir(paths[len(paths)-1])
}

func startPostgres(bin string) error {
	account, err := postgresAccount()
	if err != nil {
		return err
	}
	if postgres.dir, err = os.MkdirTemp("", "perkey-postgres-"); err != nil {
		return err
	}
	if account != nil {
		if err := os.Chown(postgres.dir, int(account.Uid), int(account.Gid)); err != nil {
			return err
		}
	}
	as := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, name), args...)
		cmd.Dir, cmd.SysProcAttr = postgres.dir, &syscall.SysProcAttr{Credential: account}
		return cmd
	}
	data := filepath.Join(postgres.dir, "data")
	if out, err := as("initdb", "-D", data, "-U", "perkey", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync").CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	if postgres.port, err = freePort(); err != nil {
		return err
	}
	postgres.cmd = as("postgres", "-D", data, "-p", strconv.Itoa(postgres.port), "-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=200", "-c", "shared_buffers=16MB")
	log, err := os.Create(filepath.Join(postgres.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	postgres.cmd.Stdout, postgres.cmd.Stderr = log, log
	if postgres.done, err = redistest.Spawn(postgres.cmd); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	return awaitPostgres()
}

// awaitPostgres returns when the process that was started answers.
func awaitPostgres() error {
	db, err := sql.Open("pgx", postgresSource("public"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var data string
		if err = db.QueryRowContext(context.Background(), "SHOW data_directory").Scan(&data); err == nil && filepath.Dir(data) == postgres.dir {
			return nil
		}
	}
	log, _ := os.ReadFile(filepath.Join(postgres.dir, "log"))
	return fmt.Errorf("postgres did not answer: %w: %s", err, log)
}

// postgresAccount is whom the server runs as: it refuses root. Nil: as the test does.
func postgresAccount() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(account.Uid, 10, 32)
		gid, _ := strconv.ParseUint(account.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("there is no user postgres or nobody for PostgreSQL to run as")
}

// stopPostgres ends the server. It is an error that no test used it, if one had to.
func stopPostgres() error {
	if postgres.done != nil {
		_ = postgres.cmd.Process.Signal(syscall.SIGINT) // a fast shutdown
		select {
		case <-postgres.done:
		case <-time.After(10 * time.Second):
			_ = postgres.cmd.Process.Kill()
			<-postgres.done
		}
	}
	if postgres.dir != "" {
		_ = os.RemoveAll(postgres.dir)
	}
	if os.Getenv(requireVar) == "1" && postgres.schemas.Load() == 0 {
		return fmt.Errorf("%s=1, and no test ran on PostgreSQL", requireVar)
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
