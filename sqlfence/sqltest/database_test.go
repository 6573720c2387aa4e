package sqltest

import (
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/perkey-go/perkey/internal/test/redistest"
	"github.com/perkey-go/perkey/sqlfence"
)

func TestMain(m *testing.M) {
	if os.Getenv(payerVar) != "" {
		runPayer()
		return
	}
	redistest.Main(m, stopPostgres)
}

// source is an empty database of one test's own. The processes of a test open it each.
type source struct{ driver, dsn string }

// eachDatabase runs test on SQLite and on PostgreSQL, in parallel with others. There is a table
// for the fences, and an account of payments.
func eachDatabase(t *testing.T, test func(t *testing.T, src source, db *sql.DB)) {
	t.Helper()
	t.Parallel()
	for name, newSource := range map[string]func(*testing.T) source{
		"sqlite": func(t *testing.T) source {
			t.Helper()
			return source{"sqlite", sqliteSource(t.TempDir())}
		},
		"postgres": func(t *testing.T) source {
			t.Helper()
			return source{"pgx", newPostgres(t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := newSource(t)
			db := open(t, src.driver, src.dsn)
			create(t, db, sqlfence.Table{}.Create())
			test(t, src, db)
		})
	}
}

// sqliteSource is a file. A statement waits for the transactions of others, for as long as
// a process may be stopped.
func sqliteSource(dir string) string {
	return "file:" + filepath.Join(dir, "db") + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(20000)&_pragma=synchronous(OFF)"
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func create(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
}
